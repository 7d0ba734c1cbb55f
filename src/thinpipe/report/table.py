"""The rows of a run's table, as texts; a terminal or a page of markdown makes of them what it likes."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.finite import number_text
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.report.side_means import SideMean
from thinpipe.report.sides import Sides
from thinpipe.report.units import bytes_text, rate_text, time_text
from thinpipe.train.settings import Settings
from thinpipe.train.way import Way

Row = tuple[str, str, str]
"""Name, value and meaning."""

_SIDES = 4
"""Of more, a row tells the least and the most."""


def headline(run: Run, figures: Figures) -> str:
    """Says in a line what the run is and how it went."""
    recipe, where = run.origin.recipe, _where(run.origin.settings)
    reached = "not tested yet" if figures.accuracy is None else f"accuracy {figures.accuracy:.2%}"
    state = "" if figures.finished else ", not finished"
    return f"{recipe.name} {where}: {reached} after {figures.epochs} of {recipe.epochs} epochs{state}"


def rows(figures: Figures, sides: Sides, times: Sequence[SideMean]) -> list[Row]:
    """Lists the figures that there are, by the names of the run's sides.

    Args:
        figures: of the run.
        sides: who is meant by the bytes and peaks.
        times: what a batch cost each side.
    """
    table = [
        ("accuracy", number_text(figures.accuracy, ".2%"), "on the whole test set, through the same cuts"),
        ("Matthews", number_text(figures.mcc, ".4f"), "correlation on the whole test set"),
        ("best Matthews", number_text(figures.best_mcc, ".4f"), "of all epochs"),
        ("test loss", number_text(figures.test_loss, ".4f"), "on the whole test set"),
        ("training loss", number_text(figures.train_loss, ".4f"), "mean of the last epoch"),
        ("time per batch", time_text(figures.seconds), "median of full batches, without the first"),
        ("samples a second", number_text(figures.samples_per_second, ",.0f"), "trained, over all steps"),
    ]
    return [row for row in table if row[1]] + (
        [] if figures.network is None else _network(figures.network, sides, times)
    )


def _network(mean: dict[str, float], sides: Sides, times: Sequence[SideMean]) -> list[Row]:
    sizes = f"{bytes_text(mean['sent'])}, {bytes_text(mean['received'])}"
    table = [
        ("bytes per batch", sizes, f"{sides.there}, {sides.back}: all bytes"),
        ("ratio", f"{mean['ratio']:.2%}", "all bytes, heads and words included, of those of the tensors"),
    ]
    for name, field, meaning in (
        ("computation", "computed", "of a batch"),
        ("encode", "encode", "packing what is sent"),
        ("decode", "decode", "unpacking what came"),
        ("stall", "stalled", "waiting for others"),
    ):
        if any(getattr(side, field) for side in times):
            table.append((name, *_of_sides(times, field, meaning)))
    if sides.timed:
        over = rate_text(mean["bandwidth_over_computation"])
        table.append(("average bandwidth", over, "data over computation time, both ways"))
    table.append(("average bandwidth", rate_text(mean["bandwidth_over_wall"]), "data over wall time, both ways"))
    for side, prefix in ((sides.first, ""), (sides.second, "server_")):
        sent, received = mean[f"{prefix}peak_sent"], mean[f"{prefix}peak_received"]
        if sides.timed and (sent or received):
            said = f"{rate_text(sent)}, {rate_text(received)}"
            table.append((f"peak, {side}", said, "sent, received in the busiest 100 ms"))
    return table


def _of_sides(times: Sequence[SideMean], field: str, meaning: str) -> tuple[str, str]:
    values = [getattr(side, field) for side in times]
    if len(values) > _SIDES:
        return (
            f"{time_text(min(values))} to {time_text(max(values))}",
            f"{meaning}: {times[0].name} to {times[-1].name}",
        )
    return ", ".join(map(time_text, values)), f"{meaning}: {', '.join(side.name for side in times)}"


def _where(settings: Settings) -> str:
    codecs = f"codecs {settings.codec or 'none'} and {settings.grad_codec or 'none'}"
    match settings.way:
        case Way.CONNECTED:
            return f"with {settings.connect}, {codecs}"
        case Way.RANKS:
            return f"on {settings.ranks} ranks, {codecs}"
        case Way.DATA_PARALLEL:
            return f"on {settings.ranks} ranks, data parallel"
        case Way.IN_PROCESS:
            return f"cut in one process on {settings.device}, {codecs}"
        case Way.ONE_DEVICE:
            return f"on {settings.device}"
