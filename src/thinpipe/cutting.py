"""``thinpipe.split``: cuts any model at the names of its modules, by whichever way knows the model best.

::

    an nn.Sequential            between its layers                    stages/split.py
    a transformers model        by an adapter for its family          models/hf/
    any other, with an example  traced by torch.distributed.pipelining  stages/traced.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import nn

from thinpipe import arguments
from thinpipe.errors import SplitError
from thinpipe.models.hf import FAMILIES, cut_hf, even_cuts, run_uncut
from thinpipe.stages.cost import balance_cost
from thinpipe.stages.names import suggested, verify_names
from thinpipe.stages.parts import Split
from thinpipe.stages.split import sequences, verify_sequential

_OLDEST = 5
"""The first version of transformers whose models share the way of masks and layers that the adapters rely on."""


def split(
    model: nn.Module,
    at: Sequence[str] | None = None,
    *,
    stages: int | None = None,
    example: Any = None,
    all_tokens: bool = False,
) -> Split:
    """Cuts a model into stages at the names of its modules.

    ::

        split(model, at=["encoder.layer.4", "encoder.layer.8"])     three stages

    Args:
        model: an ``nn.Sequential``; a transformers model of a family that ``thinpipe.models.hf`` knows; or, with an
            example, any other model that ``torch.export`` can trace. Nothing of it is copied.
        at: the names, as in ``model.named_modules()``, of the modules with which a new stage begins, in their order. In
            a transformers model the name of the base model may be left out.
        stages: the number of stages, instead of names: layers are spread by their parameters.
        example: inputs by which the model is traced, of the size of a micro-batch: what ``model`` takes, a tuple or a
            dictionary if that is more than one thing. Needed for models that are neither of the first two.
        all_tokens: whether a last stage that is but the head of a classifier gets all tokens of a row, though it reads
            the first alone. By default only that one crosses the cut: of rows of 128 tokens a 128th, and nothing is
            lost.

    Returns:
        The stages, for ``Pipe`` or ``Pipeline``; and ``to_model()``.

    Raises:
        SplitError: there is no such place to cut, or the model cannot be cut at all.
    """
    if not isinstance(model, nn.Module):
        raise SplitError(f"split takes a model, an nn.Module, got {type(model).__name__}")
    if (at is None) == (stages is None):
        raise SplitError("split takes either names, at=['encoder.layer.4'], or a number of stages, stages=2")
    if isinstance(at, str):
        raise SplitError(f"at is a list of names, got a text; write at=[{at!r}]")
    if at is not None and not (isinstance(at, Sequence) and all(isinstance(name, str) for name in at)):
        raise SplitError(f"at is a list of names, as ['encoder.layer.4'], got {at!r:.100}")
    if stages is not None:
        stages = arguments.whole("stages", stages, error=SplitError)
    if is_adapted(model) or (_is_hf(model) and example is None):
        _verify_version()
        names = even_cuts(model, stages) if stages is not None else list(at or ())
        return cut_hf(model, names, all_tokens=all_tokens)
    if isinstance(model, nn.Sequential) and (example is None or at is None or set(at) <= set(model._modules)):
        verify_sequential(model)
        return _cut_sequential(model, _even(model, stages) if stages is not None else list(at or ()))
    if at is None:
        raise SplitError(
            f"{type(model).__name__} is no nn.Sequential, so it is cut at the names of its modules; instead of "
            f"stages={stages!r} pass at=[{suggested(model)!r}] and example=..., an input of the size of a micro-batch"
        )
    if example is None:
        raise SplitError(
            f"{type(model).__name__} is no nn.Sequential, and there is no adapter for it; pass example=..., an input "
            "of the size of a micro-batch, to have it traced"
        )
    from thinpipe.stages.traced import cut_traced  # what it needs takes seconds to import

    return cut_traced(model, list(at), example)


def is_adapted(model: nn.Module) -> bool:
    """Tells whether there is an adapter for a model."""
    config: Any = model.config if _is_hf(model) else None
    return config is not None and config.model_type in FAMILIES


def run_whole(model: nn.Module, inputs: Any) -> Any:
    """Runs the whole model on what enters the first stage of its split; returns what leaves the last one."""
    if is_adapted(model):
        return run_uncut(model, inputs)
    if isinstance(model, nn.Sequential):
        return model(inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def _is_hf(model: nn.Module) -> bool:
    # Whoever has such a model has imported transformers: nobody else has to.
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def _verify_version() -> None:
    version = str(sys.modules["transformers"].__version__)
    if int(version.split(".")[0]) < _OLDEST:
        raise SplitError(
            f'transformers {version} is too old, {_OLDEST} or newer is needed; pip install --upgrade "thinpipe[hf]"'
        )


def _cut_sequential(model: nn.Sequential, at: list[str]) -> Split:
    names = list(model._modules)
    verify_names(at, names[1:], asked=at)
    ends = [*(names.index(name) for name in at), len(names)]
    balance = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return Split(model, sequences(model, balance), at)


def _even(model: nn.Sequential, stages: int) -> list[str]:
    # One more for each, so that layers without parameters are not all the same to the balance.
    costs = [1 + sum(parameter.numel() for parameter in layer.parameters()) for layer in model]
    balance = balance_cost(costs, stages)
    return [list(model._modules)[end] for end in list(accumulate(balance))[:-1]]
