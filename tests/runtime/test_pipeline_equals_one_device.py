"""A pipeline of real processes computes what one device computes: the loss, every gradient, the trained weights."""

import pytest

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb"]
EXACT = 1e-13
"""In double precision; sums over micro-batches are taken in another order."""


@pytest.mark.parametrize("kind", ["chain", "U", "skips"])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_equal_those_of_one_device(pool, schedule, world, kind):
    """Four micro-batches of eight rows, of ten, of seven, and fewer rows than micro-batches."""
    for found in pool.run("gradients", world, kind=kind, schedule=schedule, rows=[8, 10, 7, 3, 1]):
        assert max(found.values()) < EXACT, found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_micro_batches_than_stages_and_fewer(pool, schedule):
    for chunks in (1, 2, 9):
        for found in pool.run("gradients", 3, kind="chain", schedule=schedule, rows=[18], chunks=chunks):
            assert max(found.values()) < EXACT, found


def test_one_rank_may_have_all_stages(pool):
    """The same script runs under any number of processes."""
    (found,) = pool.run("gradients", 1, kind="chain", schedule="interleaved", rows=[8, 3])
    assert max(found.values()) < EXACT, found


@pytest.mark.parametrize(("schedule", "kind"), [("1f1b", "U"), ("zb", "chain"), ("interleaved", "skips")])
def test_weights_trained_by_several_steps_are_equal(pool, schedule, kind):
    found = pool.run("training", 3, schedule=schedule, kind=kind)
    assert all(each["weights"] < 1e-12 for each in found), found
    assert all(each["losses"] == found[0]["losses"] for each in found), "every rank is told the same loss"


@pytest.mark.parametrize(
    ("theirs", "ours", "depth"),
    [
        ("ScheduleGPipe", "gpipe", 1),
        ("Schedule1F1B", "1f1b", 1),
        ("ScheduleInterleaved1F1B", "interleaved", 2),
        ("ScheduleInterleavedZeroBubble", "zb", 2),
    ],
)
def test_gradients_equal_those_of_torch_distributed_pipelining(pool, theirs, ours, depth):
    for world in (2, 4):
        assert max(pool.run("against_torch", world, theirs=theirs, ours=ours, depth=depth)) < EXACT


CODECS = ["none", "uniform:8", "sort:6+2", "block:4", "had:4", "topk:0.25", "downsample:2", "ef(block:4)"]
CODECS += ["block:4|zstd"]


def assert_same_bits(found):
    for each in found:
        assert not any(each["differing"]) and not each["strangers"], found


@pytest.mark.parametrize("codec", [*CODECS, "power:2|block:8"])
def test_codecs_make_the_same_bits_as_in_a_pipe(pool, codec):
    assert_same_bits(pool.run("same_bits_as_pipe", 2, codec=codec, grad_codec=codec))


def test_each_cut_and_direction_may_have_its_own_codec(pool):
    choice = {"codec": {1: "sort:6+2", 0: "block:4"}, "grad_codec": {0: "uniform:8"}}
    for kind in ("chain", "U", "skips"):
        assert_same_bits(pool.run("same_bits_as_pipe", 3, kind=kind, **choice))


def test_what_codecs_remember_stays_the_same_over_many_steps(pool):
    found = pool.run("same_bits_as_pipe", 3, codec="power:2", grad_codec="ef(block:2)", kind="U", steps=6)
    assert_same_bits(found)
    assert any(each["remembered"] for each in found)
