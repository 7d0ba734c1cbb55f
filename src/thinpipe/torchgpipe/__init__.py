"""torchgpipe's public names over this library's pipe, so that a program moves here by changing its imports::

    from torchgpipe import GPipe                    from thinpipe.torchgpipe import GPipe
    from torchgpipe.balance import balance_by_time  from thinpipe.torchgpipe.balance import balance_by_time
    from torchgpipe.skip import skippable           from thinpipe.torchgpipe.skip import skippable

Programs that need not read torchgpipe's checkpoints or ``partitions`` are better off with ``thinpipe.Pipe``, which
keeps the model's own names.
"""

from thinpipe import __version__
from thinpipe.torchgpipe.checkpoint import is_checkpointing, is_recomputing
from thinpipe.torchgpipe.gpipe import GPipe

__all__ = ["GPipe", "__version__", "is_checkpointing", "is_recomputing"]
