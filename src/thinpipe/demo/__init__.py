"""The first minute: a client and a server on this machine, over a link that is slow on purpose, and codecs for it.

::

    this process ── 20 Mbit/s each way, emulated ── another process
    images, labels, first and last layers           the middle
"""

RECIPE = "digits"
NONE = "none"
