"""What codecs at the cuts do to a model's outputs and gradients: one step each, beside the step without a codec.

All steps are cut alike and begin with the same seed, so that they draw the same random numbers; dropout stays on.

Activations and gradients are packed apart, since they do different harm::

    activations    x ~~> ŷ    what comes out is wrong, and so are the gradients of all parameters
    gradients      ĝ <~~ g    what comes out is right, and so are the gradients behind the last cut
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe import Pipe
from thinpipe.check.cases import Cut
from thinpipe.check.runner import parts_of
from thinpipe.check.step import Tensors, pipe_step
from thinpipe.check.subject import Subject
from thinpipe.check.target import UsageError, described

_ALIKE = 1e-4
"""What GPUs that add in another order may differ by."""


@dataclass(frozen=True)
class Probed:
    """What a codec does; errors are the length of what is wrong over the length of what is right.

    Args:
        codec: its text.
        bits: of an element that crosses a cut, the mean of both ways, headers included.
        outputs: their error, with activations packed.
        gradients: that of all parameters together, with activations packed.
        back: that of each stage's parameters, with gradients packed; None where a stage has none.
    """

    codec: str
    bits: float
    outputs: float
    gradients: float
    back: tuple[float | None, ...]


@dataclass(frozen=True)
class _Step:
    outputs: Tensors
    gradients: Tensors
    stages: tuple[frozenset[str], ...]
    bits: tuple[float, ...]


class Probe:
    """Takes steps of one model with different codecs.

    Args:
        subject: the model, its batch and its loss.
        cut: where it is cut.

    Raises:
        UsageError: it cannot be cut so, does not run, or does not do the same twice.
    """

    def __init__(self, subject: Subject, cut: Cut) -> None:
        self._subject, self._cut = subject, cut
        try:
            self._right, again = self._step(None, None), self._step(None, None)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"the model does not run, cut as {','.join(map(str, cut))}: {described(error)}") from error
        differs = _error(again.outputs, self._right.outputs, self._right.outputs)
        if math.isnan(differs):
            raise UsageError("outputs of the model are not finite; return inputs and weights that give finite ones")
        if differs > _ALIKE:
            raise UsageError(
                "the model does not do the same twice, from the same seed, so steps cannot be compared; "
                "have the factory replace the layer that draws random numbers which are not torch's"
            )

    def run(self, codec: str) -> Probed:
        """Tries a codec.

        Raises:
            SpecError: there is no such codec.
        """
        there, back = self._step(codec, None), self._step(None, codec)
        right = self._right
        return Probed(
            codec,
            (there.bits[0] + back.bits[1]) / 2,
            _error(there.outputs, right.outputs, right.outputs),
            _error(there.gradients, right.gradients, right.gradients),
            tuple(_stage_error(back.gradients, right.gradients, names) for names in right.stages),
        )

    def _step(self, codec: str | None, grad_codec: str | None) -> _Step:
        parts, balance = parts_of(self._subject, self._subject.copied(), self._cut, 1)
        pipe = Pipe(
            parts,
            balance,
            devices=self._subject.devices,
            chunks=1,
            checkpoint="never",
            codec=codec,
            grad_codec=grad_codec,
        )
        owners = {id(p): k for k, stage in reversed(list(enumerate(pipe.partitions))) for p in stage.parameters()}
        stages: list[set[str]] = [set() for _ in pipe.partitions]
        for name, parameter in pipe.named_parameters():
            stages[owners[id(parameter)]].add(name)
        found = pipe_step(self._subject, pipe).quantities
        return _Step(found["outputs"], found["gradients"], tuple(map(frozenset, stages)), tuple(_bits(pipe)))


def _bits(pipe: Pipe) -> Iterator[float]:
    """Tells the bits of an element forward, and those backward; 0 where none crossed."""
    for flows in zip(*pipe.traffic(), strict=True):
        elements = sum(flow.elements for flow in flows)
        yield 8 * sum(flow.packed for flow in flows) / elements if elements else 0.0


def _stage_error(got: Tensors, right: Tensors, names: frozenset[str]) -> float | None:
    return _error(got, right, names) if any(right[name] is not None for name in names & right.keys()) else None


def _error(got: Tensors, right: Tensors, names: Tensors | frozenset[str]) -> float:
    pairs = [(got[name], right[name]) for name in names if name in right]
    wrong = _length([a - b for a, b in _floats(pairs)])
    length = _length([b for _, b in _floats(pairs)])
    return wrong / length if length else 0.0 if not wrong else float("inf")


def _floats(pairs: list[tuple[Tensor | None, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
    for a, b in pairs:
        if a is not None and b is not None and b.is_floating_point():
            yield a.to(torch.float64), b.to(torch.float64)


def _length(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(x.square().sum()) for x in tensors))
