"""Skip connections between layers, straight across stages; see ``skippable``."""

from thinpipe.stages.skip import Namespace, Skippable, pop, skippable, stash, verify_skippables

__all__ = ["Namespace", "Skippable", "pop", "skippable", "stash", "verify_skippables"]
