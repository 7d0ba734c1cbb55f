"""DistributedDataParallel around a Pipe: two real processes over gloo, gradients equal to one device's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [
    *(f"{model} {mode}" for model in ("plain", "branching", "normed") for mode in ("always", "except_last", "never")),
    *(f"{kind} {mode}" for kind in ("accumulated", "bucket views") for mode in ("always", "never")),
]


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """Starts both ranks once for all cases."""
    store = tmp_path_factory.mktemp("ddp") / "store"
    rank_script = Path(__file__).parent / "ddp_rank.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, rank_script, str(rank), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("case", CASES)
def test_gradients_under_ddp_equal_one_device(differences, case):
    for of_rank in differences:
        assert of_rank[case] < 1e-12


def test_every_case_ran(differences):
    assert set(differences[0]) == set(differences[1]) == set(CASES)
