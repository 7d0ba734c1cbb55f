"""Limits on what one call may cost: processor time, and memory asked for."""

import ctypes
import gc
import resource
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

SECONDS = 0.05
BYTES = 10_000_000

_HANGS = 1.0
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def begin():
    """Prepares a process of its own for ``limited``: memory is asked of the system, and what is here is no garbage."""
    if sys.platform == "linux":
        # Every larger block by itself, so that no block comes from what an earlier one left.
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
        libc.mallopt(_M_ARENA_MAX, 1)
    gc.collect()
    gc.freeze()


@contextmanager
def limited(*, seconds=SECONDS, size=BYTES):
    """Fails what takes longer, in seconds of this process's processor time, and denies it more than ``size`` bytes.

    What is denied memory raises MemoryError, or torch's RuntimeError. Memory is limited in a process that has called
    ``begin``; without a size it is not.
    """
    with _memory(size):
        before = signal.signal(signal.SIGPROF, _hangs)
        signal.setitimer(signal.ITIMER_PROF, _HANGS)
        began = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            assert spent <= seconds, f"it took {spent:.3f} s"  # whatever it raised


@contextmanager
def _memory(size):
    if size is None or sys.platform != "linux":  # nothing else holds a process to RLIMIT_AS
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _hangs(*_):
    raise TimeoutError(f"it did not end within {_HANGS:g} s")
