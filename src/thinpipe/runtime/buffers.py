"""Keeps a recomputation from changing buffers a second time.

BatchNorm's running statistics, spectral norm's vectors, a moving codebook: forwards change such buffers, and a
recomputation is a second forward of the same micro-batch. PyTorch's own BatchNorm layers are told not to track while
they are recomputed. Any other buffer that a stage is seen to change is set back, for the recomputation, to what it was
before the forward, and afterwards put where it had got to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeGuard

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe.errors import RecomputeError
from thinpipe.stages.walk import layers_in

_Place: TypeAlias = tuple[int, str]
"""A buffer: the ``id`` of the layer that owns it, and its name there."""

Snapshot: TypeAlias = dict[_Place, Tensor]


def _tracks(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    """Tells whether a layer's running statistics can be switched off and its output stay the same."""
    plain = isinstance(layer, _BatchNorm) and type(layer).forward is _BatchNorm.forward
    return plain and layer.training and bool(layer.track_running_stats)


class BufferGuard:
    """Watches the buffers of one stage, for as long as the pipe lives.

    The first forward copies every buffer, to see which ones move; from then on only those are copied.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._owners: list[nn.Module] = []
        self._moving: set[_Place] | None = None

    def begin_step(self) -> None:
        """Looks up which layers have buffers, once a step: most models have far more layers than that."""
        self._owners = [layer for layer in layers_in(self._module) if layer._buffers]

    def _buffers(self) -> dict[_Place, tuple[dict[str, Tensor | None], str, Tensor]]:
        return {
            (id(layer), name): (layer._buffers, name, buffer)
            for layer in self._owners
            if not _tracks(layer)
            for name, buffer in layer._buffers.items()
            if buffer is not None
        }

    @contextmanager
    def watched(self) -> Iterator[Snapshot]:
        """Surrounds a forward that will be recomputed; gives what moving buffers were before it."""
        before = self._buffers()
        moving = before if self._moving is None else self._moving & before.keys()
        snapshot = {place: before[place][2].clone() for place in moving}
        versions = {place: buffer._version for place, (_, _, buffer) in before.items()}
        yield snapshot
        after = self._buffers()
        moved = {
            place
            for place, (_, _, buffer) in before.items()
            if place in after and (after[place][2] is not buffer or buffer._version != versions[place])
        }
        late = moved - snapshot.keys()
        self._moving = moved | (self._moving or set())
        for place in snapshot.keys() - self._moving:
            del snapshot[place]
        if late:
            names = ", ".join(sorted(name for _, name in late))
            raise RecomputeError(
                f"the forward changed buffers it had left alone so far ({names}), too late to recompute this batch; "
                "run the step again"
            )

    @contextmanager
    def replayed(self, snapshot: Snapshot) -> Iterator[None]:
        """Surrounds a recomputation: it starts from the snapshot, and leaves every buffer as it found it."""
        norms = [layer for layer in self._owners if _tracks(layer)]
        current = self._buffers()
        for place, old in snapshot.items():
            buffers, name, _ = current[place]
            # A copy once more: with `retain_graph` the same micro-batch may be recomputed again.
            buffers[name] = old.clone()
        for layer in norms:
            layer.track_running_stats = False
        try:
            yield
        finally:
            for layer in norms:
                layer.track_running_stats = True
            for place in snapshot:
                buffers, name, buffer = current[place]
                buffers[name] = buffer
