"""Orthonormal columns of many matrices at once."""

from __future__ import annotations

import torch
from torch import Tensor

_LOST = 1e-12
"""A column with less than this share of its length left is a sum of those before it, but for rounding."""


def orthonormal(columns: Tensor) -> Tensor:
    """Makes the columns of matrices orthonormal, soundly where they are nearly or wholly dependent.

    In float64: in float32 some libraries lose three digits on long columns of nearly equal values.

    Args:
        columns: of each matrix, no more than it has rows.
    """
    precise = columns.double()
    # What decomposes matrices on GPUs takes them one after the other, and a batch has hundreds.
    found = _decomposed(precise) if precise.device.type == "cpu" else column_by_column(precise)
    return found.to(columns)


def _decomposed(columns: Tensor) -> Tensor:
    """Has a library do it, and turns columns round that it made point the other way, so that they are as on GPUs."""
    found, shares = torch.linalg.qr(columns)
    return torch.where(shares.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) < 0, -found, found)


def column_by_column(columns: Tensor) -> Tensor:
    """Takes off each column what the columns before it have of it, in all matrices together.

    Of a column that nothing is left of, one of noise takes the place, so that there are as many as there were.
    """
    noise = torch.randn(columns.shape[-2:], generator=torch.Generator().manual_seed(0), dtype=columns.dtype)
    done = columns.new_empty((*columns.shape[:-2], 0, columns.shape[-2]))
    for column, other in zip(columns.mT.unbind(-2), noise.to(columns.device).mT.unbind(-2), strict=True):
        left, spare = _apart(column, done), _apart(other.expand_as(column), done)
        lost = ~(_length(left) > _LOST * _length(column))
        found = torch.where(lost, spare, left)
        done = torch.cat([done, (found / _length(found)).unsqueeze(-2)], -2)
    return done.mT


def _apart(column: Tensor, done: Tensor) -> Tensor:
    """Takes off a column what orthonormal ones have of it; twice, as the first time leaves their rounding."""
    for _ in range(2):
        shares = done @ column.unsqueeze(-1)
        column = column - (shares * done).sum(-2)
    return column


def _length(column: Tensor) -> Tensor:
    return torch.linalg.vector_norm(column, dim=-1, keepdim=True)  # type: ignore[no-any-return]
