"""The rows of a run's table, as texts; a terminal, a page of markdown or of HTML makes of them what it likes."""

from __future__ import annotations

from thinpipe.report.figures import Figures
from thinpipe.report.run import Run

Row = tuple[str, str, str]
"""Name, value and meaning."""


def headline(run: Run, figures: Figures) -> str:
    """Says in a line what the run is and how it went."""
    recipe, settings = run.origin.recipe, run.origin.settings
    where = f"on {settings.device}"
    if settings.connect:
        where = f"with {settings.connect}, codecs {settings.codec or 'none'} and {settings.grad_codec or 'none'}"
    reached = "not tested yet" if figures.accuracy is None else f"accuracy {figures.accuracy:.2%}"
    state = "" if figures.finished else ", not finished"
    return f"{recipe.name} {where}: {reached} after {figures.epochs} of {recipe.epochs} epochs{state}"


def rows(figures: Figures) -> list[Row]:
    """Lists the figures that there are."""
    table = [
        ("accuracy", _number(figures.accuracy, ".2%"), "on the whole test set, through the same cuts"),
        ("Matthews", _number(figures.mcc, ".4f"), "correlation on the whole test set"),
        ("best Matthews", _number(figures.best_mcc, ".4f"), "of all epochs"),
        ("test loss", _number(figures.test_loss, ".4f"), "on the whole test set"),
        ("training loss", _number(figures.train_loss, ".4f"), "mean of the last epoch"),
        ("time per batch", _time(figures.seconds), "median of full batches, without the first"),
        ("samples a second", _number(figures.samples_per_second, ",.0f"), "trained, over all steps"),
    ]
    return [row for row in table if row[1]] + ([] if figures.network is None else _network(figures.network))


def _network(mean: dict[str, float]) -> list[Row]:
    def both(name: str) -> str:
        return f"{_time(mean[name])}, {_time(mean[f'server_{name}'])}"

    def peaks(side: str) -> str:
        return f"{_rate(mean[f'{side}peak_sent'])}, {_rate(mean[f'{side}peak_received'])}"

    return [
        (
            "bytes per batch",
            f"{_size(mean['sent'])}, {_size(mean['received'])}",
            "client to server, and back: all bytes",
        ),
        ("ratio", f"{mean['ratio']:.2%}", "all bytes, heads and words included, of those of the tensors"),
        ("computation", both("computed"), "of a batch: client, server"),
        ("encode", both("encode"), "client, server; beside the computation"),
        ("decode", both("decode"), "client, server; beside the computation"),
        ("stall", both("stalled"), "waiting for the other: client, server"),
        ("average bandwidth", _rate(mean["bandwidth_over_computation"]), "data over computation time, both ways"),
        ("average bandwidth", _rate(mean["bandwidth_over_wall"]), "data over wall time, both ways"),
        ("peak at the client", peaks(""), "sent, received in the busiest 100 ms"),
        ("peak at the server", peaks("server_"), "sent, received in the busiest 100 ms"),
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _time(value: float | None) -> str:
    return "" if value is None else f"{1e3 * value:,.1f} ms"


def _size(value: float) -> str:
    return f"{value / 1e6:,.3f} MB"


def _rate(value: float) -> str:
    return f"{8e-6 * value:,.2f} Mbit/s"
