"""``thinpipe train --dry-run``: the numbers that it promises are those that a run then has."""

import json

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.train.log import RunFolder, StepLine

ROW = 16 * 64 + 64
"""Numbers of a row that cross both cuts: 16 maps of 8 x 8, and 64 means."""


def invoke(*words, environment=None):
    result = CliRunner().invoke(app, ["train", "digits", *map(str, words)], env=environment)
    assert result.exit_code == 0, result.output
    return result.output


def promised(*words, environment=None):
    return json.loads(invoke(*words, "--dry-run", "--json", environment=environment).splitlines()[-1])


def test_a_dry_run_tells_recipe_plan_bytes_and_memory_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = invoke("--stages", 3, "--codec", "had:4", "--chunks", 4, "--dry-run")
    for text in ("lr = 0.1", "23 steps an epoch, 230 steps in all", "wide to flat, 9", "16 x 16 x 8 x 8", "worker 2"):
        assert text in said
    assert not list(tmp_path.iterdir())


def test_the_bytes_are_those_of_the_steps_of_a_run(tmp_path):
    words = ("--stages", 3, "--codec", "had:4", "--grad-codec", "block:8", "--chunks", 4, "--epochs", 1)
    plan = promised(*words)["plan"]
    invoke(*words, "--run", tmp_path / "run")
    cost = next(line.cost for line in RunFolder(tmp_path / "run").lines() if isinstance(line, StepLine))
    assert plan["exact"] and plan["micro_batches"] == [16] * 4
    assert sum(cut["forward"] for cut in plan["cuts"]) == cost["sent"]
    assert sum(cut["backward"] for cut in plan["cuts"]) == cost["received"]
    assert sum(cut["raw_forward"] for cut in plan["cuts"]) == cost["raw_sent"] == 64 * ROW * 4
    assert [cut["shapes"] for cut in plan["cuts"]] == [[[16, 16, 8, 8]], [[16, 64]]]


def test_memory_is_of_weights_gradients_optimizer_and_what_the_backward_needs():
    plan = promised("--stages", 3)["plan"]
    first, middle, last = plan["stages"]
    assert [stage["parameters"] for stage in plan["stages"]] == [160, 23232, 650]
    # Two layers of BatchNorm have a mean, a variance and a counter of 8 bytes each.
    assert middle["weights"] == 4 * (23232 + 2 * 32 + 2 * 64) + 2 * 8
    assert middle["gradients"] == middle["optimizer"] == 4 * 23232, "momentum is kept once for each weight"
    # The convolution keeps the images; ReLU keeps its output.
    assert first["activations"] == 4 * 64 * (64 + 16 * 64)
    assert last["activations"] == 4 * 64 * 64
    assert promised("--set", "momentum=0")["plan"]["stages"][0]["optimizer"] == 0
    assert promised("--set", "optimizer=adamw", "--set", "momentum=0")["plan"]["stages"][0]["optimizer"] == 8 * 24042


def ranks(world):
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "x", "MASTER_PORT": "1"}


def test_ranks_hold_as_many_micro_batches_as_their_schedule_has_under_way():
    u = promised("--map", "0,1,0", "--chunks", 8, environment=ranks(2))["plan"]
    assert [stage["where"] for stage in u["stages"]] == ["rank 0", "rank 1", "rank 0"]
    assert u["schedule"] == "1f1b" and u["stages"][2]["held"] < u["stages"][0]["held"] <= 8
    gpipe = promised("--map", "0,1,0", "--chunks", 8, "--schedule", "gpipe", environment=ranks(2))["plan"]
    assert [stage["held"] for stage in gpipe["stages"]] == [8, 8, 8]


def test_data_parallel_ranks_have_all_weights_and_a_part_of_the_rows():
    alone, shared = promised()["plan"], promised("--data-parallel", environment=ranks(4))["plan"]
    assert shared["summed"] == 4 * 24042
    assert shared["stages"][0]["weights"] == alone["stages"][0]["weights"]
    assert shared["stages"][0]["activations"] == pytest.approx(alone["stages"][0]["activations"] / 4, rel=0.01)


def test_replicas_share_rows_and_add_up_gradients():
    u = promised("--map", "0,1,0", "--chunks", 8, environment=ranks(2))["plan"]
    two = promised("--map", "0,1,0", "--chunks", 4, "--replicas", 2, environment=ranks(4))["plan"]
    assert [stage["where"] for stage in two["stages"]] == ["ranks 0, 2", "ranks 1, 3", "ranks 0, 2"]
    assert two["micro_batches"] == u["micro_batches"][:4] and two["summed"] == 4 * 24042
    assert [2 * cut["raw_forward"] for cut in two["cuts"]] == [cut["raw_forward"] for cut in u["cuts"]]


def test_a_server_is_not_asked_for_a_dry_run():
    plan = promised("--connect", "nowhere.invalid:1")["plan"]
    assert [stage["where"] for stage in plan["stages"]] == ["client", "server", "client"]


def test_of_large_batches_some_rows_are_measured():
    result = CliRunner().invoke(app, ["train", "two-machines", "--stages", "2", "--chunks", "1", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output.splitlines()[-1])["plan"]
    assert not plan["exact"] and plan["cuts"][0]["raw_forward"] % 64 == 0
    assert plan["cuts"][0]["shapes"][0][0] == 64
