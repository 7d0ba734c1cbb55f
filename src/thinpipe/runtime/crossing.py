"""A cut with codecs on it: activations are packed on one side and unpacked on the other, gradients the other way.

::

    stage j  --  encode --> packet --> decode  -->  stage j+1        an activation, by ``codec``
             <-- decode <-- packet <-- encode  --                    its gradient, by ``grad_codec``

On a GPU packets are ready later than the tensors in them: whoever copies them to another device waits for the packets.

What a stage passes on untouched travels as it came: a packet is not opened and packed again, which would lose a little
more at each cut, and a mask that the caller gave stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from thinpipe.codecs import Codec, codec
from thinpipe.codecs.warm import warm
from thinpipe.errors import ArgumentError
from thinpipe.runtime.parcel import Coded, Edge, Grads, Parcel, edges_out_of
from thinpipe.runtime.transfer import mark_ready
from thinpipe.stages.split import Stage

CodecChoice: TypeAlias = str | Codec | Mapping[int, str | Codec | None] | None
"""One codec for every cut, or a codec by the number of the cut: cut 0 is between stages 0 and 1."""


AS_IT_IS = "as it is"
"""Says of a value that it came without having been packed."""


@dataclass
class Flow:
    """What went one way over one edge.

    Args:
        packed: bytes of packets, headers included.
        raw: bytes of the tensors in them.
        elements: of those tensors.
    """

    packed: int = 0
    raw: int = 0
    elements: int = 0

    @property
    def ratio(self) -> float:
        """Bytes sent over bytes of the tensors; 1 before anything was."""
        return self.packed / self.raw if self.raw else 1.0


class _Lane:
    """One direction of an edge: a codec for each tensor of its nesting, since each may have memories of its own."""

    def __init__(self, spec: str | None) -> None:
        self.spec = spec
        self._codecs: dict[int, Codec] = {}
        self.flow = Flow()

    def codec_of(self, leaf: int) -> Codec | None:
        if self.spec is None:
            return None
        if leaf not in self._codecs:
            self._codecs[leaf] = codec(self.spec)
        return self._codecs[leaf]

    def forget(self) -> None:
        self._codecs.clear()

    def count(self, tensor: Tensor, packed: int | None = None) -> None:
        raw = tensor.numel() * tensor.element_size()
        self.flow.raw += raw
        self.flow.packed += raw if packed is None else packed
        self.flow.elements += tensor.numel()

    def state_dict(self) -> dict[str, Any]:
        states = {leaf: codec.state_dict() for leaf, codec in self._codecs.items()}
        return {f"{leaf}.{key}": value for leaf, state in states.items() for key, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        by_leaf: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            number, _, rest = key.partition(".")
            by_leaf.setdefault(int(number), {})[rest] = value
        for leaf, values in by_leaf.items():
            chosen = self.codec_of(leaf)
            if chosen is None:
                raise ValueError(f"a cut without a codec was given the state of one: {', '.join(values)}")
            chosen.load_state_dict(values)


class Crossing:
    """The codecs of one edge.

    Args:
        forward: for activations; ``None`` sends them as they are.
        backward: for gradients; ``None`` sends them as they are.
    """

    def __init__(self, forward: str | None, backward: str | None) -> None:
        self.there = _Lane(forward)
        self.back = _Lane(backward)

    def pack(self, parcel: Parcel, came_as: Sequence[Coded | str | None]) -> Parcel:
        """Packs the tensors of a parcel.

        Args:
            parcel: tensors and other values.
            came_as: for each leaf, what the sender itself received it as, if it passes it on untouched.
        """
        leaves = [self._packed(k, *pair) for k, pair in enumerate(zip(parcel.leaves, came_as, strict=True))]
        # What is decoded from a packet is the receiver's alone.
        stashed = parcel.stashed and any(isinstance(x, Tensor) for x in leaves)
        return replace(parcel, leaves=leaves, stashed=stashed, ready=mark_ready(parcel.ready))

    def _packed(self, leaf: int, value: Any, came_as: Coded | str | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        chosen = self.there.codec_of(leaf) if value.is_floating_point() else None
        if isinstance(came_as, Coded):
            self.there.count(value, came_as.packet.nbytes)
            return came_as
        if chosen is None or came_as is not None:
            self.there.count(value)
            return value
        packet = chosen.encode(value)
        self.there.count(value, packet.nbytes)
        return Coded(packet, chosen)

    def grad_codec(self, leaf: int, arrived: Any) -> Codec | None:
        """Chooses the codec for the gradient of what arrived; a packet may have a say in it."""
        chosen = self.back.codec_of(leaf)
        return chosen.for_gradient_of(arrived.packet) if chosen is not None and isinstance(arrived, Coded) else chosen

    def pack_grads(self, grads: Grads, codecs: Sequence[Codec | None]) -> Grads:
        """Packs gradients.

        Args:
            grads: one for each leaf, or ``None``.
            codecs: from ``grad_codec``, when the activation of each leaf arrived.
        """
        leaves = [self._packed_grad(*pair) for pair in zip(grads.leaves, codecs, strict=True)]
        return replace(grads, leaves=leaves, ready=mark_ready(grads.ready))

    def _packed_grad(self, grad: Tensor | Coded | None, chosen: Codec | None) -> Tensor | Coded | None:
        if not isinstance(grad, Tensor):
            return grad
        if chosen is None or not grad.is_floating_point():
            self.back.count(grad)
            return grad
        packet = chosen.encode(grad)
        self.back.count(grad, packet.nbytes)
        return Coded(packet, chosen)

    def forget(self) -> None:
        """Lets go of everything that the codecs remember."""
        for lane in (self.there, self.back):
            lane.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns what the codecs remember."""
        lanes = {"forward": self.there, "backward": self.back}
        return {f"{name}.{key}": value for name, lane in lanes.items() for key, value in lane.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what the codecs of another pipe remembered."""
        for name, lane in {"forward.": self.there, "backward.": self.back}.items():
            lane.load_state_dict({k.removeprefix(name): v for k, v in state.items() if k.startswith(name)})


def crossings(stages: Iterable[Stage], forward: CodecChoice, backward: CodecChoice) -> dict[Edge, Crossing]:
    """Makes the codecs of all edges between stages; a skip has those of the cut it leaves by.

    Where stages are on the CPU, the first codecs of a machine are compiled now, rather than in the first step.

    Raises:
        ValueError: a codec is given for a cut that there is not.
        SpecError: there is no such codec.
    """
    stages = list(stages)
    there, back = (by_cut(choice, len(stages) - 1) for choice in (forward, backward))
    if any(stage.device.type == "cpu" for stage in stages):
        warm((*there, *back))
    return {
        edge: Crossing(there[edge.source], back[edge.source]) for stage in stages[:-1] for edge in edges_out_of(stage)
    }


def specs_of(found: Mapping[Edge, Crossing]) -> dict[Edge, tuple[str | None, str | None]]:
    """Lists the codecs of edges, forward and backward."""
    return {edge: (crossing.there.spec, crossing.back.spec) for edge, crossing in found.items()}


def state_of(found: Mapping[Edge, Crossing]) -> dict[str, Any]:
    """Returns what the codecs of edges remember from one batch to the next."""
    states = enumerate(crossing.state_dict() for crossing in found.values())
    return {f"{k}.{key}": value for k, state in states for key, value in state.items()}


def load_state(found: Mapping[Edge, Crossing], state: Mapping[str, Any]) -> None:
    """Takes over what the codecs of the same edges remembered."""
    for k, crossing in enumerate(found.values()):
        own = f"{k}."
        crossing.load_state_dict({name.removeprefix(own): v for name, v in state.items() if name.startswith(own)})


def verify_choice(choice: CodecChoice) -> None:
    """Checks every codec of a choice, before anything is known of the cuts.

    Raises:
        SpecError: there is no such codec.
    """
    for spec in choice.values() if isinstance(choice, Mapping) else (choice,):
        _spec(spec)


def by_cut(choice: CodecChoice, cuts: int) -> list[str | None]:
    """Lists the codec of each cut, None where there is none.

    Raises:
        ValueError: a codec is given for a cut that there is not.
        SpecError: there is no such codec.
    """
    if not isinstance(choice, Mapping):
        return [_spec(choice)] * cuts
    for cut in choice:
        if isinstance(cut, bool) or cut not in range(cuts):
            known = f"the cuts 0 to {cuts - 1}" if cuts > 1 else "the cut 0" if cuts else "no cut"
            raise ArgumentError(f"there is no cut {cut!r}: a pipe of {cuts + 1} stages has {known}")
    return [_spec(choice.get(cut)) for cut in range(cuts)]


def _spec(choice: str | Codec | None) -> str | None:
    return None if choice is None else codec(choice).spec
