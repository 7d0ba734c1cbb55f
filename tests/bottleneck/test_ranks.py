"""Two real processes train a model with bottlenecks at its cuts as one device would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.models import images


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    store = tmp_path_factory.mktemp("ranks") / "store"
    script = Path(__file__).parent / "ranks.py"
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=100) for rank in running]
    finally:
        for rank in running:
            rank.kill()
    for rank, (_, errors) in zip(running, outputs, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("schedule", ["1f1b", "zb"])
def test_losses_and_gradients_are_those_of_one_device(ranks, schedule):
    assert max(rank[schedule]["difference"] for rank in ranks) < 1e-12


def test_each_rank_has_its_halves_and_its_part_of_the_model(ranks):
    ends, middle = (rank["1f1b"]["names"] for rank in ranks)
    halves = [{name.split(".")[0] for name in names if name.startswith("bottleneck")} for names in (ends, middle)]
    assert halves == [{"bottleneck0_sender", "bottleneck1_receiver"}, {"bottleneck0_receiver", "bottleneck1_sender"}]
    model = {name for name in (*ends, *middle) if not name.startswith("bottleneck")}
    assert model == set(images(norm=False).state_dict())
