"""Cuts a tensor into places: tiles of neighbours, each with all channels there are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST = 16
"""Elements of a place, if the tensor has so many: each place sends a scale."""


@dataclass(frozen=True)
class Places:
    """How a tensor is cut; a tile at an edge goes on with the edge's own values.

    ::

        samples x channels x height x width        images; of others the last dimension is that of channels, and the one
                                                   before it, if there are three, is a line of neighbours

              ┌────┬────┬────┐
             ┌────┬────┬────┐│   a place: the same tile of all channels
            ┌────┬────┬────┐││
            │    │ XX │    │├┤
            ├────┼────┼────┤││
            │    │    │    │├┘
            └────┴────┴────┘┘

    A tensor of few samples has many channels for each of its places. Of every ``fold`` channels that follow each other
    it is then assumed that they are alike: they are as many samples of one.

    Args:
        samples: how many.
        channels: how many, before they are folded.
        height: of a plane, in elements.
        width: of a plane, in elements.
        tall: the height of a tile.
        wide: the width of a tile.
        fold: how many channels are taken for one.
        last: whether channels are the last dimension.
    """

    samples: int
    channels: int
    height: int
    width: int
    tall: int
    wide: int
    fold: int
    last: bool

    @classmethod
    def of(cls, shape: torch.Size, side: int, few: float) -> Places:
        """Cuts a shape evenly into tiles of at most ``side`` x ``side``, or of as many in a line.

        Args:
            shape: of the tensor.
            side: the most that a tile's side may be.
            few: so many elements of each channel, or more, are to be learned from, if channels can be folded so.
        """
        last = len(shape) in (2, 3)
        if len(shape) >= 4:
            samples, channels, height, width = shape[:-3].numel(), *shape[-3:]
        elif last:
            samples, channels, height, width = shape[0], shape[-1], 1, shape[1] if len(shape) == 3 else 1
        else:
            samples, channels, height, width = 1, 1, 1, shape.numel()
        tall, wide = _even(height, side), _even(width, side if last or height > 1 else side * side)
        need = -(-int(few) // max(1, samples * height * width))
        most = min(4 * need - 1, channels * tall * wide // _LEAST)
        enough = (n for n in range(need, most + 1) if channels % n == 0)
        return cls(samples, channels, height, width, tall, wide, next(enough, 1), last)

    @property
    def rows(self) -> int:
        """How many tiles are one below the other in a plane."""
        return -(-self.height // self.tall)

    @property
    def columns(self) -> int:
        """How many tiles are side by side in a plane."""
        return -(-self.width // self.wide)

    @property
    def size(self) -> int:
        """How many elements a tile has."""
        return self.tall * self.wide

    @property
    def kinds(self) -> int:
        """How many channels there are, folded."""
        return self.channels // self.fold

    @property
    def count(self) -> int:
        """How many places there are."""
        return self.samples * self.fold * self.rows * self.columns

    @property
    def lines(self) -> bool:
        """Whether they are parts of lines, as of words, which may be filled up with next to nothing."""
        return self.last and self.width > 1

    def cut(self, x: Tensor) -> Tensor:
        """Lists the tiles: kinds x places x elements, in single precision."""
        x = x.reshape(self.samples, self.width, self.channels) if self.last else x
        x = x.transpose(1, 2) if self.last else x
        x = self._filled(x.reshape(self.samples, self.channels, self.height, self.width))
        x = x.view(self.samples, self.kinds, self.fold, self.rows, self.tall, self.columns, self.wide)
        x = x.permute(1, 0, 2, 3, 5, 4, 6).to(torch.float32, memory_format=torch.contiguous_format).contiguous()
        return x.view(self.kinds, self.count, self.size)

    def joined(self, tiles: Tensor, dtype: torch.dtype) -> Tensor:
        """Puts tiles together again; returns the tensor's elements in its order and type."""
        x = tiles.view(self.kinds, self.samples, self.fold, self.rows, self.columns, self.tall, self.wide)
        x = x.permute(1, 0, 2, 3, 5, 4, 6).to(dtype, memory_format=torch.contiguous_format).contiguous()
        x = x.view(self.samples, self.channels, self.rows * self.tall, self.columns * self.wide)
        x = x[:, :, : self.height, : self.width]
        return (x.flatten(2).transpose(1, 2) if self.last else x).reshape(-1)

    def _filled(self, x: Tensor) -> Tensor:
        """Makes whole tiles of the last two dimensions."""
        for dim, size, whole in ((-2, self.height, self.rows * self.tall), (-1, self.width, self.columns * self.wide)):
            if size < whole:
                x = x.index_select(dim, torch.arange(whole, device=x.device).clamp(max=size - 1))
        return x


def _even(size: int, most: int) -> int:
    """Chooses the size of parts, at most ``most``, that a size is cut into.

    The largest divisor of the size, unless that makes twice as many parts as are needed, or more; then as few parts as
    possible, of which the last is smaller. Divisors are looked for among the few sizes that a part may have: the size
    itself may be what a stranger claims.
    """
    fewest = max(1, -(-size // most))
    least = size // (2 * fewest) + 1
    whole = next((part for part in range(min(size, most), least - 1, -1) if size % part == 0), None)
    return whole or max(1, -(-size // fewest))
