"""What ``thinpipe check`` finds in models that are the same in a pipe, and in models that are not."""

import json
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from thinpipe.check.command import check_command
from thinpipe.check.subject import squared_distance

FACTORIES = Path(__file__).with_name("factories.py")


def check(factory, *options):
    app = typer.Typer()
    app.command()(check_command)
    return CliRunner().invoke(app, [f"{FACTORIES}:{factory}", *options])


def report(factory, *options):
    """Runs a check; returns its exit status and its JSON object."""
    result = check(factory, *options, "--json")
    return result.exit_code, json.loads(result.output.splitlines()[-1])


def different(told):
    return [case for case in told["cases"] if not case["equal"]]


def test_a_plain_model_is_equal_to_one_device():
    result = check("plain", "--balance", "2,3")
    assert result.exit_code == 0
    assert "equal to one device in 9 cases" in result.output
    assert "NOT" not in result.output


def test_every_split_chunk_count_and_mode_is_a_case():
    status, told = report(
        "plain", "--balance", "2,3", "--balance", "1,2,2", "--chunks", "1,3", "--checkpoint", "never,always"
    )
    assert status == 0
    cases = [(tuple(case["split"]), case["chunks"], case["checkpoint"]) for case in told["cases"]]
    expected = [
        (split, chunks, mode) for split in [(2, 3), (1, 2, 2)] for chunks in (1, 3) for mode in ("never", "always")
    ]
    assert cases == expected


def test_without_a_balance_the_layers_are_timed():
    status, told = report("plain", "--stages", "3", "--chunks", "2", "--checkpoint", "always")
    assert status == 0
    assert len(told["cases"][0]["split"]) == 3


def test_every_quantity_is_compared():
    _, told = report("normalised", "--balance", "2,6", "--chunks", "2")
    assert set(told["largest"]) == {"loss", "outputs", "input gradients", "gradients", "parameters", "buffers"}


def test_a_loss_of_the_users_own_is_equal():
    status, told = report("classifier", "--balance", "2,3", "--chunks", "4")
    assert status == 0
    assert told["largest"]["loss"]["difference"] < 1e-12


def test_a_model_alone_gets_a_random_batch():
    result = check("model_alone", "--input", "6x4:int64", "--high", "50", "--balance", "1,2")
    assert result.exit_code == 0
    assert "6 rows" in result.output


def test_the_default_loss_has_gradients_through_a_last_normalisation():
    # The sum of squares of normalised outputs is a constant; a loss made of it would compare zeros with zeros.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
    squared_distance(model(torch.randn(6, 5))).backward()
    assert model[0].weight.grad.abs().max() > 1e-2


def test_float32_and_autocast_have_tolerances_of_their_own():
    status, told = report("plain", "--balance", "2,3", "--dtype", "float32")
    assert (status, told["tolerance"]) == (0, 1e-3)
    status, told = report("plain", "--balance", "2,3", "--autocast", "bf16")
    assert (status, told["tolerance"]) == (0, 5e-2)
    assert max(largest["difference"] for largest in told["largest"].values()) > 1e-9


def test_batch_norm_is_compared_over_the_same_micro_batches():
    result = check("normalised", "--balance", "3,5")
    assert result.exit_code == 0
    assert "one device runs the same micro-batches" in " ".join(result.output.split())


def test_deferred_statistics_are_those_of_the_whole_batch():
    status, told = report("normalised", "--balance", "1,7", "--balance", "4,4", "--deferred-batch-norm")
    assert status == 0
    assert any("forward of the whole batch" in note for note in told["notes"])
    assert told["largest"]["buffers"]["difference"] < 1e-12


def test_dropout_is_off_for_one_device_and_on_for_the_replay():
    status, told = report("dropped", "--balance", "2,3", "--chunks", "1,4")
    assert status == 0
    assert any("'1', '3'" in note for note in told["notes"])
    replays = [case["checkpoint"] for case in told["cases"] if case["against"] == "never, same seed"]
    assert replays == ["always", "except_last"] * 2
    assert "equal to its own recomputation in 4 cases" in told["verdict"]


def test_dropout_that_is_no_layer_is_found_and_its_batch_norm_still_trains():
    status, told = report("hidden_dropout", "--balance", "2,1", "--chunks", "2")
    assert status == 0
    dropout, norm = told["notes"]
    assert "one device: '1';" in dropout
    assert "'1.norm'" in norm


def test_noise_that_cannot_be_turned_off_leaves_the_replay():
    status, told = report("noisy", "--balance", "2,1")
    assert status == 0
    assert {case["against"] for case in told["cases"]} == {"never, same seed"}
    assert "not compared with one device" in told["notes"][0]
    assert "equal to one device" not in told["verdict"]


def test_noise_without_a_recomputation_proves_nothing():
    status, told = report("noisy", "--balance", "2,1", "--checkpoint", "never")
    assert status == 1
    assert told["verdict"].startswith("nothing to check")


