"""Reads the texts of the command line: lists, shapes, splits, devices."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from thinpipe.balance import balance_by_time
from thinpipe.check.cases import Cut
from thinpipe.check.target import Target, UsageError, described
from thinpipe.cutting import is_adapted, split
from thinpipe.runtime.pipe import CHECKPOINT_MODES
from thinpipe.stages.microbatch import Batch
from thinpipe.stages.names import suggested

_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::([a-z0-9]+))?\Z")


def read_numbers(text: str, option: str) -> tuple[int, ...]:
    """Reads positive integers with commas between them."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{option} takes positive integers with commas between them, as 2,2; got {text!r}")
    return numbers


def read_modes(text: str) -> tuple[str, ...]:
    """Reads checkpoint modes with commas between them."""
    modes = tuple(part.strip() for part in text.split(","))
    for mode in modes:
        if mode not in CHECKPOINT_MODES:
            raise UsageError(f"{mode!r} is no checkpoint mode; choose among {', '.join(CHECKPOINT_MODES)}")
    return tuple(dict.fromkeys(modes))


def read_devices(text: str | None) -> list[torch.device]:
    """Reads devices with commas between them; without a text, all GPUs, or the CPU where there are none."""
    if text is None:
        return [torch.device("cuda", k) for k in range(torch.cuda.device_count())] or [torch.device("cpu")]
    try:
        return [torch.device(part.strip()) for part in text.split(",")]
    except RuntimeError as error:
        raise UsageError(f"--devices takes devices with commas between them, as cuda:0,cuda:1; {error}") from error


def verify_words(model: nn.Module, balances: list[str], places: list[str]) -> None:
    """Checks that a model can be cut in the way that the command line says.

    Raises:
        UsageError: it cannot; the message says in which it can.
    """
    if isinstance(model, nn.Sequential) or places:
        return
    kind = type(model).__name__
    if not is_adapted(model):
        raise UsageError(
            f"module must be nn.Sequential, or a transformers model, to be cut by numbers, and this is a {kind}; name "
            f"the modules that begin a stage, as for thinpipe.split: --at {suggested(model)}"
        )
    if balances:
        raise UsageError(f"--balance counts the layers of an nn.Sequential, and this is a {kind}; use --at or --stages")


def read_splits(
    balances: list[str], places: list[str], stages: list[int], target: Target, device: torch.device
) -> tuple[Cut, ...]:
    """Reads balances and names, and finds a cut for every number of stages; without any of them, for two stages.

    Args:
        balances: texts such as ``2,2``.
        places: texts such as ``encoder.layer.2,encoder.layer.4``.
        stages: numbers of stages to balance, by time where layers can be timed.
        target: the model to be cut, and its inputs.
        device: where its layers are timed.
    """
    splits: list[Cut] = [read_numbers(text, "--balance") for text in balances]
    splits += [tuple(name.strip() for name in text.split(",")) for text in places]
    for n in stages or ([] if splits else [2]):
        try:
            splits.append(_even(target, n if stages else min(n, _most(target.model)), device))
        except Exception as error:
            raise UsageError(f"cannot balance the model over {n} stages: {described(error)}") from error
    return tuple(dict.fromkeys(splits))


def _most(model: nn.Module) -> int:
    return len(model) if isinstance(model, nn.Sequential) else 2


def _even(target: Target, n: int, device: torch.device) -> Cut:
    if not isinstance(target.model, nn.Sequential):
        return split(target.model, stages=n).at
    sample = Batch.of(target.inputs, 1).whole()
    return tuple(balance_by_time(n, target.model, sample, timeout=0.3, device=device))


def random_input(text: str, *, high: int | None, dtype: torch.dtype) -> Tensor:
    """Draws a batch from a text such as ``16x3x32x32`` or ``16x128:int64``.

    Args:
        text: the shape, rows first; after a colon the type, if it is not floating-point.
        high: for integers, which are drawn from 0 to ``high - 1``.
        dtype: the floating-point type the check is made in.
    """
    match = _SHAPE.match(text)
    kind = dtype if match and match[2] is None else getattr(torch, match[2], None) if match else None
    if match is None or not isinstance(kind, torch.dtype):
        raise UsageError(f"{text!r} is no shape; write the rows and the other sizes, as 16x3x32x32 or 16x128:int64")
    shape = [int(size) for size in match[1].split("x")]
    if kind.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    if high is None or high < 1:
        raise UsageError(f"{text} needs --high N, one more than the largest integer the model takes (its vocabulary)")
    return torch.randint(high, shape, dtype=kind)


def with_inputs(target: Target, shape: str | None, high: int | None, dtype: torch.dtype) -> Target:
    """Draws a batch of a shape, where one is given.

    Raises:
        UsageError: there is no such shape, and the factory returned no batch either.
    """
    if shape is not None:
        return Target(target.model, random_input(shape, high=high, dtype=dtype), target.loss)
    if target.inputs is None:
        raise UsageError(
            "the factory returns a model and no inputs; return (model, inputs), or give a shape: --input 16x3x32x32"
        )
    return target
