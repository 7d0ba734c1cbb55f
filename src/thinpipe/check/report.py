"""Tells how a check ended: tables for people, one JSON object for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from thinpipe.check.cases import REPLAY, Result
from thinpipe.check.compare import Difference
from thinpipe.check.step import QUANTITIES

WIDTH = 140
"""The width of the tables where no terminal tells its own, so that a log folds no line."""


@dataclass(frozen=True)
class Report:
    """Everything a check has to tell.

    Args:
        target: the factory, as the user named it.
        facts: how the check was made, in a line.
        notes: what the comparison did about the model's peculiarities.
        results: how every case ended.
        tolerance: what counted as rounding.
    """

    target: str
    facts: str
    notes: list[str]
    results: list[Result]
    tolerance: float

    @property
    def equal(self) -> bool:
        """Whether every case is within the tolerance; a check without cases proves nothing."""
        return bool(self.results) and all(result.equal for result in self.results)

    @property
    def worst(self) -> Result | None:
        """The case that is worst: one that failed with an error before any that differ."""
        return max(self.results, key=lambda result: (bool(result.error), _value(result)), default=None)

    def verdict(self) -> str:
        """Sums the check up in a sentence."""
        worst = self.worst
        if worst is None:
            return "nothing to check: the model draws random numbers, and --checkpoint never recomputes nothing"
        if self.equal:
            return f"{self._counted()}; {_told(worst)} (tolerance {self.tolerance:g})"
        return f"NOT {self._counted()}; the worst is {worst.case}: {worst.error or _told(worst)}"

    def _counted(self) -> str:
        """Says what the cases are equal to, and how many are; or how many are not, if any is not."""
        replays = [result for result in self.results if result.case.against == REPLAY]
        others = [result for result in self.results if result.case.against != REPLAY]
        alone = any(not result.case.split for result in others)
        kinds = {
            "equal to one device" + (" that runs twice" if alone else ""): others,
            "equal to its own recomputation": replays,
        }
        return ", ".join(
            f"{words} in {self._count(results)}"
            for words, results in kinds.items()
            if results and (self.equal or not all(result.equal for result in results))
        )

    def _count(self, results: list[Result]) -> str:
        total = f"{len(results)} case{'' if len(results) == 1 else 's'}"
        return total if self.equal else f"{sum(not result.equal for result in results)} of {total}"

    def show(self, console: Console) -> None:
        """Prints the tables and the verdict."""
        console.print(f"[bold]{escape(self.target)}[/bold]: {escape(self.facts)}")
        for note in self.notes:
            console.print(f"note: {escape(note)}")
        console.print(self._cases())
        console.print(self._quantities())
        for line in self._explanations():
            console.print(escape(line))
        console.print(f"[bold {'green' if self.equal else 'red'}]{escape(self.verdict())}[/]")

    def _cases(self) -> Table:
        table = _table(
            "split", "chunks", "checkpoint", "compared with", "worst quantity", "in", "difference", "verdict"
        )
        for result in self.results:
            case, worst = result.case, result.worst
            table.add_row(
                ",".join(map(str, case.split)) or "one device",
                str(case.chunks),
                case.checkpoint,
                case.against,
                *((worst.quantity, escape(worst.tensor), _number(worst)) if worst else ("", "", "")),
                "[green]equal[/]" if result.equal else "[red]failed[/]" if result.error else "[red]different[/]",
            )
        return table

    def _quantities(self) -> Table:
        table = _table("quantity", "largest difference", "in", "case")
        for quantity, (difference, result) in self._largest().items():
            table.add_row(quantity, _number(difference), escape(difference.tensor), f"{result.case}")
        return table

    def _largest(self) -> dict[str, tuple[Difference, Result]]:
        """Finds for each quantity its largest difference over all cases."""
        largest: dict[str, tuple[Difference, Result]] = {}
        for quantity in QUANTITIES:
            found = [(d, result) for result in self.results for d in result.differences if d.quantity == quantity]
            if found:
                largest[quantity] = max(found, key=lambda pair: pair[0].value)
        return largest

    def _explanations(self) -> Iterator[str]:
        """Explains what went wrong, each thing once, with the first case it happened in."""
        told: set[str] = set()
        for result in self.results:
            reason = result.worst.reason if result.worst else ""
            for text in filter(None, (result.error, reason, result.hint)):
                if text not in told:
                    told.add(text)
                    yield f"{result.case}: {text}"

    def as_json(self) -> dict[str, Any]:
        """Puts the check into plain values, for ``json.dumps``."""
        return {
            "target": self.target,
            "equal": self.equal,
            "verdict": self.verdict(),
            "tolerance": self.tolerance,
            "facts": self.facts,
            "notes": self.notes,
            "largest": {name: _plain(difference) for name, (difference, _) in self._largest().items()},
            "cases": [
                {
                    "split": list(result.case.split),
                    "chunks": result.case.chunks,
                    "checkpoint": result.case.checkpoint,
                    "against": result.case.against,
                    "equal": result.equal,
                    "worst": result.worst.quantity if result.worst else None,
                    "differences": {difference.quantity: _plain(difference) for difference in result.differences},
                    "error": result.error or None,
                    "hint": result.hint or None,
                }
                for result in self.results
            ],
        }


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _value(result: Result) -> float:
    return result.worst.value if result.worst else 0.0


def _number(difference: Difference) -> str:
    return f"{difference.value:.1e}" if math.isfinite(difference.value) else "incomparable"


def _told(result: Result) -> str:
    if result.worst is None:
        return "nothing was compared"
    return f"largest difference {_number(result.worst)}, {result.worst.quantity} '{result.worst.tensor}'"


def _plain(difference: Difference) -> dict[str, Any]:
    # JSON has no infinity.
    value = difference.value if math.isfinite(difference.value) else None
    return {"tensor": difference.tensor, "difference": value, "reason": difference.reason or None}
