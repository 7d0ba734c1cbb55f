"""Two pipelines of two real processes train one model, as one device would with all rows of the batch."""

import pytest

from thinpipe.trace import read_chrome

EXACT = 1e-12


def assert_exact(found):
    assert max(each["difference"] for each in found) < EXACT, found


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb"])
@pytest.mark.parametrize("sizes", [[4, 4], [5, 2], [1, 6], [3, 0], [0, 3]], ids=str)
@pytest.mark.parametrize("kind", ["chain", "tied"])
def test_gradients_and_losses_are_those_of_one_device_with_all_rows(pool, kind, sizes, schedule):
    """Added up over several steps, and whatever the replicas' weights were before they met."""
    assert_exact(pool.run("mesh_gradients", 4, kind=kind, schedule=schedule, sizes=sizes))


def test_ranks_know_their_replica_and_what_adding_up_took(pool):
    found = pool.run("mesh_gradients", 4, kind="chain", schedule="1f1b", sizes=[3, 4])
    assert [each["place"] for each in found] == [[0, 0, 0, 2], [1, 0, 1, 2], [2, 1, 0, 2], [3, 1, 1, 2]]
    assert all(each["reduced"] for each in found)


@pytest.mark.parametrize("workers", [[1, 0], [0, 1, 0]], ids=str)
def test_a_map_speaks_of_the_ranks_of_one_replica(pool, workers):
    assert_exact(pool.run("mesh_gradients", 4, kind="tied", schedule="1f1b", sizes=[3, 4], workers=workers))


def test_four_replicas_of_a_whole_model_are_plain_data_parallelism(pool):
    options = {"kind": "tied", "schedule": "gpipe", "sizes": [3, 0, 1, 2], "replicas": 4, "workers": [0, 0]}
    assert_exact(pool.run("mesh_gradients", 4, **options))


@pytest.mark.parametrize("clip", [False, True])
def test_an_optimizer_keeps_all_replicas_equal_to_one_device(pool, clip):
    found = pool.run("mesh_training", 4, clip=clip)
    assert_exact(found)
    assert [each["weights"] for each in found[:2]] == [each["weights"] for each in found[2:]], "to the last bit"


def test_every_replica_has_the_output_of_its_own_rows(pool):
    found = pool.run("mesh_outputs", 4)
    assert found[0] == found[2] == ["elsewhere"] * 2
    assert max(*found[1], found[3][0]) < EXACT and found[3][1] == "none"


@pytest.mark.parametrize("deferred", [False, True])
def test_buffers_of_the_first_replica_win(pool, deferred):
    found = pool.run("mesh_statistics", 4, deferred=deferred)
    assert_exact(found[::2])
    assert [each["buffers"] for each in found[:2]] == [each["buffers"] for each in found[2:]]


def test_an_overflow_in_one_replica_skips_the_step_in_all(pool):
    found = pool.run("mesh_scaling", 4)
    for each in found:
        assert each["scales"] == [1024.0, 512.0, 512.0] and each["moved"] == [True, False, True]
    assert [each["weights"] for each in found[:2]] == [each["weights"] for each in found[2:]]


def test_a_layer_that_one_replica_alone_has_needed_is_trained_in_all(pool):
    found = pool.run("mesh_unused", 4)
    assert_exact(found)
    assert found[0]["grads"] == found[2]["grads"] == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("what", "culprits", "text"),
    [
        ("other number", {0, 1, 2, 3}, "disagree about the number of replicas"),
        ("not divisible", {0, 1, 2, 3}, "4 ranks cannot be 3 replicas"),
        ("empty", {1, 3}, "the batches of all replicas are empty"),
        ("frozen", {0, 2}, "0.0.weight is trained in 1 of 2 replicas (ranks [0, 2])"),
        ("evaluates", {1, 3}, "where rank"),
        ("targets", {0, 1, 2, 3}, "of the ranks [1, 3] only [3] have targets"),
    ],
)
def test_replicas_that_do_not_fit_together_are_refused_on_all_ranks(pool, what, culprits, text):
    found = pool.run("mesh_refused", 4, what=what)
    assert all(text in each for each in found), found
    own = {rank for rank, each in enumerate(found) if not each.startswith("PeerError")}
    assert own and own <= culprits, found


def test_adding_up_is_in_the_trace(pool, tmp_path):
    path = tmp_path / "trace.json"
    pool.run("mesh_traced", 4, path=str(path))
    assert {span.rank for span in read_chrome(path).spans if span.name == "sum over replicas"} == {0, 1, 2, 3}


def test_ranks_gather_words_and_notice_when_they_speak_of_different_things(pool):
    for rank, (same, different, long) in enumerate(pool.run("gathering", 2)):
        assert same == [[0, None], [1, None]]
        assert "came for 'a' and rank" in different or "came for 'b' and rank" in different
        assert "ranks tell each other no more than" in long and ("ValueError" in long or "PeerError" in long), rank
