"""Kernels on many threads at once, in children of a process that has used them, and compiled only once."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from codec_support import tensor_of
from thinpipe import codec
from thinpipe.kernels import REFERENCE, cpu_kernels, kernels_for, using
from thinpipe.kernels.threads import GRAIN, ranges, spread

SPECS = ["uniform:8", "sort:6+2", "block:4", "had:4", "nf:4", "kmeans:4", "topk:0.1", "block:8,sr"]


@pytest.fixture
def _two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def crossed(spec, x):
    a = codec(spec)
    packet = a.encode(x)
    return bytes(packet), a.decode(packet)


def at_once(jobs):
    """Runs each job in a thread of its own, all begun together; returns their results in order."""
    results, start = [None] * len(jobs), threading.Barrier(len(jobs))

    def run(k):
        torch.set_num_threads(2)  # counted for each thread that torch has not seen
        start.wait(20)
        results[k] = [jobs[k]() for _ in range(3)]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(
    "specs", [SPECS, *([spec] * 8 for spec in ("sort:6+2", "block:4", "had:4"))], ids=lambda s: s[1]
)
def test_eight_threads_at_once_get_what_one_gets(specs):
    """numba's own workqueue layer ends the process when two threads enter it; stages do run on several."""
    tensors = [tensor_of("gaussian", (3 * GRAIN + k,), seed=k) for k in range(8)]
    alone = [crossed(spec, x) for spec, x in zip(specs, tensors, strict=True)]
    jobs = [lambda spec=spec, x=x: crossed(spec, x) for spec, x in zip(specs, tensors, strict=True)]
    for (message, tensor), results in zip(alone, at_once(jobs), strict=True):
        for again in results:
            assert again[0] == message
            assert torch.equal(again[1], tensor)


FORKING = """
import os, sys, torch
from thinpipe import codec

torch.set_num_threads(2)
x = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
expected = {spec: bytes(codec(spec).encode(x)) for spec in sys.argv[1:]}
child = os.fork()
same = all(bytes(codec(spec).encode(x)) == message for spec, message in expected.items())
if child == 0:
    os._exit(0 if same else 3)
assert same
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_threads_of_its_own():
    """Data loaders fork; the pool's threads are then the parent's alone, and waiting for them would never end."""
    command = [sys.executable, "-c", FORKING, "uniform:8", "sort:6+2", "block:4", "had:4"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


CACHED = """
import torch
from thinpipe.kernels import cpu, cpu_kernels
from thinpipe.kernels.cpu_blocks import _encode

cpu_kernels().blocks_encode(torch.randn(1000), 4, 128, None)
hits = sum(_encode.stats.cache_hits.values())
print(hits, sum(_encode.stats.cache_misses.values()))
"""


def test_kernels_are_compiled_once_and_kept(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    seen = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert result.returncode == 0, result.stderr
        seen.append(result.stdout.split())
    assert seen == [["0", "1"], ["1", "0"]]
    assert list(Path(tmp_path).rglob("*.nbc"))


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("count", [0, 1, GRAIN, 2 * GRAIN - 1, 2 * GRAIN, 5 * GRAIN + 3])
@pytest.mark.parametrize("unit", [8, 1024, 100_000])
def test_ranges_cover_everything_once_and_begin_at_whole_units(count, unit):
    parts = ranges(count, unit)
    assert [start for start, _ in parts] + [count] == [0] * (count > 0) + [stop for _, stop in parts] + [0] * (
        count == 0
    )
    assert all(start % unit == 0 for start, _ in parts)
    assert len(parts) <= 2
    done = []
    spread(count, unit, lambda a, b: done.append((a, b)))
    assert sorted(done) == (parts or [(0, 0)])


@pytest.mark.usefixtures("_two_threads")
def test_what_goes_wrong_in_a_thread_is_said_to_the_caller():
    def work(start, _):
        if start:
            raise ValueError("in the second range")

    with pytest.raises(ValueError, match="in the second range"):
        spread(4 * GRAIN, 8, work)


def test_kernels_are_chosen_by_hand_for_the_calling_thread_alone():
    cpu = torch.device("cpu")
    seen = []
    with using(REFERENCE):
        assert kernels_for(cpu) is REFERENCE
        thread = threading.Thread(target=lambda: seen.append(kernels_for(cpu)))
        thread.start()
        thread.join()
    assert seen == [cpu_kernels()]
    assert kernels_for(cpu) is cpu_kernels()
    assert kernels_for(cpu, torch.float64) is REFERENCE
