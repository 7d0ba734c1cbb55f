"""Where a rank stands in a mesh of replicas: pipelines beside each other that train one model on one batch.

::

    replica 0   rank 0 ── rank 1 ── rank 2        workers 0, 1, 2: activations and gradients along a row
                  ║         ║         ║
    replica 1   rank 3 ── rank 4 ── rank 5        twins: the same stages in all rows, which add up their gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from thinpipe.errors import BalanceError


@dataclass(frozen=True)
class Mesh:
    """The place of one rank.

    Args:
        rank: among all ranks.
        world: the number of all ranks.
        replicas: the number of pipelines.

    Raises:
        BalanceError: the ranks cannot be dealt out so.
    """

    rank: int
    world: int
    replicas: int

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.world % self.replicas:
            raise BalanceError(
                f"{self.world} ranks cannot be {self.replicas} replicas of one pipeline; start a multiple of "
                "replicas, as torchrun's --nproc-per-node times --nnodes"
            )

    @property
    def workers(self) -> int:
        """The number of ranks of one replica."""
        return self.world // self.replicas

    @property
    def replica(self) -> int:
        """The replica that the rank belongs to."""
        return self.rank // self.workers

    @property
    def worker(self) -> int:
        """The place of the rank in its replica."""
        return self.rank % self.workers

    @property
    def team(self) -> list[int]:
        """The ranks of the same replica, this one included."""
        return [self.replica * self.workers + worker for worker in range(self.workers)]

    @property
    def twins(self) -> list[int]:
        """The ranks with the same stages, this one included, by replica."""
        return self.twins_of(self.rank)

    def twins_of(self, rank: int) -> list[int]:
        """Lists the ranks that are in each replica what a rank is in its own."""
        return [replica * self.workers + rank % self.workers for replica in range(self.replicas)]
