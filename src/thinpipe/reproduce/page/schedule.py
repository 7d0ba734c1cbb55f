"""How long rows were trained, beside how long Epipe trained: what a difference to ``none`` depends on."""

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
    theirs = resolved(work.recipe, {**work.changes, "cut": work.cuts[0]}).epochs
    said = " to ".join(f"{count:g}" for count in dict.fromkeys((ours[0], ours[-1])))
    return f"{said} epochs" if ours == [theirs] else f"{said} of {theirs:g} epochs"


def samples(rows: Sequence[Shown]) -> str:
    """Says on how many samples rows of one work were trained, as ``15,000 of 50,000 samples``.

    Args:
        rows: of one work, some of which are recorded.
    """
    ours = sorted({record.results["train_rows"] or 0 for each in rows for record in each.records})
    theirs, _ = rows[0].row.work.samples
    said = " to ".join(f"{count:,.0f}" for count in dict.fromkeys((ours[0], ours[-1])))
    return f"{said} samples" if ours == [theirs] else f"{said} of {theirs:,} samples"
