"""``torchgpipe.skip.namespace``: keeps skips of equal names apart."""

from thinpipe.stages.skip import Namespace

__all__ = ["Namespace"]
