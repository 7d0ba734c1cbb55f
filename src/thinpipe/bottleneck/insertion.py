"""``insert``: puts bottlenecks at the cuts of a model that is cut into stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor, nn

from thinpipe import arguments
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.half import Half, Receiver, Sender
from thinpipe.bottleneck.pair import Bottleneck
from thinpipe.bottleneck.spec import parse, parse_cuts
from thinpipe.errors import ArgumentError
from thinpipe.runtime.assembly import as_sequence
from thinpipe.stages.parts import Split
from thinpipe.stages.skip import SkipStore, skips_in

_OURS = re.compile(r"(.*\.)?bottleneck\d+_(sender|receiver)\..*")


class Inserted(Split):
    """A split model with bottlenecks; ``to_model`` returns the model, which has none.

    Args:
        split: the model without them.
        stages: its stages with them.
    """

    def __init__(self, split: Split, stages: Sequence[nn.Module]) -> None:
        super().__init__(split._model, stages, split.at)

    def _verify_complete(self) -> None:
        """Has nothing to check: the split did, and only bottlenecks have come since."""

    def to_model(self, states: Iterable[Mapping[str, Tensor]] = ()) -> nn.Module:
        """Returns the whole model, without the bottlenecks, as it is trained by now; see ``Split``."""
        return super().to_model(without_bottlenecks(state) for state in states)


@overload
def insert(stages: Split, bottlenecks: str | Mapping[int, str], *, example: Any, seed: int = 0) -> Split: ...
@overload
def insert(
    stages: Sequence[nn.Module], bottlenecks: str | Mapping[int, str], *, example: Any, seed: int = 0
) -> Sequence[nn.Module]: ...
def insert(
    stages: Sequence[nn.Module], bottlenecks: str | Mapping[int, str], *, example: Any, seed: int = 0
) -> Sequence[nn.Module]:
    """Ends stages with the sender's halves of bottlenecks, and begins those that follow with the receiver's.

    The same stages, texts, example and seed give the same weights, in any process. They begin so that they disturb a
    trained model as little as can be without knowing its activations; ``fit`` knows them.

    Args:
        stages: of the whole model, a ``Split`` or a list. They stay as they are; their modules are used, not copied.
        bottlenecks: their texts by the numbers of cuts, ``{0: "conv:20k3s3"}``; or one text for all cuts in order,
            ``conv:20k3s3/conv:360``. Cut 0 is between stages 0 and 1.
        example: what the first stage takes, of one row or more: sizes are learned from it.
        seed: of the first weights (default: 0).

    Returns:
        Stages for ``Pipe``, ``Pipeline``, or ``Client`` and ``Offer``: a ``Split`` if one was given. Without any
        bottleneck, what was given.

    Raises:
        SpecError: a text names no bottleneck.
        BottleneckError: there is no such cut, or a bottleneck does not fit it.
    """
    arguments.whole("seed", seed, least=0)
    texts = _by_cut(bottlenecks, len(stages) - 1)
    if not texts:
        return stages
    found = list(stages)
    for pair in _made(found[: max(texts) + 1], texts, example, seed):
        found[pair.cut] = pair.on_sender(found[pair.cut])
        found[pair.cut + 1] = pair.on_receiver(found[pair.cut + 1])
    return Inserted(stages, found) if isinstance(stages, Split) else found


def _made(stages: Sequence[nn.Module], texts: Mapping[int, str], value: Any, seed: int) -> list[Bottleneck]:
    """Makes a bottleneck for what leaves each of some stages."""
    found = []
    with evaluated(stages), skips_in(SkipStore()):
        for cut, stage in enumerate(stages):
            value = as_sequence(stage)(value)
            if cut in texts:
                found.append(Bottleneck.of(texts[cut], value, cut=cut, seed=seed))
    return found


def _by_cut(bottlenecks: str | Mapping[int, str], cuts: int) -> dict[int, str]:
    """Reads the texts of cuts; where there is none, nothing is found."""
    if isinstance(bottlenecks, str):
        specs = parse_cuts(bottlenecks)
        if len(specs) != cuts and specs != [None]:
            raise BottleneckError(
                f"{bottlenecks!r} has bottlenecks for {len(specs)} cuts, and there are {cuts}; write one for each, "
                "joined by /, and none where there is to be none"
            )
        return {cut: str(spec) for cut, spec in enumerate(specs) if spec is not None}
    if not isinstance(bottlenecks, Mapping):
        example = "{0: 'conv:20k3s3'}"
        raise ArgumentError(f"bottlenecks must be a text or texts by cut, as {example}, got {bottlenecks!r:.100}")
    for cut in bottlenecks:
        if isinstance(cut, bool) or cut not in range(cuts):
            known = f"the cuts 0 to {cuts - 1}" if cuts > 1 else "the cut 0" if cuts else "no cut"
            raise BottleneckError(f"there is no cut {cut!r}: {cuts + 1} stages have {known}")
    return {cut: text for cut, text in bottlenecks.items() if parse(text) is not None}


@contextmanager
def evaluated(stages: Iterable[nn.Module]) -> Iterator[None]:
    """Runs stages in evaluation, without gradients; afterwards every module trains or not as it did before."""
    modes = {module: module.training for stage in stages for module in stage.modules()}
    try:
        for module in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


# -- what is inserted, found again -------------------------------------------------------------------------------------


def halves(stages: Iterable[nn.Module]) -> list[Half]:
    """Lists the halves that some stages have, in order."""
    return [each for stage in stages for each in stage.modules() if isinstance(each, Half)]


def pairs(stages: Iterable[nn.Module]) -> list[tuple[Sender, Receiver]]:
    """Lists the bottlenecks of which some stages have both halves, in order.

    Raises:
        BottleneckError: there is none, or a half without the other.
    """
    found = halves(stages)
    receivers = {each.cut: each for each in found if isinstance(each, Receiver)}
    senders = [each for each in found if isinstance(each, Sender)]
    if not senders or {each.cut for each in senders} != receivers.keys():
        raise BottleneckError(
            f"these stages have {len(senders)} senders and {len(receivers)} receivers, and both halves of every "
            "bottleneck are needed; do this where the whole model is, and give each side its half with "
            "bottleneck_state and load_bottlenecks"
        )
    return [(sender, receivers[sender.cut]) for sender in senders]


def _is_ours(name: str) -> bool:
    """Tells whether a name in a ``state_dict`` is that of a bottleneck's weight."""
    return _OURS.fullmatch(name) is not None


def without_bottlenecks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns what a ``state_dict`` has of the model itself."""
    return {name: tensor for name, tensor in state.items() if not _is_ours(name)}


def bottleneck_state(stages: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Returns the weights of all bottlenecks in some stages, to be saved apart from the model's."""
    return {name: tensor for stage in stages for name, tensor in stage.state_dict().items() if _is_ours(name)}


def load_bottlenecks(stages: Iterable[nn.Module], state: Mapping[str, Tensor]) -> None:
    """Gives the bottlenecks in some stages the weights that others of the same texts had.

    Args:
        stages: all of a model's, or the part of them that one side has.
        state: what ``bottleneck_state`` returned; weights of halves that are elsewhere are left alone.

    Raises:
        BottleneckError: the weights of some half are not there.
    """
    for stage in stages:
        own = {name: state.get(name) for name in stage.state_dict() if _is_ours(name)}
        lost = [name for name, tensor in own.items() if tensor is None]
        if lost:
            raise BottleneckError(f"there is no '{lost[0]}' among the weights of bottlenecks: they are of other cuts")
        stage.load_state_dict(own, strict=False)
