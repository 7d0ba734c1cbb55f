"""A log that strangers cannot flood."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("thinpipe")
_LINES, _SECONDS = 20, 10.0


class Seldom:
    """Passes on up to 20 warnings in 10 seconds, and counts the others."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._lines = 0

    def warn(self, text: str) -> None:
        """Logs a line, if there were not too many lately."""
        if (now := time.monotonic()) - self._since > _SECONDS:
            if self._lines > _LINES:
                _log.warning("%d more lines like that were left out", self._lines - _LINES)
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES:
            _log.warning("%s", text)
