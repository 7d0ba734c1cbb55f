"""What is wrong with a bottleneck."""

from __future__ import annotations

from thinpipe.errors import ThinpipeError


class BottleneckError(ThinpipeError, ValueError):
    """A bottleneck that does not fit what crosses its cut, or a half without the other one."""
