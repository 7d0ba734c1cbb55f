"""What a table of trained rows is made of: works, rows that train one of them with codecs, and Epipe's figures.

A row's name is that of its file, less the seed::

    results/sortquant-cifar10/sort6+2-seed0.json
            table             row     seed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from thinpipe.train.per_cut import codecs_in

Measure: TypeAlias = Literal["accuracy", "mcc"]
POOLED = "pooled"
"""The cut that every work has beside Epipe's own."""
NONE = "none"
_BETWEEN = re.compile(r"[/|]")


@dataclass(frozen=True, kw_only=True)
class Published:
    """What Epipe says of a row; accuracies and correlations as shares of 1.

    Args:
        value: the accuracy or correlation; None where they have a row and no figure.
        upto: the greatest one, where they have several (default: they have one).
        deviation: printed after it; over how many runs, and which deviation, they do not say (default: none is).
        ratio: the bits that a number has over 32, or what their formula gives for a rank (default: none is printed).
        curve: points that can be read off a plot by epoch (default: none).
        note: where it comes from, if not from the table itself (default: it does).
    """

    value: float | None = None
    upto: float | None = None
    deviation: float | None = None
    ratio: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What some rows train.

    Args:
        label: in tables and plots.
        recipe: its name.
        cuts: where its model can be cut, the published place first.
        measure: what its rows are judged by.
        samples: how many Epipe trained on, and tested with.
        changes: what is different from the recipe's defaults.
        tiny_recipe: the recipe of the small work of the same shape.
        tiny: what is different from that one's defaults; its cut is for rows whose own cut that recipe does not have.
        prefix: of its rows' names, in a table with several works (default: none).
    """

    label: str
    recipe: str
    cuts: tuple[str, ...]
    measure: Measure = "accuracy"
    samples: tuple[int, int]
    changes: Mapping[str, Any]
    tiny_recipe: str
    tiny: Mapping[str, Any]
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Bottlenecks at the cuts, which are trained with the model.

    Args:
        text: one for each cut, as ``conv:20k4s4/conv:320``.
        tiny: those of the small work.
        fitted: whether they begin with what loses least of the samples, or with what is known of any (default: they
            are fitted).
    """

    text: str
    tiny: str
    fitted: bool = True

    @property
    def name(self) -> str:
        """In the names of rows."""
        return _named(self.text) + ("" if self.fitted else "-unfitted")

    def fields(self, *, tiny: bool) -> dict[str, Any]:
        """Says the same in the fields of a recipe."""
        said: dict[str, Any] = {"bottleneck": self.tiny if tiny else self.text}
        return said if self.fitted else said | {"bottleneck_fit": 0}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Args:
        work: what it trains.
        codec: packs activations, and gradients alike; as ``power:3/power:7`` one for each cut.
        series: the line in the plot that it is a point of.
        published: Epipe's figures (default: they have none).
        elsewhere: a cut that is not the published one (default: that is where the model is cut).
        learned: bottlenecks, on top of which the codec is (default: there are none).
        gradients: packs gradients (default: what packs activations).
    """

    work: Work
    codec: str
    series: str
    published: Published = field(default_factory=Published)
    elsewhere: str | None = None
    learned: Learned | None = None
    gradients: str | None = None

    @property
    def name(self) -> str:
        """Of the row."""
        codec = "" if self.learned is not None and self.codec == NONE else _named(self.codec)
        learned = "" if self.learned is None else self.learned.name
        back = "" if self.gradients is None else f"back-{_named(self.gradients)}"
        return "-".join(filter(None, (self.work.prefix, learned, codec, back, self.elsewhere or "")))

    @property
    def cut(self) -> str:
        """Where the model is cut."""
        return self.elsewhere or self.work.cuts[0]

    @property
    def both(self) -> str:
        """What packs activations and, if it is something else, gradients."""
        return self.codec if self.gradients is None else f"{self.codec}, back {self.gradients}"

    @property
    def codecs(self) -> tuple[str, str]:
        """The codec of each cut."""
        words = codecs_in(self.codec)
        return words[0], words[-1]

    @property
    def packs(self) -> str | None:
        """What is told whoever trains; None where tensors cross as they are."""
        return None if self.codec == NONE else self.codec

    @property
    def packs_back(self) -> str | None:
        """The same of gradients."""
        return self.packs if self.gradients is None else self.gradients

    def at(self, cut: str) -> Row:
        """Returns the row with the model cut at another place, of which nothing is published."""
        return self if cut == self.cut else replace(self, elsewhere=cut, published=Published())


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Args:
        name: of the command.
        title: above it.
        about: what it shows, in a line.
        rows: in their order.
        source: what Epipe's figures are.
        needs: what it takes.
        time: about how long it takes.
        by_epoch: whether the plot has a curve for each row, by epoch, and not a line for each series by ratio.
        curves: codecs whose rows have another plot, with curves by epoch (default: none).
        page: the page that shows it, without its ending.
        seeds: those that each row is trained with, unless told otherwise (default: three).
        draws: whether a row is in pictures and in the overview of the page (default: every row is).
        served: whether a client and a server train it, each in a process of its own (default: one process does).
    """

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    source: str
    needs: str
    time: str
    by_epoch: bool = False
    curves: tuple[str, ...] = ()
    page: str = "results"
    seeds: tuple[int, ...] = (0, 1, 2)
    draws: Callable[[Row], bool] = lambda _: True
    served: bool = False

    @property
    def works(self) -> tuple[Work, ...]:
        """What its rows train, each once."""
        found = {row.work.label: row.work for row in self.rows}
        return tuple(found.values())

    @property
    def cuts(self) -> tuple[str, ...]:
        """The cuts that its works have, each once."""
        return tuple(dict.fromkeys(cut for work in self.works for cut in work.cuts))

    def cut_at(self, cuts: Iterable[str] | None = None) -> tuple[Row, ...]:
        """Lists the rows with every one of some cuts; bottlenecks are made for the tensors of one, and stay there.

        Args:
            cuts: which; a row whose work does not have one of them is left out there (default: all that each has).
        """
        return tuple(
            row.at(cut)
            for cut in (self.cuts if cuts is None else cuts)
            for row in self.rows
            if cut in row.work.cuts and (row.learned is None or row.cut == cut)
        )


def _named(text: str) -> str:
    """Makes a part of a file's name of codecs or bottlenecks."""
    return _BETWEEN.sub("-", text.replace(":", "").replace(",", "-"))
