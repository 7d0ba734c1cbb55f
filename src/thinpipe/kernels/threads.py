"""Spreads a kernel over cores.

The compiled kernels work on a range and release the GIL; plain threads run them. numba's own thread layers are not
used: the default one aborts the process when two threads enter it at once, and codecs do run on several threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

GRAIN = 1 << 20
"""Fewer elements than this are not worth another thread: it has them done in a millisecond or two.

Codecs work beside a model that computes on all cores. There whoever waits for many threads waits for the last of them
to be given a core, and one alone is sooner done.
"""


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - after a fork the threads are the parent's
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="thinpipe-kernel")


def ranges(count: int, unit: int) -> list[tuple[int, int]]:
    """Cuts 0..count into a range for each thread that torch would use here, at multiples of the unit."""
    parts = max(1, min(torch.get_num_threads(), count // GRAIN))
    size = max(1, -(-count // (parts * unit))) * unit
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def spread(count: int, unit: int, work: Callable[[int, int], None]) -> None:
    """Does the work for every range, the first in the calling thread.

    Args:
        count: how many elements there are.
        unit: where ranges may be cut: at its multiples.
        work: is called with the start and the end of a range; must release the GIL to gain anything.
    """
    first, *others = ranges(count, unit) or [(0, 0)]
    futures = [_pool(os.getpid()).submit(work, *part) for part in others]
    work(*first)
    for future in futures:
        future.result()
