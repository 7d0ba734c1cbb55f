"""How long rows were trained, beside how long the documents trained: what a difference to ``none`` depends on."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.reproduce.training.rows import Shown
from thinpipe.train import resolved


def epochs(rows: Sequence[Shown]) -> str:
    """Says for how many epochs rows of one work were trained, as ``10 of 40 epochs``.

    Args:
        rows: of one work, some of which are recorded.
    """
    ours = sorted({record.settings["recipe"]["epochs"] for each in rows for record in each.records})
    work = rows[0].row.work
    theirs = resolved(work.recipe, work.changes).epochs
    said = " to ".join(f"{count:g}" for count in dict.fromkeys((ours[0], ours[-1])))
    return f"{said} epochs" if ours == [theirs] else f"{said} of {theirs:g} epochs"
