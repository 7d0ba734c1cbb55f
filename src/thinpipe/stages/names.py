"""Names at which a model may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from thinpipe.errors import SplitError


def verify_names(chosen: Sequence[str], cuttable: Sequence[str], *, asked: Sequence[str]) -> None:
    """Checks that a model can be cut at some names, in their order.

    Args:
        chosen: the names, as the model has them.
        cuttable: those at which it can be cut, in the order in which they run.
        asked: the names as the user wrote them.

    Raises:
        SplitError: there is no such place, or they are out of order; the message lists those there are.
    """
    places = {name: k for k, name in enumerate(cuttable)}
    for name, word in zip(chosen, asked, strict=True):
        if name not in places:
            raise SplitError(f"no stage can begin at '{word}'; the model can be cut at {listed(cuttable)}")
    order = [places[name] for name in chosen]
    if any(a >= b for a, b in pairwise(order)):
        raise SplitError(
            f"{', '.join(asked)} are not in the order in which they run; the model can be cut at {listed(cuttable)}"
        )


def suggested(model: nn.Module) -> str:
    """Names a module of a model where a cut is likely to make sense, for the example in an error message."""
    names = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
    return names[len(names) // 2] if len(names) > 1 else "encoder.4"


def listed(names: Sequence[str]) -> str:
    """Lists names; the middle ones are left out if there are many."""
    if not names:
        return "no place: it is one module"
    return ", ".join(names if len(names) <= 12 else [*names[:6], "...", *names[-4:]])
