"""``Bottleneck``: both halves of a cut's bottleneck, from nothing but a text, the size of a row and a seed.

A client and a server that never see each other's modules make their halves from the same three, and they match::

    pair = Bottleneck("conv:20k3s3", (32, 112, 112), seed=7)
    first = pair.on_sender(first)          # at the client
    middle = pair.on_receiver(middle)      # at the server
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.bottleneck import conv, linear
from thinpipe.bottleneck.attaching import appended, prepended
from thinpipe.bottleneck.conv import ConvNarrow, ConvWiden
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.half import Narrow, Receiver, Sender, Sizes, Widen
from thinpipe.bottleneck.linear import LinearNarrow, LinearWiden
from thinpipe.bottleneck.place import Place, largest
from thinpipe.bottleneck.spec import ConvSpec, LinearSet, LinearSpec, Spec, parse


@dataclass(frozen=True)
class Bottleneck:
    """A bottleneck at one cut.

    Args:
        text: of the bottleneck, as ``conv:20k3s3``.
        shape: of a row of the tensor that is made small: sizes without that of the batch.
        cut: its number, which is in the names of its weights; cut 0 is between stages 0 and 1 (default: 0).
        seed: of the first weights (default: 0).
        place: where the tensor is in all that crosses the cut: keys and indices (default: it is alone).
        dtype: of the weights (default: float32).
        device: where they are (default: the CPU).

    Raises:
        SpecError: the text names no bottleneck, or none at all.
        BottleneckError: the bottleneck does not fit rows of that shape.
    """

    text: str
    shape: tuple[int, ...]
    cut: int = field(default=0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    place: Place = field(default=(), kw_only=True)
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    device: torch.device | str = field(default="cpu", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        _ = self.wire  # what does not fit is said now

    @classmethod
    def of(cls, text: str, example: Any, *, cut: int = 0, seed: int = 0) -> Bottleneck:
        """Makes one for the largest tensor of an example of what crosses the cut."""
        place, tensor = largest(example)
        shape = tuple(tensor.shape[1:])
        return cls(text, shape, cut=cut, seed=seed, place=place, dtype=tensor.dtype, device=tensor.device)

    @property
    def spec(self) -> Spec:
        """The text, read."""
        spec = parse(self.text)
        if spec is None:
            raise BottleneckError("'none' is no bottleneck; leave the cut as it is")
        return spec

    @property
    def wire(self) -> tuple[int, ...]:
        """The shape of a row as it crosses the cut; at full rank, where the rank decays."""
        return self._shapes()[-1]

    def _shapes(self) -> list[tuple[int, ...]]:
        """Lists the shapes of a row, from the model to the wire."""
        shapes, spec = [self.shape], self.spec
        for each in spec.sets:
            shape = shapes[-1]
            shapes.append(linear.narrowed(each, shape) if isinstance(each, LinearSet) else conv.narrowed(each, shape))
        return shapes

    def sender(self) -> Sender:
        """Makes the sender's half."""
        sets = [self._narrow(k, shape) for k, shape in enumerate(self._shapes()[:-1])]
        return Sender(sets, cut=self.cut, place=self.place, sizes=self._sizes(self.shape)).to(self.device)

    def receiver(self) -> Receiver:
        """Makes the receiver's half."""
        sets = [self._widen(k, shape) for k, shape in enumerate(self._shapes()[:-1])]
        return Receiver(sets[::-1], cut=self.cut, place=self.place, sizes=self._wire_sizes()).to(self.device)

    def on_sender(self, stage: nn.Module) -> nn.Module:
        """Ends a stage with the sender's half; the stage's own weights keep their names."""
        return appended(stage, f"bottleneck{self.cut}_sender", self.sender())

    def on_receiver(self, stage: nn.Module) -> nn.Module:
        """Begins a stage with the receiver's half; the stage's own weights keep their names."""
        return prepended(stage, f"bottleneck{self.cut}_receiver", self.receiver())

    def _narrow(self, k: int, shape: tuple[int, ...]) -> Narrow:
        spec, seed = self.spec, self._seed(k)
        if isinstance(spec, ConvSpec):
            return ConvNarrow(spec.sets[k], shape, seed, self.dtype)
        return LinearNarrow(spec.sets[k], shape, seed, self.dtype, decay=spec.decay, which=k)

    def _widen(self, k: int, shape: tuple[int, ...]) -> Widen:
        spec, seed = self.spec, self._seed(k)
        if isinstance(spec, ConvSpec):
            return ConvWiden(spec.sets[k], shape, seed, self.dtype)
        return LinearWiden(spec.sets[k], shape, seed, self.dtype, decay=spec.decay, which=k)

    def _seed(self, k: int) -> int:
        return (self.seed * 4096 + self.cut * 16 + k) % 2**63

    def _sizes(self, shape: Sequence[int]) -> Sizes:
        """Says which sizes must be those of the example: the ones that some weight is made for."""
        spec = self.spec
        if isinstance(spec, ConvSpec):
            any_map = (spec.sets[0].kernel, spec.sets[0].stride) == (1, 1)
            return (shape[0], None, None) if any_map else tuple(shape)
        fixed = {linear.axis_of(each, self.shape) for each in spec.sets}
        return tuple(size if k in fixed else None for k, size in enumerate(shape))

    def _wire_sizes(self) -> Sizes:
        spec = self.spec
        # Where the rank decays, the receiver's matrices know better what comes.
        if isinstance(spec, LinearSpec) and spec.decay is not None:
            return (None,) * len(self.shape)
        return self._sizes(self.wire)


def crossed(sender: Sender, receiver: Receiver, x: Tensor) -> Tensor:
    """Returns a tensor as it arrives behind both halves."""
    return receiver.through(sender.through(x))
