"""Ranks train on the same rows: their stages leave the generators alone, and who is at other rows is found out."""

import subprocess
import sys
from pathlib import Path

import pytest

EXACT = 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "zb"])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("where", [[0], [1], [0, 1, 2]], ids=str)
def test_batches_that_every_rank_draws_by_itself_are_those_of_one_device(pool, where, checkpoint, schedule):
    """Dropout used to move the generator of its rank, and the next epoch's order with it."""
    found = pool.run("epochs_of_randperm", 3, where=where, checkpoint=checkpoint, schedule=schedule)
    assert max(max(each) for each in found) < EXACT, found


def test_a_stage_may_use_the_checkpoints_of_pytorch(pool):
    """They recompute what a stage drew, from the default generator as it was in the forward."""
    assert max(pool.run("checkpointed_inside", 2)) < EXACT


@pytest.mark.parametrize("options", [{}, {"checkpoint": "always"}, {"chunks": 1}, {"schedule": "zb"}], ids=str)
def test_no_rank_moves_its_own_generator(pool, options):
    assert all(each["kept"] for each in pool.run("noise", 3, **options))


def test_the_seed_decides_what_is_drawn_and_nothing_is_drawn_twice(pool):
    first, again, other = (pool.run("noise", 2, seed=seed)[-1] for seed in (3, 3, 4))
    assert first == again
    assert len({*first["losses"], *other["losses"]}) == 6
    rows = [tuple(row) for found in (first, other) for output in found["outputs"] for row in output]
    assert len(set(rows)) == len(rows), "in every evaluation, micro-batch and row"
    # Evaluations do not count: whoever evaluates more often trains no differently.
    assert first["state"] == {"seed": 3, "step": 3}


def test_without_a_seed_that_of_rank_0s_generator_decides(pool):
    found = pool.run("noise", 3, own=True)
    assert [each["state"]["seed"] for each in found] == [100] * 3
    assert len({tuple(each["losses"]) for each in found}) == 1
    assert found == pool.run("noise", 3, own=True)
    assert pool.run("noise", 3, seed=100)[0]["losses"] == found[0]["losses"]


def test_recomputation_and_schedule_change_nothing_of_what_is_drawn(pool):
    losses = [
        pool.run("noise", 2, seed=3, checkpoint=checkpoint, schedule=schedule)[0]["losses"]
        for checkpoint in ("never", "always")
        for schedule in ("gpipe", "1f1b")
    ]
    assert all(each == losses[0] for each in losses)


def test_replicas_draw_different_numbers(pool):
    found = pool.run("noise", 4, seed=3, replicas=2)
    one, other = (each["outputs"] for each in found if each["outputs"][0] is not None)
    assert not {tuple(row) for output in one for row in output} & {tuple(row) for output in other for row in output}


def test_a_pipe_in_a_stage_of_a_pipeline_draws_and_does_not_hang(pool):
    found = pool.run("a_pipe_in_a_stage", 2)
    assert all(each["kept"] for each in found)
    assert found[0]["losses"][0] != found[0]["losses"][1]


# -- ranks that are not at the same rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "culprit", "compared"),
    [
        ("targets", 2, "a digest of the targets"),
        ("rows", 2, "rows="),
        ("rows", 1, "rows="),
        ("numbers", 2, "rows= is 1 on rank 0 and 2 on rank 2"),
    ],
)
def test_a_rank_with_other_rows_ends_all_with_an_error_that_names_both(pool, what, culprit, compared):
    found = pool.run("rows_apart", 3, what=what, culprit=culprit)
    assert [each["kind"] for each in found].count("DisagreementError") >= 1
    for each in found:
        assert each["seconds"] < 10
        assert f"rank 0 and rank {culprit} are not at the same rows in step 1" in each["text"], each
        assert compared in each["text"] and "leave a batch out on all of them or on none" in each["text"], each


def test_rows_that_the_last_rank_does_not_name_are_no_proof(pool):
    for each in pool.run("rows_apart", 3, what="rows of some"):
        assert (
            "rank 0 and rank 2 are not at the same rows in step 0" in each["text"] and "None on rank 2" in each["text"]
        )


def test_what_cannot_name_rows_is_refused(pool):
    assert all(
        "a tensor of indices, a list, a number" in each["text"] for each in pool.run("rows_apart", 3, what="nonsense")
    )


def test_generators_apart_are_warned_of_once_where_nothing_else_tells(pool):
    *others, last = pool.run("rows_apart", 3, what="nobody knows")
    assert last["kind"] is None and len(last["warned"]) == 1, last
    assert "rank 0 and rank 2" in last["warned"][0] and "Pass rows= to step()" in last["warned"][0]
    assert not any(each["warned"] or each["kind"] for each in others)


@pytest.mark.parametrize("what", ["well", "rows with generators apart", "placeholders", "a loss alone"])
def test_ranks_at_the_same_rows_are_left_in_peace(pool, what):
    for each in pool.run("rows_apart", 3, what=what):
        assert each["kind"] is None and not each["warned"], each


@pytest.mark.parametrize("culprit", [0, 2])
@pytest.mark.parametrize("then", ["gathers", "clips", "evaluates", "closes"])
def test_targets_tell_of_a_batch_that_one_of_both_ends_has_left_out(pool, then, culprit):
    for each in pool.run("step_left_out", 3, culprit=culprit, then=then):
        assert "rank 0 and rank 2 are not at the same rows in step 2" in each["text"] and each["seconds"] < 10, each


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize(
    ("then", "texts"),
    [
        ("gathers", ["waits for the others after 4 steps", "is in step 4", "leaves out, all must leave out"]),
        ("evaluates", ["evaluate()", "step()", "in step 4"]),
        ("closes", ["closed its pipeline after 4 steps", "step 4"]),
    ],
)
def test_a_rank_that_leaves_out_a_step_is_found_at_the_next_thing_that_all_do(pool, then, texts, culprit):
    """Not after ``patience``: it used to wait for the others, and they for it."""
    found = pool.run("step_left_out", 3, culprit=culprit, then=then, targets=culprit == 1)
    if then == "closes":
        assert found.pop(culprit)["kind"] is None, "it is done, and gone"
    for each in found:
        assert each["kind"] is not None and each["seconds"] < 10, each
        assert all(text in each["text"] for text in texts) and "rank " in each["text"], each
    if then == "gathers":
        assert all(each["kind"] == "DisagreementError" for each in found), found
        assert all(f"rank {culprit} " in each["text"] for each in found), found


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_example_of_the_page_runs_on_real_ranks(tmp_path):
    """It reads what ``evaluate`` returns, which only the rank of the last stage has."""
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    (block,) = [each.split("```")[0] for each in page.split("```python\n") if "pipeline.evaluate(" in each]
    (tmp_path / "train.py").write_text(block)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("loss") == 2 and done.stdout.count("torch.Size([5, 10])") == 1, done.stdout