def test_skips_across_stages_are_equal():
    assert report("skipping", "--balance", "2,2,1", "--balance", "1,1,3")[0] == 0


def test_dictionaries_in_and_out_are_equal():
    status, told = report("dictionaries", "--balance", "2,2", "--chunks", "1,3")
    assert status == 0
    assert told["largest"]["outputs"]["tensor"] in {"output['logits']", "output['norm']"}
    assert told["largest"]["input gradients"]["tensor"] in {"input['weights']", "input['positions']"}


def test_a_layer_that_mixes_rows_is_told_apart_from_a_broken_pipe():
    status, told = report("centred", "--balance", "2,2")
    assert status == 1
    assert {case["chunks"] for case in different(told)} == {2, 4}
    assert all(case["differences"]["outputs"]["difference"] > 0.01 for case in different(told))
    assert all("depends on how its batch is cut" in case["hint"] for case in different(told))


def test_a_buffer_that_moves_with_every_micro_batch_is_named():
    status, told = report("averaging", "--balance", "2,1", "--chunks", "1,2")
    assert status == 1
    for case in different(told):
        assert case["chunks"] == 2
        assert case["worst"] == "buffers"
        assert case["differences"]["buffers"]["tensor"] == "1.average"
        assert case["differences"]["gradients"]["difference"] < 1e-12


def test_python_state_shows_where_a_forward_is_repeated():
    result = check("stateful", "--balance", "2,1", "--chunks", "1")
    status, told = report("stateful", "--balance", "2,1", "--chunks", "1")
    assert status == result.exit_code == 1
    (case,) = different(told)
    assert case["checkpoint"] == "always"
    assert case["differences"]["outputs"]["difference"] < 1e-12
    assert case["differences"]["gradients"]["tensor"] in {"0.weight", "0.bias"}
    assert "NOT equal to one device in 1 of 3 cases" in result.output


def test_a_model_that_does_not_repeat_itself_is_compared_with_nothing():
    status, told = report("clocked", "--balance", "2,1")
    assert status == 1
    (case,) = told["cases"]
    assert case["split"] == []
    assert "does not repeat itself" in case["hint"]


def test_an_error_in_a_case_is_its_result():
    result = check("particular", "--balance", "2,1", "--chunks", "1,2,4")
    assert result.exit_code == 1
    assert "needs four rows, got 2" in result.output
    assert "Traceback" not in result.output
    _, told = report("particular", "--balance", "2,1", "--chunks", "1,2,4")
    assert {case["chunks"] for case in different(told)} == {4}
    assert "stage 0" in different(told)[0]["error"]


def test_an_error_of_one_device_is_said_to_be_its_own():
    # Eight rows in eight micro-batches leave BatchNorm one value a channel, which it refuses, in a pipe or not.
    status, told = report("hidden_dropout", "--balance", "2,1", "--chunks", "8", "--checkpoint", "never")
    assert status == 1
    assert "Expected more than 1 value per channel" in told["cases"][0]["error"]
    assert "raised on one device" in told["cases"][0]["error"]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "vit", "gpt2"])
def test_a_transformers_model_is_equal_in_two_stages_and_in_three(family):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")
    status, told = report(family, "--stages", "2", "--stages", "3", "--chunks", "3", "--checkpoint", "never,always")
    assert status == 0, told["verdict"]
    assert [len(case["split"]) for case in told["cases"]] == [1, 1, 1, 2, 2, 2]
    assert {case["against"] for case in told["cases"]} == {"whole batch", "never, same seed"}, "dropout is replayed"


def test_a_transformers_model_is_cut_at_names():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")
    status, told = report("bert", "--at", "encoder.layer.1,pooler", "--chunks", "2", "--checkpoint", "never")
    assert status == 0
    assert told["cases"][0]["split"] == ["encoder.layer.1", "pooler"]
    assert "BertForSequenceClassification, 7 rows" in told["facts"]


def test_a_model_that_is_no_sequence_is_traced_and_compared():
    status, told = report("bridged", "--at", "drop,last", "--chunks", "1,2", "--checkpoint", "always")
    assert status == 0, told["verdict"]
    assert [tuple(case["split"]) for case in told["cases"]] == [("drop", "last")] * 4


def test_a_sequence_is_cut_at_names_as_well():
    status, told = report("plain", "--at", "1,4", "--chunks", "2", "--checkpoint", "never")
    assert status == 0
    assert told["cases"][0]["split"] == ["1", "4"]


def test_a_traced_model_that_counts_its_rows_is_found_out():
    status, told = report("counting_rows", "--at", "last", "--chunks", "2,3", "--checkpoint", "never")
    assert status == 1
    even, uneven = told["cases"]
    assert "depends on how its batch is cut" in even["hint"]
    assert "traced with 3 rows, and got 2" in uneven["error"]
