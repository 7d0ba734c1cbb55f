"""A run among those of a report: its figures, a short name, and what it is drawn with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thinpipe.errors import TraceError
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.report.side_means import SideMean, side_means
from thinpipe.report.sides import Sides, sides_of
from thinpipe.trace.chrome import read_chrome
from thinpipe.trace.merged import Trace
from thinpipe.train.log import RunError
from thinpipe.train.recipe import RecipeError
from thinpipe.train.settings import Settings
from thinpipe.train.way import Way

_TRACE = "trace.json"
_LONGEST = 40
"""Letters of a name that a table has room for."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run of a report.

    Args:
        run: as it was read.
        figures: its numbers.
        label: what it is called beside the others, in a few letters.
        number: its place among the others, from 0, which decides about colour, dashes and marker.
        times: what a batch cost each of its sides; empty where nobody measured it.
        trace: of both sides; None where there is none, or none that can be read.
        trace_error: why it cannot be read.
    """

    run: Run
    figures: Figures
    label: str
    number: int
    times: Sequence[SideMean] = ()
    trace: Trace | None = None
    trace_error: str | None = None

    @property
    def settings(self) -> Settings:
        """How it was run."""
        return self.run.origin.settings

    @property
    def sides(self) -> Sides:
        """Who is meant by the numbers of its costs."""
        return sides_of(self.settings.way)

    @property
    def bytes(self) -> float | None:
        """Bytes of a batch, both ways; None where nothing crossed a network."""
        network = self.figures.network
        return None if network is None else network["sent"] + network["received"]

    @property
    def rate(self) -> float | None:
        """Bits a second of the emulated link, each way; None where the network was as it is."""
        try:
            return self.settings.rate()
        except RecipeError:  # of another version, which knew other units
            return None

    @property
    def link(self) -> str | None:
        """The same in words."""
        return None if self.rate is None else f"{self.rate / 1e6:,.6g} Mbit/s"


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Reads the runs of a report, with their traces.

    Raises:
        RunError: a folder has no run, or a damaged one; or there is no folder.
    """
    if not paths:
        raise RunError("a report is about one run at least; name its folder")
    runs = [Run.read(path) for path in paths]
    found = []
    for number, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        trace, error = _trace(run.path / _TRACE)
        entry = Entry(
            run=run,
            figures=Figures.of(run),
            label=label,
            number=number,
            times=side_means(run),
            trace=trace,
            trace_error=error,
        )
        found.append(entry)
    return found


def labels(runs: Sequence[Run]) -> list[str]:
    """Finds short names that tell runs apart: their codecs, or their folders, or at last their paths."""
    if len(runs) == 1:
        return [_short(runs[0].name) or str(runs[0].path)]
    ways = {run.origin.settings.way for run in runs}
    tries: tuple[Callable[[Run], str], ...] = (
        lambda run: codecs_text(run.origin.settings),
        lambda run: " ".join(dict.fromkeys((codecs_text(run.origin.settings), run.origin.settings.way.value))),
        lambda run: _short(run.name),
        lambda run: run.name,
        lambda run: str(run.path),
    )
    for attempt in tries if len(ways) == 1 else tries[1:]:
        found = [attempt(run) for run in runs]
        if len(set(found)) == len(found) and all(found):
            return found
    # The same folder, twice.
    seen: Counter[str] = Counter()
    for k, name in enumerate(found):
        seen[name] += 1
        found[k] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return found


def _short(name: str) -> str:
    """Takes the middle out of a long name: its ends tell it from others."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 16]}…{name[-15:]}"


def codecs_text(settings: Settings) -> str:
    """Names the codecs of both ways, or once if they are the same; the way of training where nothing is packed."""
    if settings.way in (Way.ONE_DEVICE, Way.DATA_PARALLEL):
        return settings.way.value
    there, back = settings.codec or "none", settings.grad_codec or "none"
    return there if there == back else f"{there} / {back}"


def _trace(path: Path) -> tuple[Trace | None, str | None]:
    try:
        return read_chrome(path), None
    except FileNotFoundError:
        return None, None
    except (TraceError, OSError) as error:
        return None, str(error)
