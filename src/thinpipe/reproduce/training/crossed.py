"""What crossed each cut of a run, kept beside its log; whoever goes on with a run adds to what is written there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from thinpipe.checkpoint.disk import replace
from thinpipe.runtime.crossing import Flow
from thinpipe.train.log import EvaluationLine, StepLine

_FLOAT32 = 4


@dataclass(frozen=True)
class Crossing:
    """What crossed one cut, both ways together.

    Args:
        packed: bytes, headers included.
        raw: bytes of the tensors as they were, before a bottleneck made them small.
        elements: of those tensors.
    """

    packed: int = 0
    raw: int = 0
    elements: int = 0

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(self.packed + other.packed, self.raw + other.raw, self.elements + other.elements)

    @property
    def ratio(self) -> float | None:
        """Bytes over those of the tensors as they were; None before anything crossed."""
        return self.packed / self.raw if self.raw else None

    @property
    def float32_ratio(self) -> float | None:
        """Bytes over those of the tensors in float32, as Epipe counts; None before anything crossed."""
        return self.packed / (_FLOAT32 * self.elements) if self.elements else None

    @classmethod
    def of(cls, flows: Sequence[Flow]) -> Crossing:
        """Adds up both ways."""
        return sum((cls(flow.packed, flow.raw, flow.elements) for flow in flows), cls())


class Crossed:
    """Looks on, and writes down after each epoch what has crossed the cuts, tests included.

    Whoever stops within an epoch has it written down once more, with the state that is saved then.

    Args:
        path: the file; with one that is there, it adds to that.
        traffic: tells what has crossed since this process began.
    """

    def __init__(self, path: Path, traffic: Callable[[], Sequence[tuple[Flow, Flow]]]) -> None:
        self._path, self._traffic = path, traffic
        self._before = read_crossed(path)

    def stepped(self, line: StepLine) -> None:
        """Waits for the end of the epoch."""

    def evaluating(self, epoch: int) -> None:
        """Waits for the end of the test."""

    def evaluated(self, line: EvaluationLine) -> None:
        """Writes it down."""
        self.write()

    def write(self) -> None:
        """Writes down what has crossed until now."""
        now = [Crossing.of(flows) for flows in self._traffic()]
        before = self._before or [Crossing()] * len(now)
        replace(self._path, json.dumps([asdict(old + new) for old, new in zip(before, now, strict=True)]))


def read_crossed(path: Path) -> list[Crossing]:
    """Reads what was written down, a cut after the other; nothing where nothing was."""
    return [Crossing(**each) for each in json.loads(path.read_text())] if path.exists() else []
