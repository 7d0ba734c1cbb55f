"""Keeps the memory of tensors that were freed, for the tensors of the next step.

A step frees what it allocated, and the next one allocates the same again. glibc gives large pieces back to the system
at once, and is given them page by page, each filled with zeros first::

    step            allocate ░░░░ compute ████ free ░░ │ allocate ░░░░ compute ████ free ░░ │ ...
    with all kept   allocate ░░░░ compute ████         │ compute ████ │ compute ████ │ ...

On a CPU this may take longer than the layers themselves; docs/benchmarks.md has figures.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

ALLOCATOR = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")
"""What the names of variables begin with by which somebody has chosen how memory is allocated."""

_OPTIONS = {
    -4: 0,  # M_MMAP_MAX: no piece is taken from the system by itself, to be given back by itself
    -1: -1,  # M_TRIM_THRESHOLD: the heap never shrinks
    -8: 1,  # M_ARENA_MAX: one heap for all threads; those of further ones end at 64 MiB
}
"""glibc's numbers of options (malloc.h), and what each is set to."""


@cache
def keep_memory() -> bool:
    """Has this process keep memory that is freed, from now on.

    It stays as large as it once was, until ``return_memory``. ``thinpipe train`` and ``thinpipe serve`` do this; call
    it first thing in a program of your own that trains on a CPU.

    Returns:
        Whether it does. Not without glibc, nor where the environment says how to allocate (``MALLOC_...``,
        ``GLIBC_TUNABLES``, ``LD_PRELOAD``).
    """
    if not _is_glibc() or any(name.startswith(ALLOCATOR) for name in os.environ):
        return False
    heap = ctypes.CDLL(None)
    return all(heap.mallopt(option, value) == 1 for option, value in _OPTIONS.items())


def return_memory() -> None:
    """Gives what nobody uses back to the system, as when a client has left whose tensors were larger than others'."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
