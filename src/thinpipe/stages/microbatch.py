"""Splits a batch into micro-batches, and puts the outputs together again.

A batch may be a tensor or any nesting of tuples, lists and dictionaries. Its tensors are cut along their first
dimension; scalars and whatever is not a tensor go along whole with every micro-batch::

    {"ids": [10, 128], "mask": [10, 128], "scale": 0.5}     in 4 chunks
        ->  rows 3, 3, 2, 2, each with the same scale

The rows are spread evenly, so ten rows in four chunks never leave a straggler of one row, which BatchNorm would refuse;
and there are never more micro-batches than rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from thinpipe.errors import BatchError


@dataclass(frozen=True)
class NoChunk:
    """Marks a tensor that every micro-batch gets whole, such as a table of positions: ``pipe((x, NoChunk(table)))``.

    Args:
        tensor: what the first layer finds in its place.
    """

    tensor: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor):
            raise BatchError(f"NoChunk takes a tensor, got {type(self.tensor).__name__}; other values are never cut")


def row_counts(rows: int, chunks: int) -> list[int]:
    """Spreads rows over at most ``chunks`` micro-batches, as evenly as can be; an empty batch is one micro-batch."""
    m = max(1, min(rows, chunks))
    size, more = divmod(rows, m)
    return [size + 1] * more + [size] * (m - more)


@dataclass(frozen=True)
class Leaf:
    """What one leaf of a batch becomes: a value for all micro-batches, or a tensor to be cut.

    Args:
        value: the leaf, out of its ``NoChunk`` wrapping.
        cut: whether it is cut along its first dimension.
    """

    value: Any
    cut: bool


@dataclass(frozen=True)
class Batch:
    """A batch taken apart: its leaves, the shape of the nesting, and the rows of each micro-batch."""

    leaves: list[Leaf]
    spec: TreeSpec
    rows: list[int]

    @classmethod
    def of(cls, tree: Any, chunks: int) -> Batch:
        """Takes a batch apart for ``chunks`` micro-batches.

        Raises:
            BatchError: the tensors disagree about the number of rows.
        """
        values, spec = tree_flatten(tree)
        leaves = [_leaf(value) for value in values]
        return cls(leaves, spec, row_counts(_common_rows(leaves), chunks))

    def whole(self) -> Any:
        """Nests the leaves again, uncut."""
        return tree_unflatten([leaf.value for leaf in self.leaves], self.spec)

    def micro_batches(self) -> list[list[Any]]:
        """Lists the leaves of each micro-batch, cut loose from the caller's graph."""
        columns = [_column(leaf, self.rows) for leaf in self.leaves]
        return [[column[i] for column in columns] for i in range(len(self.rows))]

    def gather_grads(self, micro_grads: list[list[Tensor | None]]) -> list[Tensor | None]:
        """Puts together the gradients of the leaves from those of each micro-batch; the inverse of cutting them."""
        columns = [list(column) for column in zip(*micro_grads, strict=True)]
        return [_gathered(leaf, column, self.rows) for leaf, column in zip(self.leaves, columns, strict=True)]


def _leaf(value: Any) -> Leaf:
    if isinstance(value, NoChunk):
        return Leaf(value.tensor, cut=False)
    return Leaf(value, cut=isinstance(value, Tensor) and value.dim() > 0)


def _common_rows(leaves: list[Leaf]) -> int:
    sizes = [leaf.value.size(0) for leaf in leaves if leaf.cut]
    if not sizes:
        return 1
    if len(set(sizes)) > 1:
        shapes = ", ".join(str(tuple(leaf.value.shape)) for leaf in leaves if leaf.cut)
        raise BatchError(
            f"the tensors of a batch must have the same number of rows, got {shapes}; "
            "wrap a tensor that every micro-batch needs whole as thinpipe.NoChunk(tensor)"
        )
    return int(sizes[0])


