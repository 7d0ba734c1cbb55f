"""What a pipeline of real processes carries, recomputes, casts, ties, freezes, evaluates, names and measures."""

import pytest
import torch
from pipeline_cases import batch
from pipeline_feature_cases import normed
from torch.nn import functional

from thinpipe.trace import read_chrome

EXACT = 1e-13


@pytest.mark.parametrize("spec", [None, "none"])
def test_nestings_masks_numbers_and_texts_cross_cuts(pool, spec):
    assert max(pool.run("all_that_travels", 4, spec=spec)) < EXACT


def test_masks_and_integers_stay_exact_where_activations_are_coded(pool):
    """The stages themselves compare what arrives with what was given."""
    assert max(pool.run("all_that_travels", 4, spec="block:8")) < 0.1


def test_arguments_go_by_name_and_several_outputs_come_out(pool):
    assert max(pool.run("names_and_several_outputs", 3)) < EXACT


def test_what_a_rank_does_not_need_is_not_looked_at(pool):
    assert max(pool.run("nonsense_where_nothing_is_needed", 3)) < EXACT


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb"])
@pytest.mark.parametrize("recompute", ["all", "cheap"])
def test_recomputed_stages_draw_the_same_and_count_a_batch_once(pool, recompute, schedule):
    for checkpoint in ("always", [1]):
        options = {"checkpoint": checkpoint, "recompute": recompute, "schedule": schedule}
        assert max(pool.run("recomputation", 2, **options)) < EXACT


@pytest.mark.parametrize("deferred", [False, True])
def test_running_statistics_move_once_a_micro_batch_or_deferred_once_a_batch(pool, deferred):
    assert max(pool.run("running_statistics", 2, deferred=deferred)) < EXACT
    options = {"checkpoint": "always", "recompute": "all", "schedule": "1f1b", "deferred": deferred}
    assert max(pool.run("recomputation", 2, **options)) < EXACT


@pytest.mark.parametrize("schedule", ["1f1b", "zb"])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_autocast_casts_what_one_device_would_cast(pool, checkpoint, schedule):
    """Not the backward, though ``step`` is called inside of autocast; and never a weight of the step before."""
    for found in pool.run("autocast", 2, checkpoint=checkpoint, schedule=schedule):
        assert max(found["differences"]) < 1e-6, found
    assert found["outside"] == "torch.float32"


def test_an_overflow_on_one_rank_skips_the_step_on_all(pool):
    for found in pool.run("gradient_scaling", 3):
        assert max(found["grads"], found["weights"]) < 1e-6
        assert found["scales"] == [1024.0, 512.0, 512.0]
        assert found["moved"] == [True, False, True]


@pytest.mark.parametrize("kind", ["chain", "tied"])
def test_gradients_are_clipped_by_the_norm_over_all_ranks(pool, kind):
    for found in pool.run("clipping", 3, kind=kind):
        assert max(found) < EXACT, found


@pytest.mark.parametrize(
    ("world", "workers"), [(2, [0, 1]), (3, [0, 1, 2]), (2, [0, 1, 0]), (3, [1, 0, 2, 1]), (4, [3, 2, 1, 0])], ids=str
)
def test_a_weight_at_both_ends_gets_the_sum_of_its_gradients(pool, world, workers):
    """Over batches that are accumulated, too: what was summed already is not summed again."""
    for schedule in ("1f1b", "zb"):
        for rank, found in enumerate(pool.run("tied", world, workers=workers, schedule=schedule)):
            assert max(found["differences"]) < EXACT, found
            shares = workers[0] != workers[-1] and rank in (workers[0], workers[-1])
            assert bool(found["sent"]) == shares


def test_a_sparse_gradient_of_a_tied_weight_is_added_as_any_other(pool):
    for found in pool.run("tied", 2, workers=[0, 1], sparse=True):
        assert max(found["differences"]) < EXACT, found


