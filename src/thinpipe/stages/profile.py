"""Measures what each layer of a sequence costs in training: its time, or its memory.

Layers are copied first, so measuring leaves parameters, gradients and BatchNorm statistics of the model alone. They are
then run one by one, each on what the layer before it produced, cut loose from the graph in between; skips are carried
from the layer that stashes to the layer that pops, cut loose in the same way.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from thinpipe import arguments
from thinpipe.errors import BalanceError
from thinpipe.stages.cost import balance_cost
from thinpipe.stages.skip import SkipStore, skips_in
from thinpipe.stages.split import verify_sequential

Device: TypeAlias = torch.device | str | int
Noted: TypeAlias = Callable[[], AbstractContextManager[None]]


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: Any,
    *,
    timeout: float = 1.0,
    device: Device | None = None,
) -> list[int]:
    """Balances a module by the time each layer takes forward and backward.

    Args:
        partitions: the number of stages.
        module: the model to be cut.
        sample: an example micro-batch: a tensor, or what the first layer takes. Its size matters: measure the size
            that will be trained.
        timeout: about how many seconds to measure; longer is less noisy (default: 1).
        device: where to measure (default: where the module is).

    Returns:
        The number of layers of each stage, for ``Pipe(balance=...)``.
    """
    arguments.whole("partitions", partitions, error=BalanceError)  # before anything is measured
    return balance_cost(profile_times(module, sample, timeout=timeout, device=device), partitions)


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: Any,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device | None = None,
) -> list[int]:
    """Balances a module by the memory each layer takes in training.

    Args:
        partitions: the number of stages.
        module: the model to be cut.
        input: an example batch, of the size that will be trained.
        chunks: the number of micro-batches the batch will be cut into (default: 1).
        param_scale: how many times a parameter is held: 2 with its gradient (plain SGD, the default), 3 with momentum,
            4 for Adam.
        device: where to measure (default: where the module is).

    Returns:
        The number of layers of each stage, for ``Pipe(balance=...)``.
    """
    arguments.whole("partitions", partitions, error=BalanceError)  # before anything is measured
    sizes = profile_sizes(module, input, chunks=chunks, param_scale=param_scale, device=device)
    return balance_cost(sizes, partitions)


def profile_times(
    module: nn.Sequential, sample: Any, *, timeout: float = 1.0, device: Device | None = None
) -> list[float]:
    """Measures the seconds each layer takes forward and backward: the median over passes that fill ``timeout``."""
    arguments.number("timeout", timeout)
    with _training():
        layers, place, sample = _prepared(module, sample, device)
        seconds: list[list[float]] = [[] for _ in layers]
        list(_passes(layers, sample, place, nullcontext))  # the first pass pays for lazy initialisation: not counted
        began = time.perf_counter()
        while layers and (not seconds[0] or time.perf_counter() - began < timeout):
            for samples, elapsed in zip(seconds, _passes(layers, sample, place, nullcontext), strict=True):
                samples.append(elapsed)
    return [statistics.median(samples) for samples in seconds]


def profile_sizes(
    module: nn.Sequential,
    input: Any,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device | None = None,
) -> list[int]:
    """Measures the bytes each layer keeps: what autograd saves of one micro-batch, and its parameters, scaled."""
    arguments.whole("chunks", chunks)
    arguments.number("param_scale", param_scale)
    one = tree_map_only(Tensor, lambda x: x[: -(-x.size(0) // chunks)] if x.dim() else x, input)
    with _training():
        layers, place, one = _prepared(module, one, device)
        saved = _SavedBytes(layers)
        activations = [saved.taken() for _ in _passes(layers, one, place, saved)]
    parameters = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in layers]
    return [kept + int(size * param_scale) for kept, size in zip(activations, parameters, strict=True)]


@contextmanager
def _training() -> Iterator[None]:
    """Measures training even where the caller is evaluating."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


def _prepared(module: nn.Sequential, sample: Any, device: Device | None) -> tuple[list[nn.Module], torch.device, Any]:
    """Copies the layers, in training mode, and moves them and the sample to where they are measured."""
    verify_sequential(module)
    tensors = [*module.parameters(), *module.buffers(), *(x for x in tree_leaves(sample) if isinstance(x, Tensor))]
    found = next((x.device for x in tensors), torch.device("cpu"))
    place = found if device is None else arguments.device("device", device)
    layers = [copy.deepcopy(layer).to(place).train() for layer in module]
    for layer in layers:
        for parameter in layer.parameters():
            parameter.grad = None
    return layers, place, tree_map_only(Tensor, lambda x: x.detach().to(place), sample)


def _passes(layers: list[nn.Module], sample: Any, device: torch.device, noted: Noted) -> Iterator[float]:
    """Runs each layer once forward and backward, and yields the seconds it took."""
    value = sample
    skips: dict[Any, Any] = {}
    for layer in layers:
        store = SkipStore({key: _loose(skip) for key, skip in skips.items()})
        given = set(store.stashed)
        value = _loose(value)
        _synchronize(device)
        began = time.perf_counter()
        with skips_in(store), noted():
            value = layer(value)
        stashed = [skip for key, skip in store.stashed.items() if key not in given]
        outputs = [x for x in tree_leaves((value, stashed)) if isinstance(x, Tensor) and x.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
        _synchronize(device)
        yield time.perf_counter() - began
        for parameter in layer.parameters():
            parameter.grad = None
        skips = store.stashed


class _SavedBytes:
    """Counts the bytes autograd saves while it is entered; a storage saved twice is held, and counted, once."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self._own = {
            x.untyped_storage().data_ptr() for layer in layers for x in (*layer.parameters(), *layer.buffers())
        }
        self._held: dict[int, int] = {}

    def __call__(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda x: x)

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._held[storage.data_ptr()] = storage.nbytes()
        return tensor

    def taken(self) -> int:
        """Counts what was saved since the last time."""
        total = sum(self._held.values())
        self._held.clear()
        return total


def _loose(tree: Any) -> Any:
    """Cuts every tensor loose from the graph, so that the next layer's backward ends there.

    The clone lets a layer that works in place do so: it must not change what it was given again in the next pass.
    """

    def leaf(x: Tensor) -> Tensor:
        x = x.detach().clone()
        if x.is_floating_point() or x.is_complex():
            x = x.requires_grad_() * 1
        return x

    return tree_map_only(Tensor, leaf, tree)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
