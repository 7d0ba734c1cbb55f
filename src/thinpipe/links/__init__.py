"""Links: what moves the tensors of a cut from one worker to the next."""

from thinpipe.links.local import Closed, LocalLink

__all__ = ["Closed", "LocalLink"]