def _column(leaf: Leaf, rows: list[int]) -> list[Any]:
    """Lists what each micro-batch gets of one leaf."""
    value = leaf.value
    if isinstance(value, Tensor):
        value = value.detach()
    if not leaf.cut or len(rows) == 1:
        return [value] * len(rows)
    # `.data` and not `.detach()`: micro-batches need version counters of their own, or an in-place layer on one of
    # them would seem to autograd to have changed what it saved of the others.
    ends = accumulate(rows)
    return [value.narrow(0, end - row, row).data for row, end in zip(rows, ends, strict=True)]


def _gathered(leaf: Leaf, grads: list[Tensor | None], rows: list[int]) -> Tensor | None:
    present = [grad for grad in grads if grad is not None]
    if len(present) <= 1 and len(present) == len(grads):
        return present[0]
    if not present:
        return None
    if not leaf.cut:
        return torch.stack(present).sum(0)
    rest = leaf.value.shape[1:]
    return torch.cat(
        [present[0].new_zeros((row, *rest)) if grad is None else grad for grad, row in zip(grads, rows, strict=True)]
    )


@dataclass(frozen=True)
class Layout:
    """How one merged output lies over the micro-batches: enough to nest it, and to split its gradients again.

    Args:
        spec: the nesting the last layer returned.
        rows: the input rows of each micro-batch, which weigh scalars.
        sizes: for each leaf, its rows from each micro-batch; ``None`` for a scalar or a value that is no tensor.
    """

    spec: TreeSpec
    rows: list[int]
    sizes: list[list[int] | None]

    def nest(self, leaves: list[Any]) -> Any:
        """Nests merged leaves as the last layer did."""
        return tree_unflatten(leaves, self.spec)

    def scatter(self, leaf: int, grad: Tensor) -> list[Tensor]:
        """Splits the gradient of one merged leaf among the micro-batches; the inverse of merging."""
        sizes = self.sizes[leaf]
        if len(self.rows) == 1:
            return [grad]
        if sizes is None:
            return [grad * weight for weight in _weights(self.rows)]
        return list(torch.split(grad, sizes))


def gather(micro_outputs: list[list[Any]], specs: list[TreeSpec], rows: list[int]) -> tuple[list[Any], Layout]:
    """Merges the outputs of the micro-batches, leaf by leaf.

    Tensors are concatenated. A floating-point scalar, such as a mean loss, becomes the mean weighted by rows, which is
    what one device computes from the whole batch. Anything else must be the same for all micro-batches.

    Args:
        micro_outputs: the leaves of each micro-batch's output.
        specs: how each output nests them.
        rows: the input rows of each micro-batch.

    Raises:
        BatchError: the outputs differ in structure, or in a value that cannot be merged.
    """
    for i, spec in enumerate(specs):
        if spec != specs[0]:
            raise BatchError(
                f"micro-batch {i} returned another structure than micro-batch 0: {spec} and {specs[0]}; "
                "the last layer must return the same nesting for every micro-batch"
            )
    columns = list(zip(*micro_outputs, strict=True))
    return [_merge(column, rows) for column in columns], Layout(specs[0], rows, [_sizes(column) for column in columns])


def _sizes(column: tuple[Any, ...]) -> list[int] | None:
    if isinstance(column[0], Tensor) and column[0].dim() > 0:
        return [tensor.size(0) for tensor in column]
    return None


def _weights(rows: list[int]) -> list[float]:
    total = sum(rows)
    return [row / total if total else 1 / len(rows) for row in rows]


def _merge(column: tuple[Any, ...], rows: list[int]) -> Any:
    if len(column) == 1:
        return column[0]
    if not isinstance(column[0], Tensor):
        return _same(column)
    if column[0].dim() > 0:
        return torch.cat(column)
    if not (column[0].is_floating_point() or column[0].is_complex()):
        _same(tuple(tensor.item() for tensor in column))
        return column[0]
    return torch.stack([tensor * weight for tensor, weight in zip(column, _weights(rows), strict=True)]).sum()


def _same(column: tuple[Any, ...]) -> Any:
    if any(value is not column[0] and value != column[0] for value in column[1:]):
        raise BatchError(
            f"the micro-batches returned different values, {column[0]!r} and others, that cannot be merged; "
            "return a tensor with a row for each row of the input instead"
        )
    return column[0]
