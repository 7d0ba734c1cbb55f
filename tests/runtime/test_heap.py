"""Memory that is kept: what a step frees, the next one has without asking the system."""

import os
import platform
import subprocess
import sys

import pytest

from thinpipe.runtime.heap import ALLOCATOR

_STEPS = """
import resource, sys
import torch
from thinpipe import keep_memory

torch.set_num_threads(1)
kept = keep_memory() if sys.argv[1] == "keep" else None


def step():
    tensors = [torch.ones(12 << 20) for _ in range(3)]  # of 48 MiB: glibc never keeps pieces of more than 32


for _ in range(6):  # until the heap has a place for everything
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_LEFT = """
from pathlib import Path
import torch
from thinpipe import keep_memory
from thinpipe.runtime.heap import return_memory


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


assert keep_memory()
before = memory()
torch.ones(64 << 20)
kept = memory() - before
return_memory()
print(kept >> 20, (memory() - before) >> 20)
"""

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")


def said(program: str, *words: str, **environment: str) -> list[str]:
    """What a process says whose allocator nobody else chose."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ALLOCATOR)}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


def steps(what: str, **environment: str) -> tuple[str, int]:
    """Takes steps in a process of its own; returns what was said of its memory, and its page faults."""
    kept, faults = said(_STEPS, what, **environment)
    return kept, int(faults)


@needs_glibc
def test_kept_memory_is_not_asked_for_again():
    _, returned = steps("leave")
    kept, faults = steps("keep")
    assert kept == "True"
    # Pages may be of 4 kB or of 2 MB, and every one of them was new before.
    assert faults < returned / 20


@needs_glibc
def test_whoever_chose_an_allocator_keeps_it():
    kept, _ = steps("keep", MALLOC_ARENA_MAX="2")
    assert kept == "False"


@needs_glibc
def test_a_server_whose_client_has_left_can_give_its_memory_back():
    kept, left = map(int, said(_LEFT))
    assert kept >= 250 and left < 30
