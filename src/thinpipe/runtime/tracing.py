"""Records what a rank does, and writes one trace of all ranks, on one clock."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist

from thinpipe.errors import ThinpipeError
from thinpipe.runtime.agreement import gathered
from thinpipe.trace import NO_TRACE, SAME, AnyTracer, Offset, Tracer, estimate, from_json, merge, write_chrome

_log = logging.getLogger("thinpipe")

_SAMPLES = 10
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
        if path is not None:
            self._compare_clocks()

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

    def write(self) -> None:
        """Brings the spans of all ranks together, and has rank 0 write them; all ranks call it."""
        if self._path is None:
            return
        path, self._path = self._path, None
        try:
            found = gathered(self._group, self.tracer.to_json(), timeout=60.0)
            if self._group.rank() == 0:
                write_chrome(Path(path), merge([span for each in found for span in from_json(each)], self._offsets))
        except (ThinpipeError, OSError) as error:
            _log.warning("the trace %s was not written: %s", path, error)
