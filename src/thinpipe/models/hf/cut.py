"""Cuts a transformers model into stages: the real model, with its mask, its names and its own code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from thinpipe.errors import SplitError
from thinpipe.models.hf.anatomy import Anatomy
from thinpipe.models.hf.stage import HfStage, output_of, settings_of
from thinpipe.stages.cost import balance_cost
from thinpipe.stages.names import verify_names
from thinpipe.stages.part import Part
from thinpipe.stages.parts import Split


def cut_hf(model: nn.Module, at: Sequence[str], *, all_tokens: bool = False) -> Split:
    """Cuts a transformers model.

    Args:
        model: the model, of a family that thinpipe knows.
        at: the modules that begin a stage, named as in the model or as in its base model.
        all_tokens: whether all tokens go to a last stage that is but a head, even if it reads the first alone
            (default: those that it reads).

    Raises:
        SplitError: the model, or a name, is not known; or what all layers read is to be trained.
    """
    anatomy = Anatomy.of(model)
    chosen = [name if name in anatomy.cuttable else anatomy.prefix + name for name in at]
    verify_names(chosen, anatomy.cuttable, asked=at)
    if chosen:
        _verify_frozen(anatomy)
    begins = [organ.name in chosen for organ in anatomy.organs]
    owners = list(accumulate(map(int, begins)))
    stages: list[nn.Module] = []
    # A head that reads one token needs but that one of the stage before it, if no layer comes with the head.
    narrow = anatomy.reads_first and not all_tokens and owners.count(len(chosen)) == 1
    for j in range(len(chosen) + 1):
        modules = [
            name for organ, owner in zip(anatomy.organs, owners, strict=True) if owner == j for name in organ.modules
        ]
        first_token = narrow and j == len(chosen) - 1
        run = HfStage(anatomy, modules, first=j == 0, last=j == len(chosen), first_token=first_token)
        stages.append(Part(run.body, run))
    return Split(model, stages, chosen)


def _verify_frozen(anatomy: Anatomy) -> None:
    for name in anatomy.copied:
        if any(parameter.requires_grad for parameter in anatomy.model.get_submodule(name).parameters()):
            raise SplitError(
                f"all layers read '{name}', so every stage gets a copy of it, and copies would be trained apart; "
                f"freeze it: model.{name}.requires_grad_(False)"
            )


def even_cuts(model: nn.Module, stages: int) -> list[str]:
    """Chooses where to cut so that the stages have about the same number of parameters in their layers."""
    anatomy = Anatomy.of(model)
    ends = list(accumulate(balance_cost(anatomy.costs, stages)))[:-1]
    return [anatomy.organs[1:-1][end].name for end in ends]


def run_uncut(model: nn.Module, batch: Any) -> Any:
    """Runs the whole model on a batch as the first stage takes it; returns what the last stage would."""
    settings = settings_of(model)
    return output_of(model(batch, **settings) if isinstance(batch, Tensor) else model(**batch, **settings))
