"""Deals the batches of one device out to replicas: each gets its part of every batch, and all parts are the batch.

::

    one device   [7 2 9 4 1]  [0 8 3 5 6]  [10]
    replica 0    [7 2 9]      [0 8 3]      [10]
    replica 1    [4 1]        [5 6]        []        nothing is repeated or dropped to make parts equal
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import BatchSampler, Sampler, default_collate

from thinpipe import arguments
from thinpipe.errors import ArgumentError
from thinpipe.stages.microbatch import row_counts


class ReplicaBatches(Sampler[list[int]]):
    """A batch sampler for one replica of a ``Pipeline``: the rows that it has of each batch, perhaps none.

    Unlike ``DistributedSampler`` it repeats no row and drops none, since replicas may have different numbers of rows.

    Args:
        source: the number of rows of a data set; or a sampler, or a batch sampler, of one device, that gives all
            replicas the same: one that shuffles needs a generator with the same seed everywhere.
        replica: whose part it is, ``pipeline.replica``.
        replicas: how many there are, ``pipeline.replicas``.
        batch_size: rows of a batch, over all replicas. Default: ``source`` gives batches.
        shuffle: whether rows are shuffled, anew in each epoch, where ``source`` is a number. Default: ``False``.
        seed: decides, with the epoch, how. Default: 0.
        drop_last: whether a last batch with fewer rows is left out. Default: ``False``.

    Raises:
        ValueError: there is no such replica, or the other arguments do not fit together.
    """

    def __init__(
        self,
        source: int | Iterable[int] | Iterable[Sequence[int]],
        *,
        replica: int,
        replicas: int,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        arguments.whole("replicas", replicas)
        arguments.whole("replica", replica, least=0)
        if batch_size is not None:
            arguments.whole("batch_size", batch_size)
        arguments.flag("shuffle", shuffle)
        arguments.flag("drop_last", drop_last)
        arguments.whole("seed", seed, least=0)
        if isinstance(source, int):
            arguments.whole("source, a number of rows,", source, least=0)
        elif isinstance(source, str) or not isinstance(source, Iterable):
            raise ArgumentError(f"source must be a number of rows, a sampler or a batch sampler, got {source!r:.100}")
        if not 0 <= replica < replicas:
            raise ArgumentError(f"replica {replica} of {replicas}: they are counted from 0 to {replicas - 1}")
        if isinstance(source, int) and batch_size is None:
            raise ArgumentError(f"{source} rows need a batch_size, got None")
        if shuffle and not isinstance(source, int):
            raise ArgumentError("a sampler shuffles, or not, by itself; leave shuffle out, or pass the number of rows")
        if drop_last and batch_size is None:
            raise ArgumentError("a batch sampler drops its last batch, or not, by itself; leave drop_last out")
        self._source = source
        self._replica, self._replicas = replica, replicas
        self._batch_size, self._drop_last = batch_size, drop_last
        self._shuffle, self._seed = shuffle, seed
        self._epoch = self._skipped = 0

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Says which epoch the next one is.

        Args:
            epoch: its number, which decides how rows are shuffled.
            skip: its first batches, which were trained on before a restart. Default: 0.
        """
        self._epoch, self._skipped = epoch, skip
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self._skipped = self._skipped, 0
        for batch in islice(self._batches(), skipped, None):
            sizes = row_counts(len(batch), self._replicas)
            sizes += [0] * (self._replicas - len(sizes))
            first = sum(sizes[: self._replica])
            yield list(batch[first : first + sizes[self._replica]])

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        rows = self._source if isinstance(self._source, int) else len(self._source)  # type: ignore[arg-type]
        if self._batch_size is None:
            return rows
        return rows // self._batch_size if self._drop_last else -(-rows // self._batch_size)

    def _batches(self) -> Iterable[Sequence[int]]:
        if self._batch_size is None:
            return self._source  # type: ignore[return-value]
        return BatchSampler(self._rows(), self._batch_size, self._drop_last)

    def _rows(self) -> Iterable[int]:
        if not isinstance(self._source, int):
            return self._source  # type: ignore[return-value]
        if not self._shuffle:
            return range(self._source)
        # Two numbers, and not their sum: the second epoch of one seed is not the first of the next.
        generator = torch.Generator().manual_seed(_mixed(self._seed, self._epoch))
        return torch.randperm(self._source, generator=generator).tolist()


def _mixed(seed: int, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Collate:
    """Makes a batch of samples for a ``DataLoader``, and of no samples a batch without rows.

    Args:
        dataset: where samples come from; its first one tells what a batch without rows looks like.
        collate_fn: makes a batch of samples. Default: as ``DataLoader`` does it.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] = field(default=default_collate)

    def __call__(self, samples: list[Any]) -> Any:
        """Makes the batch."""
        if samples:
            return self.collate_fn(samples)
        return tree_map(lambda x: x[:0] if isinstance(x, Tensor) and x.dim() else x, self.collate_fn([self.dataset[0]]))
