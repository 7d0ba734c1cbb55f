"""``torchgpipe.skip.skippable``: layers that stash and pop."""

from thinpipe.stages.skip import Skippable, pop, skippable, stash, verify_skippables

__all__ = ["Skippable", "pop", "skippable", "stash", "verify_skippables"]
