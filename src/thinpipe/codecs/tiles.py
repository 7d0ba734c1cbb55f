"""Cuts a tensor into tiles of neighbours: pieces of an image's plane, or of a row where there are no planes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST = 16
"""Planes of fewer elements are no images: all of a row is one line."""


class Grid:
    """Planes that are cut into tiles; a tile at an edge goes on with the edge's own values."""

    height: int
    width: int
    tall: int
    wide: int

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

    def filled(self, x: Tensor) -> Tensor:
        """Makes whole tiles of the last two dimensions."""
        for dim, size, whole in ((-2, self.height, self.rows * self.tall), (-1, self.width, self.columns * self.wide)):
            if size < whole:
                x = x.index_select(dim, torch.arange(whole, device=x.device).clamp(max=size - 1))
        return x


@dataclass(frozen=True)
class Tiling(Grid):
    """How a tensor is cut.

    ::

        ┌────┬────┬────┐  height = rows x tall, or less
        │    │    │    │  width = columns x wide, or less
        ├────┼────┼────┤
        │    │    │    │  planes of it
        └────┴────┴────┘

    Args:
        planes: how many.
        height: of a plane, in elements.
        width: of a plane, in elements.
        tall: the height of a tile.
        wide: the width of a tile.
    """

    planes: int
    height: int
    width: int
    tall: int
    wide: int

    @classmethod
    def of(cls, shape: torch.Size, side: int) -> Tiling:
        """Cuts a shape evenly into tiles of at most ``side`` x ``side``, or of as many in a line."""
        if len(shape) >= 3 and min(shape[-2:]) > 1 and shape[-2:].numel() >= _LEAST:
            height, width = shape[-2:]
            return cls(shape[:-2].numel(), height, width, even(height, side), even(width, side))
        rows = shape[0] if len(shape) > 1 else 1
        line = shape.numel() // max(1, rows)
        return cls(rows, 1, line, 1, even(line, side * side))

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.planes * self.rows * self.columns

    def cut(self, x: Tensor) -> Tensor:
        """Lists the tiles, one a row."""
        x = self.filled(x.reshape(self.planes, self.height, self.width))
        x = x.view(self.planes, self.rows, self.tall, self.columns, self.wide)
        return x.transpose(2, 3).reshape(self.count, self.size)

    def joined(self, tiles: Tensor) -> Tensor:
        """Puts tiles together again; returns planes, contiguous."""
        x = tiles.view(self.planes, self.rows, self.columns, self.tall, self.wide).transpose(2, 3)
        x = x.reshape(self.planes, self.rows * self.tall, self.columns * self.wide)
        return x[:, : self.height, : self.width].contiguous()


def even(size: int, most: int) -> int:
    """Tells the size of as few equal parts as no part is larger than ``most`` with."""
    parts = max(1, -(-size // most))
    return max(1, -(-size // parts))
