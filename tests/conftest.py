"""Every test starts from the same seed and one intra-op thread: two cores are shared by the stages' threads."""

import hashlib
import os
import signal
from pathlib import Path

# numba keeps compiled kernels beside their sources and compiles anew when a source changes, but not when a function
# that was inlined from another file does. A folder for each state of the sources cannot be out of date. Set before
# numba is imported, and inherited by the tests' own processes.
_ROOT = Path(__file__).parents[1]
_SOURCES = sorted((_ROOT / "src/thinpipe/kernels").glob("*.py"))
_STATE = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(_ROOT / ".pytest_cache" / f"numba-{_STATE}"))

# A shell starts what runs in the background with Ctrl-C ignored, and so would be the tests of what Ctrl-C does.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# What fixtures of modules compute, before the first test, is compared with what tests compute, bit for bit.
torch.set_num_threads(1)

# The same examples in every run, so that a change is judged by what it changed. New ones are looked for with
# HYPOTHESIS_PROFILE=explore, as often as one likes. No example has a deadline of its own: the first one of a process
# pays for what torch and numba load, and every test has pytest's.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


_LONG = ("test_docs.py", "train/test_ways_ranks.py", "test_demo.py", "test_examples.py")
"""Files that begin first: one that takes minutes, begun last, would have all others wait for it."""


def pytest_collection_modifyitems(items):
    long = [_ROOT / "tests" / name for name in _LONG]
    items.sort(key=lambda item: long.index(item.path) if item.path in long else len(long))


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1, "somebody changed the caller's number of threads"
