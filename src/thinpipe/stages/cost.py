"""Spreads layers over stages so that the slowest stage is as fast as it can be: an exact min-max partition.

Pipelines run at the speed of their slowest stage, so that is what is minimised, over all ways to cut the row of layers
into consecutive blocks. Among the best ways, the one whose blocks are most alike is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from thinpipe import arguments
from thinpipe.errors import BalanceError

_Join = Callable[[Tensor, Tensor], Tensor]


def balance_cost(cost: Iterable[float], partitions: int) -> list[int]:
    """Cuts a row of costs into ``partitions`` consecutive blocks whose largest sum is the least possible.

    Args:
        cost: the cost of each layer, none negative.
        partitions: the number of blocks; each gets at least one layer.

    Returns:
        The number of layers of each block.

    Raises:
        BalanceError: there are fewer layers than blocks, or a cost is negative or not a number.
    """
    partitions = arguments.whole("partitions", partitions, error=BalanceError)
    costs = torch.tensor([float(x) for x in cost], dtype=torch.float64)
    n = len(costs)
    if n < partitions:
        raise BalanceError(f"cannot cut {n} layers into {partitions} partitions; ask for at most {n}")
    if bool((~(costs >= 0)).any()) or bool(costs.isinf().any()):
        raise BalanceError(f"costs must be finite and not negative, got {costs.tolist()}")

    # blocks[a, b] is the cost of layers a to b-1; a block without layers costs infinitely much.
    sums = torch.cat([costs.new_zeros(1), costs.cumsum(0)])
    blocks = (sums[None, :] - sums[:, None]).clamp_min(0)
    blocks.masked_fill_(torch.ones_like(blocks, dtype=torch.bool).tril(), torch.inf)

    bound = _best(blocks, partitions, torch.maximum)[0]
    # Rounding in the sums must not make the best partition look better than it is.
    allowed = blocks <= bound * (1 + 1e-12)
    ends = _best(blocks.square().masked_fill(~allowed, torch.inf), partitions, torch.add)[1]
    return [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _best(blocks: Tensor, partitions: int, join: _Join) -> tuple[float, list[int]]:
    """Finds the cheapest way to cut all layers into blocks, and where each block ends.

    ``best[b]`` is the cheapest way to cover the first ``b`` layers with the blocks so far, and each round adds one
    block to all of them at once.
    """
    best, choices = blocks[0], []
    for _ in range(partitions - 1):
        joined = join(best[:, None].expand_as(blocks), blocks)
        best, choice = joined.min(dim=0)
        choices.append(choice)
    ends = [len(blocks) - 1]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return float(best[-1]), ends[::-1]
