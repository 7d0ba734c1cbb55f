"""Cuts an ``nn.Sequential`` into stages, one a device.

A stage is a view: an ``nn.Sequential`` over the very layers of the module, under their own names. Nothing is copied,
and nothing about the module changes but the device its layers are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from thinpipe.errors import BalanceError, DeviceError, SharedStateError, SplitError
from thinpipe.stages.names import suggested
from thinpipe.stages.skip import SkipKey, skippable_layers, verify_skippables


@dataclass(frozen=True)
class Stage:
    """A part of a model on a device.

    Args:
        index: the stage ``j``.
        module: its layers, under the names they have in the whole model.
        device: where they are.
        first: the position of its first layer in the whole model.
        pops: skips that reach it from an earlier stage, each with that stage.
        stashes: skips that it sends to a later stage, each with that stage.
    """

    index: int
    module: nn.Sequential
    device: torch.device
    first: int
    pops: dict[SkipKey, int]
    stashes: dict[SkipKey, int]

    def __str__(self) -> str:
        names = list(self.module._modules)
        span = f"layer '{names[0]}'" if len(names) == 1 else f"layers '{names[0]}' to '{names[-1]}'"
        return f"stage {self.index} ({span} on {self.device})"


def verify_sequential(module: nn.Module) -> None:
    """Checks that a module can be cut between its layers.

    Raises:
        SplitError: it is no ``nn.Sequential``, or holds parameters whose shape is not known yet.
    """
    if not isinstance(module, nn.Module):
        raise SplitError(
            f"module must be nn.Sequential to be partitioned, got {type(module).__name__}; pass nn.Sequential(*layers)"
        )
    if not isinstance(module, nn.Sequential):
        raise SplitError(
            f"module must be nn.Sequential to be partitioned, got {type(module).__name__}; cut it at the names of its "
            f"modules: thinpipe.Pipe(thinpipe.split(model, at=[{suggested(module)!r}], example=inputs)), "
            "and likewise for thinpipe.Pipeline"
        )
    own = [*module._parameters, *module._buffers]
    if own:
        raise SplitError(f"the nn.Sequential itself holds '{own[0]}', which no stage would have; move it into a layer")
    if type(module).forward is not nn.Sequential.forward:
        raise SplitError(
            f"{type(module).__name__} has a forward of its own, so it is no plain sequence; "
            "wrap it as one layer of an nn.Sequential"
        )
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        raise SplitError("the nn.Sequential has hooks, which no stage would call; register them on the Pipe instead")
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise SplitError(f"'{name}' has no shape yet; run the model once on a sample before wrapping it")
    verify_skippables(module)


def verify_balance(balance: Sequence[int], layers: int) -> None:
    """Checks that a balance covers all layers.

    Raises:
        BalanceError: it does not.
    """
    if sum(balance) != layers:
        raise BalanceError(
            f"module and sum of balance have different length (module: {layers}, sum of balance: {sum(balance)}, "
            f"balance: {list(balance)})"
        )
    if any(size <= 0 for size in balance):
        raise BalanceError(f"all balance numbers must be positive integer (balance: {list(balance)})")


def verify_devices(devices: Sequence[torch.device], stages: int) -> None:
    """Checks that there is a device for every stage.

    Raises:
        DeviceError: there is none.
    """
    if len(devices) < stages:
        raise DeviceError(
            f"too few devices to hold given partitions (devices: {len(devices)}, partitions: {stages}); "
            'a device may be listed more than once, devices=["cpu", "cpu"] for instance'
        )
    for device in devices[:stages]:
        if device.type == "cuda" and (device.index or 0) >= (gpus := torch.cuda.device_count()):
            raise DeviceError(f'there is no {device} among {gpus} GPUs; a stage may be on "cpu"')


def indexed(device: torch.device | str | int) -> torch.device:
    """Names a device as its tensors do: "cuda" is the current GPU, if there is any, and "cpu:0" is "cpu"."""
    found = torch.device(device)
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type == "cuda" and found.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def split(module: nn.Sequential, balance: Sequence[int], devices: Sequence[torch.device]) -> list[Stage]:
    """Cuts a module into consecutive stages and moves each to its device.

    Args:
        module: the whole model, checked by ``verify_sequential``.
        balance: the number of layers of each stage.
        devices: a device for each stage; extra ones are left alone.
    """
    parts = verified_parts(module, balance, devices)
    pops, stashes = routes(parts)
    firsts = [sum(balance[:j]) for j in range(len(balance))]
    return [
        Stage(j, part.to(device), device, first, pops[j], stashes[j])
        for j, (part, device, first) in enumerate(zip(parts, devices, firsts, strict=False))
    ]


def verified_parts(
    module: nn.Sequential, balance: Sequence[int], devices: Sequence[torch.device]
) -> list[nn.Sequential]:
    """Cuts a module as ``split`` does, and leaves its layers where and as they are.

    Raises:
        BalanceError: the balance does not fit; said first, since the number of devices depends on it.
        DeviceError: there are too few devices, or one does not exist.
        SharedStateError: two stages share what they must not.
    """
    parts = sequences(module, balance)
    verify_devices(devices, len(balance))
    _verify_apart(parts, devices)
    return parts


def sequences(module: nn.Sequential, balance: Sequence[int]) -> list[nn.Sequential]:
    """Cuts a module into consecutive sequences of its own layers, under their own names.

    Raises:
        BalanceError: the balance does not fit.
    """
    verify_balance(balance, len(module))
    layers = list(module._modules.items())
    parts: list[nn.Sequential] = []
    for size in balance:
        part = nn.Sequential()
        # Not through `add_module`, which refuses a layer under a name such as "forward" that the whole module allowed.
        part._modules.update(layers[:size])
        part.training = module.training
        layers = layers[size:]
        parts.append(part)
    return parts


def _verify_apart(parts: list[nn.Sequential], devices: Sequence[torch.device]) -> None:
    """Checks that no two stages have the same state, but for a parameter of two layers on one device.

    A stage stands its own in for the parameters of its layers while it computes; those of a layer that is in two stages
    would be the other stage's. A buffer that two stages change would be anybody's.
    """
    owners: dict[int, tuple[int, str]] = {}
    for j, part in enumerate(parts):
        for name, layer in part.named_modules(remove_duplicate=False):
            state = [*layer._parameters.items(), *layer._buffers.items()]
            for key, tensor in state:
                if tensor is None:
                    continue
                full = f"{name}.{key}"
                for kept in (id(layer), id(tensor)):
                    other, other_name = owners.setdefault(kept, (j, full))
                    tied = kept == id(tensor) and isinstance(tensor, nn.Parameter) and devices[j] == devices[other]
                    if other != j and not tied:
                        raise SharedStateError(
                            f"'{full}' of stage {j} is the same tensor as '{other_name}' of stage {other}; choose a "
                            "balance that keeps both in one stage, or "
                            + _way_out(layer if kept == id(layer) else tensor, (devices[other], devices[j]))
                        )


def _way_out(shared: nn.Module | Tensor, devices: tuple[torch.device, torch.device]) -> str:
    """Tells how two stages may have what they are not to share: a layer, a parameter on two devices, or a buffer."""
    if isinstance(shared, nn.Parameter):
        return f"put both stages on one device: they are on {devices[0]} and {devices[1]}"
    if isinstance(shared, Tensor):
        return "give each layer a buffer of its own"
    kind = type(shared).__name__
    names = [name for name, parameter in shared._parameters.items() if parameter is not None]
    if shared._buffers or not names:
        return f"give each stage a {kind} of its own"
    shares = "; ".join(f"second.{name} = first.{name}" for name in names)
    return (
        f"give each stage a {kind} of its own, both on one device, and the two the same parameters: "
        f"second = copy.deepcopy(first); {shares}"
    )


def shared_parameters(parts: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Lists the parameters that several stages have."""
    seen: dict[int, int] = {}
    shared: dict[int, nn.Parameter] = {}
    for j, part in enumerate(parts):
        for parameter in part.parameters():
            if seen.setdefault(id(parameter), j) != j:
                shared[id(parameter)] = parameter
    return list(shared.values())


def routes(parts: Sequence[nn.Sequential]) -> tuple[list[dict[SkipKey, int]], list[dict[SkipKey, int]]]:
    """Finds the skips that cross a cut: what each stage pops from elsewhere, and what it stashes for elsewhere."""
    pops: list[dict[SkipKey, int]] = [{} for _ in parts]
    stashes: list[dict[SkipKey, int]] = [{} for _ in parts]
    source: dict[SkipKey, int] = {}
    for j, part in enumerate(parts):
        for _, layer in skippable_layers(part):
            source.update(dict.fromkeys(layer.stashable(), j))
            for key in layer.poppable():
                if source[key] != j:
                    pops[j][key] = source[key]
                    stashes[source[key]][key] = j
    return pops, stashes
