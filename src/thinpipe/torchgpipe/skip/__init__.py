"""``torchgpipe.skip``: skip connections that cross partitions without passing through those between."""

from thinpipe.torchgpipe.skip.namespace import Namespace
from thinpipe.torchgpipe.skip.skippable import pop, skippable, stash, verify_skippables

__all__ = ["Namespace", "pop", "skippable", "stash", "verify_skippables"]
