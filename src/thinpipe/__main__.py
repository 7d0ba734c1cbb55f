"""``python -m thinpipe`` is ``thinpipe``."""

from thinpipe.cli import main

main()
