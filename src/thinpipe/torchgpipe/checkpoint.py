"""``torchgpipe.checkpoint``: lets a layer ask whether its forward will be, or is being, recomputed."""

from thinpipe.stages.phase import is_checkpointing, is_recomputing

__all__ = ["is_checkpointing", "is_recomputing"]