@pytest.mark.parametrize("schedule", ["1f1b", "zb"])
@pytest.mark.parametrize("which", [[0], [1], [2], [0, 1], [1, 2]], ids=str)
def test_frozen_stages_get_no_gradients_and_hinder_nobody(pool, which, schedule):
    assert max(pool.run("frozen", 3, which=which, schedule=schedule)) < EXACT


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb"])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_loss_may_have_weights_and_is_computed_once(pool, schedule, checkpoint):
    assert max(pool.run("loss_with_a_weight", 2, schedule=schedule, checkpoint=checkpoint)) < EXACT


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb"])
def test_gradients_of_several_steps_add_up(pool, schedule):
    assert max(pool.run("accumulation", 3, schedule=schedule)) < EXACT


def test_evaluation_leaves_everything_as_it_was(pool):
    first, last = pool.run("evaluation", 2)
    assert all(found["modes kept"] and found["kept"] == 0 and not found["graph"] for found in (first, last))
    assert first["output"] is None and first["loss"] == last["loss"]
    model = evaluated_model({**first["state"], **last["state"]})
    x, y = batch(7)
    torch.testing.assert_close(torch.tensor(last["output"], dtype=torch.float64), model(x))
    torch.testing.assert_close(torch.tensor(last["loss"], dtype=torch.float64), functional.cross_entropy(model(x), y))


def evaluated_model(state):
    model = torch.nn.Sequential(*normed()).eval()
    model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    return model


@pytest.mark.parametrize("kind", ["balance", "list"])
def test_every_rank_has_its_part_of_the_whole_state_under_the_same_names(pool, kind):
    found = pool.run("state", 3, kind=kind)
    assert all(each["same"] and each["back"] for each in found)
    assert sorted(name for each in found for name in each["names"]) == sorted(found[0]["all"])


def test_statistics_count_the_bytes_that_codecs_promise(pool):
    first, last = pool.run("traffic", 2)
    for there, here, spec, name in ((first, last, "block:4", "activation"), (last, first, "uniform:8", "gradient")):
        out, came = there[f"out {name}"], here[f"in {name}"]
        assert out["bytes"] == came["bytes"] and out["messages"] == came["messages"] == 4
        assert out["raw"] == came["raw"] == 32 * 64 * 4
        beside = out["bytes"] / 4 - there["packed"][spec]
        assert 0 < beside < 128, "the headers of lane and frame, and the nesting"
        assert 0 < out["ratio"] == came["ratio"]
    for seconds, computed, stalled in (first["times"], last["times"]):
        assert 0 < computed < seconds and 0 <= stalled < seconds
    assert first["remembered"] == first["remembered after evaluation"] == 0, "nothing is kept of steps that are over"


def test_an_emulated_link_is_as_slow_as_it_says(pool):
    rate = 4e6
    first, last = pool.run("throttled", 2, rate=rate)
    there, back = (found["sent"] * 8 / rate for found in (first, last))
    # What goes back waits for what goes there, but for the first of four micro-batches; a busy machine adds its own.
    assert 0.98 * max(there, back) < first["seconds"] < there + back + 2.0


def test_a_trace_of_all_ranks_is_written_at_the_end(pool, tmp_path):
    path = tmp_path / "trace.json"
    pool.run("traced", 3, path=str(path))
    trace = read_chrome(path)
    spans = trace.spans
    done = {(span.rank, span.name) for span in spans if span.track == "compute"}
    assert done >= {(j, f"{kind}{j}.{i}") for j in range(3) for i in range(4) for kind in "FB"}
    assert {span.track for span in spans} >= {"compute", "encode", "wire", "decode"}


def test_two_pipelines_of_the_same_ranks_live_side_by_side(pool):
    for losses in pool.run("twice_at_once", 2):
        assert losses[0] == losses[1] == losses[2]


def test_a_rank_that_is_done_may_leave_while_others_still_work(pool):
    found = pool.run("leaving_early", 3)
    assert max(each["difference"] for each in found) < EXACT
    first, _, last = (each["left"] for each in found)
    assert first - last > 1.0
