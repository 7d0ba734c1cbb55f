"""What a pipeline cannot do, it refuses on every rank at once: nobody hangs, and the same processes go on to train."""

import pytest

import thinpipe


def assert_all_ended(found):
    """Every rank ended with an error, soon, and could train afterwards."""
    assert all(each["kind"] is not None for each in found), found
    assert all(each["seconds"] < 10 for each in found), found
    assert all(each["after"] < 1e-12 for each in found), found


def assert_one_failed(found, culprit, kind, text):
    """One rank has an error of its own, and all others know whose it is."""
    assert_all_ended(found)
    assert found[culprit]["kind"] == kind and text in found[culprit]["text"], found[culprit]
    for rank, each in enumerate(found):
        if rank != culprit:
            assert each["kind"] == "PeerError" and f"rank {culprit} " in each["text"], each
            assert kind in each["text"] and text in each["text"], each


DISAGREEMENTS = {
    "codecs": ({"codec": "block:4"}, {"codec": "block:8"}, "block:4", "block:8"),
    "codecs of one cut": ({"grad_codec": {0: "sort:6+2"}}, {"grad_codec": {1: "sort:6+2"}}, "codecs", "sort:6+2"),
    "number of chunks": ({"chunks": 4}, {"chunks": 5}, "4", "5"),
    "schedule": ({"schedule": "gpipe"}, {"schedule": "zb"}, "'gpipe'", "'zb'"),
    "map": ({"map": [0, 1, 2]}, {"map": [2, 1, 0]}, "[0, 1, 2]", "[2, 1, 0]"),
    "layers": ({"balance": [1, 2, 1], "widths": [6] * 3 + [3]}, {"balance": [2, 1, 1]}, "['1', '2']", "['0', '1']"),
    "model": ({}, {"widths": [6, 7, 3]}, "model", "digest"),
    "recomputed stages": ({}, {"checkpoint": [1]}, "[]", "[1]"),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_were_started_with_different_values_all_say_so(pool, what):
    theirs, own, *values = DISAGREEMENTS[what]
    found = pool.run("started", 3, all_ranks=theirs, own=own)
    assert_all_ended(found)
    for rank, each in enumerate(found):
        assert each["kind"] == "DisagreementError", each
        assert f"rank {rank} " in each["text"] and "rank 1 " in each["text"], each
        assert all(value in each["text"] for value in values), each


def test_ranks_with_different_versions_of_the_library_do_not_start(pool):
    for each in pool.run("started", 2, version="0.0.1"):
        assert each["kind"] == "DisagreementError" and "version" in each["text"]
        assert "'0.0.1'" in each["text"] and repr(thinpipe.__version__) in each["text"]


@pytest.mark.parametrize(
    ("own", "kind", "text"),
    [
        ({"codec": "blok:4"}, "SpecError", "blok"),
        ({"schedule": "fastest"}, "ArgumentError", "'fastest'"),
        ({"chunks": 0}, "ArgumentError", "got 0"),
        ({"map": [0, 1, 3]}, "BalanceError", "[0, 1, 3]"),
        ({"balance": [1, 1]}, "BalanceError", "[1, 1]"),
        ({"balance": [1, 1], "device": "cuda:99"}, "BalanceError", "[1, 1]"),
        ({"device": "cuda:99"}, "DeviceError", "no cuda:99"),
        ({"checkpoint": "sometimes"}, "ArgumentError", "'sometimes'"),
        ({"recompute": "none"}, "ArgumentError", "'none'"),
        ({"codec": {7: "block:4"}}, "ArgumentError", "no cut 7"),
    ],
    ids=str,
)
def test_a_rank_that_cannot_start_tells_the_others_why(pool, own, kind, text):
    assert_one_failed(pool.run("started", 3, own=own), 1, kind, text)


def test_a_map_for_another_number_of_ranks_is_refused_everywhere(pool):
    for workers in ([0, 1, 2, 3], [0, 1, 0], [0, 1]):
        found = pool.run("started", 3, all_ranks={"map": workers})
        assert_all_ended(found)
        assert all(each["kind"] == "BalanceError" and str(workers) in each["text"] for each in found), found


@pytest.mark.parametrize(
    ("what", "culprit", "kind", "text"),
    [
        ("an empty batch", 0, "BatchError", "empty"),
        ("no inputs", 0, "BatchError", "None"),
        ("inputs of two lengths", 0, "BatchError", "(3, 6)"),
        ("targets of another length", 2, "BatchError", "8 rows, the targets 5"),
        ("evaluation on another", 1, "BatchError", "step()"),
        ("no_mean", 2, "BatchError", "(2,)"),
        ("no_tensor", 2, "BatchError", "float"),
        ("nothing", 2, "BatchError", "NoneType"),
        ("broken", 2, "KeyError", "loss"),
        ("an error beside the pipeline", 1, "ZeroDivisionError", "own loop"),
    ],
)
def test_a_step_that_cannot_be_done_ends_on_every_rank(pool, what, culprit, kind, text):
    assert_one_failed(pool.run("stepped", 3, what=what), culprit, kind, text)


def test_a_rank_that_evaluates_where_others_train_is_found_out(pool):
    """Whoever sees it first: each of the others may."""
    found = pool.run("stepped", 3, what="evaluation on the first")
    assert_all_ended(found)
    assert {each["kind"] for each in found} <= {"BatchError", "PeerError"}
    assert all("evaluate()" in each["text"] and "step()" in each["text"] for each in found), found


def test_a_pipeline_that_was_closed_says_so(pool):
    found = pool.run("stepped", 3, what="a step after the end")
    assert_all_ended(found)
    assert all("closed" in each["text"] for each in found)


@pytest.mark.parametrize(
    ("beside", "kind", "text"),
    [
        ("a set", "BatchError", "a set cannot cross"),
        ("an object", "BatchError", "Opaque"),
        ("a function", "BatchError", "function"),
        ("bytes", "BatchError", "bytes"),
        ("a named tuple", "BatchError", "Pair"),
        ("a sparse tensor", "CodecError", "sparse"),
        ("a key of another kind", "BatchError", "keys"),
    ],
)
def test_what_cannot_travel_is_refused_where_it_is_sent(pool, beside, kind, text):
    assert_one_failed(pool.run("travels", 3, beside=beside), 1, kind, text)


@pytest.mark.parametrize("schedule", ["1f1b", "zb"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_of_the_model_reaches_every_rank(pool, where, schedule):
    found = pool.run("fails", 3, where=where, schedule=schedule)
    assert_one_failed(found, 1, "ZeroDivisionError", "of the model's own")
    assert any("stage 1" in note for note in found[1]["notes"])


def test_a_pipeline_that_fails_in_its_beginning_leaves_no_thread_behind(pool):
    """Whoever asked for it has nothing to close, and an error whose frames keep the pipeline alive."""
    for found in pool.run("fails_in_its_beginning", 3):
        assert "has no such weight" in found["text"]
        assert found["threads"] == []
