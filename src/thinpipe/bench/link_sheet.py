"""Sets the figures of ``thinpipe bench link`` beside the ideal, and beside the bars they are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from thinpipe.bench.link import QUOTED
from thinpipe.bench.link_stage import Work
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, ratio

_NAMES = {
    "tdp_raw": "torch.distributed.pipelining 1F1B, float32",
    "raw": "thinpipe, float32",
    "coded": "thinpipe, 8 bits",
    "bare": "the messages alone",
}


@dataclass(frozen=True)
class Bar:
    """A ratio of the results that is to be at most, or at least, so much.

    Args:
        result: its name.
        text: what is asked.
        most: its limit from above (default: none).
        least: its limit from below (default: none).
    """

    result: str
    text: str
    most: float = float("inf")
    least: float = 0.0

    def cell(self, record: Record) -> str:
        """Tells what was asked, and what came of it."""
        value = record.results.get(self.result)
        if value is None:
            return f"{self.text}: not measured"
        return f"{self.text}: {value:.3f}, {'kept' if self.least <= value <= self.most else 'MISSED'}"


_BARS: dict[float | None, dict[str, Bar]] = {
    50e6: {
        "coded": Bar("coded_over_ideal", "at most 1.06 of ideal", most=1.06),
        "tdp_raw": Bar("tdp_raw_over_coded", "at least 4.5 of coded", least=4.5),
    },
    None: {"raw": Bar("raw_over_tdp_raw", "at most tdp_raw", most=1.0)},
}


def link_sheet(records: Sequence[Record]) -> Sheet:
    """Shows the time of a step of each variant at each bandwidth."""
    heads = ["bandwidth", "variant", "ms a step", "of ideal", "held to"]
    lines: list[list[str]] = []
    bars: dict[str, dict[str, float | None]] = {}
    for record in records:
        ideal = record.results["ideal_ms"]
        lines.append([record.row, "ideal, the wire free", f"{ideal:.0f}", "1.00", ""])
        bars[record.row] = {"ideal": ideal}
        # Bars are for the work they were set for, not for what merely tries the command.
        whole = record.settings["work"] == asdict(Work())
        asked_of = _BARS.get(record.settings["bits_per_second"], {}) if whole else {}
        for name in dict.fromkeys([*QUOTED, *record.samples]):
            value = record.results[f"{name}_ms"]
            over = ratio(value, ideal)
            asked = asked_of.get(name)
            lines.append(
                [
                    record.row,
                    f"{name}: {_NAMES.get(name, name)}",
                    "-" if value is None else f"{value:.0f}",
                    "-" if over is None else f"{over:.2f}",
                    asked.cell(record) if asked else "",
                ]
            )
            if name in QUOTED:
                bars[record.row][name] = value
    title = "Two processes and a wire"
    return Sheet(title, heads, lines, _notes(records), "ms a step", bars)


def _notes(records: Sequence[Record]) -> list[str]:
    works = dict.fromkeys(_work(record) for record in records)
    about = [f"{record.row}: {note}." for record in records for note in record.notes]
    return [*works, "Medians over rounds in which the variants took turns.", *about]


def _work(record: Record) -> str:
    work = record.settings["work"]
    return (
        f"{work['micros']} micro-batches through 2 stages that sleep {1e3 * work['forward']:.0f} ms forward and "
        f"{1e3 * work['backward']:.0f} ms backward; {record.settings['message_bytes'] / 1e6:.2f} MB a message each way."
    )
