"""Records what a rank does, and writes one trace of all ranks, on one clock."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinpipe.errors import StallError, ThinpipeError
from thinpipe.links import Closed
from thinpipe.runtime.control import Control
from thinpipe.trace import NO_TRACE, SAME, AnyTracer, Offset, Tracer, estimate, from_json, merge, write_chrome

_log = logging.getLogger("thinpipe")

_SAMPLES = 10
_PIECE = 1 << 14
"""Characters of a message."""

_TAG = 1 << 20
"""Beyond those of lanes."""


class RankTrace:
    """The trace of one rank.

    Args:
        rank: this one.
        path: where rank 0 writes the trace of all ranks; None records nothing.
        group: the ranks.
    """

    def __init__(self, rank: int, path: str | Path | None, group: dist.ProcessGroup) -> None:
        self.tracer: AnyTracer = NO_TRACE if path is None else Tracer(rank)
        self._path = path
        self._group = group
        self._offsets: dict[int, Offset] = {0: SAME}
        if path is None:
            return
        try:
            self._compare_clocks()
        except RuntimeError as error:
            raise StallError(f"the clocks of all ranks could not be compared: {error}") from error

    def _compare_clocks(self) -> None:
        """Has rank 0 ask every other rank for the time, a few times; the shortest round trip tells most."""
        if self._group.rank() == 0:
            for peer in range(1, self._group.size()):
                self._offsets[peer] = estimate([self._ask(peer) for _ in range(_SAMPLES)])
            return
        question = torch.empty(1, dtype=torch.float64)
        for _ in range(_SAMPLES):
            self._group.recv([question], 0, _TAG).wait()
            self._group.send([torch.tensor([time.perf_counter()], dtype=torch.float64)], 0, _TAG).wait()

    def _ask(self, peer: int) -> tuple[float, float, float]:
        answer = torch.empty(1, dtype=torch.float64)
        asked = time.perf_counter()
        self._group.send([torch.zeros(1, dtype=torch.float64)], peer, _TAG).wait()
        self._group.recv([answer], peer, _TAG).wait()
        return asked, float(answer), time.perf_counter()

    def write(self, control: Control) -> None:
        """Brings the spans of all ranks together, and has rank 0 write them; all ranks call it."""
        if self._path is None:
            return
        path, self._path = self._path, None
        try:
            if self._group.rank() != 0:
                _tell(control, self.tracer.to_json())
                return
            found = [self.tracer.to_json(), *(_told(control, rank) for rank in range(1, self._group.size()))]
            write_chrome(Path(path), merge([span for each in found for span in from_json(each)], self._offsets))
        except (Closed, ThinpipeError, OSError, ValueError) as error:
            _log.warning("the trace %s was not written: %s", path, str(error) or "the pipeline failed")


def _tell(control: Control, spans: Mapping[str, Any]) -> None:
    """Tells rank 0 the spans of this one, in pieces: between them, others hear that it is alive."""
    text = json.dumps(spans)
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    for number, piece in enumerate([*pieces, ""]):
        control.tell("trace", number, piece, to=0)


def _told(control: Control, rank: int) -> dict[str, Any]:
    pieces: list[str] = []
    while piece := control.wait_for("trace", len(pieces), rank, what="its trace"):
        pieces.append(piece)
    spans: dict[str, Any] = json.loads("".join(pieces))
    return spans
