"""Shows where the time of a data parallel step goes, and what Epipe's timers made of its own."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.bench.data_parallel_replica import OPTIMIZERS
from thinpipe.bench.documents import TIMED, Timed, timed
from thinpipe.bench.record import Record
from thinpipe.bench.shapes import ROBERTA, VGG
from thinpipe.bench.sheet import Sheet, notes_of

_HEADS = ["row", "batch", "optimizer", "step", "data", "forward", "backward", "all-reduce", "by itself", "update"]
_HEADS += ["sum/step", "backward timer", "published", "batch, published", "step and data, published"]
_NOT_RUN = "not run"
_PARAMETERS = (
    "Millions of parameters, and what Epipe's report says: MobileNetV2 2.24 with 10 classes (2), RoBERTa-base 124.65 "
    "(123), VGG13 128.99 with 10 classes and 133.05 with 1,000 (133.05), ResNet-101 44.55 (44). It lists an AmoebaNet "
    "of 3 million, too, and does not say of which size."
)


def data_parallel_sheet(records: Sequence[Record], rows: Sequence[Timed] = ()) -> Sheet:
    """Shows the parts of a step of each optimizer.

    Args:
        records: of any rows.
        rows: Epipe's that are shown even if they were not run (default: none).
    """
    lines, bars = [], {}
    for record in records:
        for name in OPTIMIZERS:
            lines.append(_line(record, name))
            bars[f"{record.row}, {name}"] = {
                "forward": record.results[f"{name}_forward_ms"],
                "backward": record.results["backward_alone_ms"],
                "all-reduce, not hidden": record.results[f"{name}_all_reduce_ms"],
                "update": record.results[f"{name}_optimizer_ms"],
            }
    run = {(record.settings["model"], record.settings["processes"]) for record in records}
    lines += [_unrun(row) for row in rows if (row.model, row.devices) not in run]
    notes = [
        "Ms, medians over rounds in which all took turns. Batch: of each process; on a CPU smaller than Epipe's. Step: "
        "as anybody takes it, waiting for nothing. Its parts: all ranks wait for each other, and for the GPU if there "
        "is one, at both ends; sum/step tells if they agree.",
        "Backward: without an exchange of gradients (no_sync). All-reduce: how much longer backward takes with the "
        "exchange; it can be negative where that is less than the noise of two measurements. By itself: the exchange "
        "of the same buckets while nothing computes. Their difference is what the backward hides.",
        "Backward timer: backward of the same step by a clock that is read where Epipe's timer reads its own. "
        'Published: Epipe\'s in "speed and acc", on as many GPUs; it has in it the all-reduce and the optimizer, and '
        "on a GPU whatever of the forward is still queued. On a CPU nothing is queued. Epipe's step has in it the wait "
        "for a loader of 12 processes a GPU, which it calls data transfer; our data is made by one thread of rows that "
        "lie in memory. Neither is set beside one of ours. The 16 rows of MobileNetV2 on 4 GPUs are what is printed; "
        "the times are those of 64.",
        _PARAMETERS,
        *(_answer(record) for record in records),
        *documents_say(),
        *notes_of(records),
    ]
    return Sheet("Data parallel, parts of a step", _HEADS, lines, notes, "ms", bars)


def every_row(records: Sequence[Record]) -> Sheet:
    """Shows all of Epipe's rows, those that were not run among them."""
    return data_parallel_sheet(records, TIMED)


def _line(record: Record, name: str) -> list[str]:
    def ms(result: str) -> str:
        return f"{record.results[result]:.1f}"

    return [
        record.row,
        str(record.settings["rows"]),
        name,
        ms(f"{name}_whole_ms"),
        ms(f"{name}_data_ms"),
        ms(f"{name}_forward_ms"),
        ms("backward_alone_ms"),
        ms(f"{name}_all_reduce_ms"),
        ms("all_reduce_alone_ms"),
        ms(f"{name}_optimizer_ms"),
        f"{record.results[f'{name}_phases_over_whole']:.2f}",
        ms(f"{name}_timer_backward_ms"),
        *_published(timed(record.settings["model"], name, record.settings["processes"])),
    ]


def _unrun(row: Timed) -> list[str]:
    between = len(_HEADS) - 3 - len(_published(row))
    return [f"{row.model}-{row.devices}", _NOT_RUN, row.optimizer, *(["-"] * between), *_published(row)]


def _published(theirs: Timed | None) -> tuple[str, str, str]:
    if theirs is None:
        return "-", "-", "-"
    return f"{1e3 * theirs.backward:.0f}", str(theirs.batch), f"{1e3 * theirs.step:.0f}, {1e3 * theirs.data:.0f}"


def _answer(record: Record) -> str:
    """Says what AdamW costs, in the record's own figures."""
    results, settings = record.results, record.settings
    sgd, adamw, fused = (results[f"{name}_optimizer_ms"] or 0.0 for name in OPTIMIZERS)
    megabytes = 4 * sum(settings["buckets"]) / 1e6
    rows = f"{settings['rows']} rows of {settings['size']} {'tokens' if settings['model'] == ROBERTA else 'pixels'}"
    more = (adamw - sgd) / (results["adamw_whole_ms"] or 1)
    return (
        f"{record.row} ({rows} a process, {settings['threads']} threads): the update takes {adamw:.1f} ms with AdamW "
        f"as PyTorch runs it by default, {fused:.1f} ms with the fused one and {sgd:.1f} ms with SGD; AdamW's is "
        f"{more:.0%} of its step more. All sum the same {megabytes:.1f} MB in {len(settings['buckets'])} buckets, "
        f"which takes {results['all_reduce_alone_ms']:.1f} ms by itself."
    )


def documents_say() -> list[str]:
    """Recalculates Epipe's conclusion, that AdamW is why RoBERTa is slow, from its own tables."""

    def more(model: str, of: str, devices: int) -> float:
        adamw, sgd = (_found(model, optimizer, devices) for optimizer in ("adamw", "sgd"))
        return 1e3 * float(getattr(adamw, of) - getattr(sgd, of))

    def growth(optimizer: str, of: str) -> float:
        four, two = (_found(ROBERTA, optimizer, devices) for devices in (4, 2))
        return 1e3 * float(getattr(four, of) - getattr(two, of))

    slower = {of: growth("adamw", of) for of in ("step", "data", "backward")}
    slower_sgd = {of: growth("sgd", of) for of in slower}
    return [
        "Epipe's report finds AdamW to be why RoBERTa is slow: with SGD its step on 2 GPUs takes "
        f"{more(ROBERTA, 'step', 2):.0f} ms less, {more(ROBERTA, 'backward', 2):.0f} of them in what it calls "
        f"backward. But on VGG13, with as many parameters to update, AdamW adds {more(VGG, 'backward', 2):.0f} ms to "
        "it. That timer has the all-reduce, the optimizer and what is queued of the forward in it, and cannot tell "
        "them apart.",
        "What it set out to explain, that RoBERTa gains little from more GPUs, is there with either optimizer: from "
        f"2 to 4 GPUs its step grows by {slower['step']:.0f} ms with AdamW and by {slower_sgd['step']:.0f} ms with "
        f"SGD. Of these, {slower['data']:.0f} and {slower_sgd['data']:.0f} are the wait for data, and all that the "
        f"all-reduce and the optimizer can be part of is {slower['backward']:.0f} and {slower_sgd['backward']:.0f}.",
    ]


def _found(model: str, optimizer: str, devices: int) -> Timed:
    return next(row for row in TIMED if (row.model, row.optimizer, row.devices) == (model, optimizer, devices))
