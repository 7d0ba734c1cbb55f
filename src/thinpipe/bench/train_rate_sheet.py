"""Sets the rows of ``thinpipe bench train`` beside each other: how fast, how accurate, and what crossed the cuts."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.bench.memory import ON_CPU
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, notes_of
from thinpipe.bench.svg import Curve, plot

_HEADS = ["way", "codec", "samples/s", "steady", "with tests", "of one device", "epochs", "accuracy", "best"]
_NOTES = [
    "samples/s: over the seconds of all steps, in which batches are made and augmented, weights moved and states "
    "saved; steady: the median of epochs but the first; with tests: over all the time from the building of the model "
    "to the last saved state.",
    "of one device: samples/s over that of the row one-device of the same command; in brackets the same of steady.",
    "accuracy: after the last epoch, and the best after any. Ratio: bytes that crossed the cuts, both ways and in "
    "tests, too, over those of the tensors as they were. kB a sample are those of training.",
]
_MEMORY = "Peak memory: what was allocated, in brackets what was reserved; samples that are kept on the GPU are in it."


def train_rate_sheet(records: Sequence[Record]) -> Sheet:
    """Shows the rows of one recipe."""
    recipe = records[0].settings["recipe"]["name"]
    correlated = any(record.results["mcc"] is not None for record in records)
    heads = [*_HEADS, *(["MCC x 100"] if correlated else []), "ratio", "kB a sample", "peak memory"]
    lines = [_cells(record, correlated=correlated) for record in records]
    bars = {record.settings["row"]: {"samples/s": record.results["samples_per_second"]} for record in records}
    on_gpu = any(record.results["allocated_gib"] is not None for record in records)
    works = dict.fromkeys(map(_work, records))
    notes = [*works, *_NOTES, _MEMORY if on_gpu else f"{ON_CPU[0].upper()}{ON_CPU[1:]}.", *notes_of(records)]
    return Sheet(f"Training {recipe}, end to end", heads, lines, notes, "samples a second", bars)


def accuracy_picture(sheet: Sheet, records: Sequence[Record]) -> str:
    """Draws the accuracy after each epoch, a curve for each row."""
    curves = [
        Curve(
            record.settings["row"], [(k, 100 * value, 0.0) for k, value in enumerate(record.samples["accuracy"], 1)], n
        )
        for n, record in enumerate(records)
    ]
    return plot(sheet.title, "accuracy, %", "epoch", curves)


def _cells(record: Record, *, correlated: bool) -> list[str]:
    results, settings = record.results, record.settings
    stages = settings["settings"]["stages"]
    over, steady = results["of_one_device"], results["of_one_device_steady"]
    return [
        settings["way"] if stages is None else f"{stages} stages",
        settings["codec"] or "none",
        _figure(results["samples_per_second"], "{:,.0f}"),
        _figure(results["samples_per_second_steady"], "{:,.0f}"),
        _figure(results["samples_per_second_with_tests"], "{:,.0f}"),
        _beside(over, steady, "{:.3f}"),
        _figure(results["epochs"], "{:.0f}"),
        _figure(results["accuracy"], "{:.2%}"),
        _figure(results["best_accuracy"], "{:.2%}"),
        *([_hundredfold(results["mcc"])] if correlated else []),
        _figure(results["ratio"], "{:.4f}"),
        _figure(_kilobytes(results["bytes_per_sample"]), "{:,.1f}"),
        _beside(results["allocated_gib"], results["reserved_gib"], "{:.2f} GiB"),
    ]


def _work(record: Record) -> str:
    recipe, results = record.settings["recipe"], record.results
    compiled = ", compiled" if record.settings["settings"].get("compile") else ""
    return (
        f"{results['train_rows']:,} samples an epoch and {results['test_rows']:,} in a test, batches of "
        f"{recipe['batch']:,} in micro-batches: {recipe['chunks']}; {recipe['precision']}, seed {recipe['seed']}; cut "
        f"{recipe['cut']}, on {record.settings['device']}{compiled}."
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _kilobytes(size: float | None) -> float | None:
    return None if size is None else size / 1000


def _beside(value: float | None, other: float | None, form: str) -> str:
    return _figure(value, form) + ("" if other is None else f" ({form.format(other)})")


def _hundredfold(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
