"""Triton's kernels give the reference's bytes: in its interpreter here, compiled where there is a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = Path(__file__).parent / "triton_cases.py"


def differing_cases(device, what, **environment):
    """Runs all cases in a process of their own; returns those that differ, and how many there were."""
    command = [sys.executable, SCRIPT, device, what]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {case: count for case, count in found.items() if count}, len(found)


def test_every_kernel_gives_the_references_bytes_in_tritons_interpreter():
    differing, total = differing_cases("cpu", "kernels", TRITON_INTERPRET="1")
    assert not differing
    assert total > 500


def test_every_codec_gives_the_references_bytes_both_ways_in_tritons_interpreter():
    """Channels lie last, as they do in training on a GPU, where gradients of ``topk`` came back in wrong places."""
    differing, total = differing_cases("cpu", "codecs", TRITON_INTERPRET="1")
    assert not differing
    assert total >= 10


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_codec_gives_the_references_bytes_both_ways_on_a_gpu():
    differing, total = differing_cases("cuda", "codecs")
    assert not differing
    assert total >= 40


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_kernel_gives_the_references_bytes_on_a_gpu():
    differing, total = differing_cases("cuda", "kernels")
    assert not differing
    assert total > 500
