"""Learned bottlenecks in recipes: put at the cuts, fitted once, trained, saved, lent, and counted."""

import json

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from thinpipe.bottleneck import bottleneck_state, explained, without_bottlenecks
from thinpipe.cli import app
from thinpipe.train import RecipeError, parts, resolved
from thinpipe.train.bottlenecks import verify_bottlenecks
from thinpipe.train.fitting import fit_bottlenecks
from thinpipe.train.in_process import InProcess
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from thinpipe.train.offers import MIDDLE, Offers, offer_name, read_offer
from thinpipe.train.parts import data, stages_of
from thinpipe.train.way import Way
from train.small import small
from train.test_ways_ranks import trained

TEXT = "conv:10k2s2/conv:16"
UNPOOLED = ("--stages", 3, "--cut", "unpooled", "--bottleneck", TEXT)
BEFORE = 64 * 16 * 8 * 8 * 4
"""Bytes of a batch's activations at either cut: 16 maps of 8 x 8, and 64 of 4 x 4."""
LEFT = (BEFORE * 10 // 64, BEFORE * 16 // 64)
"""Bytes behind the bottlenecks: 10 maps of 4 x 4, and 16 of them."""


def invoke(*words, recipe="digits"):
    return CliRunner().invoke(app, ["train", recipe, *map(str, words)])


def run(*words, recipe="digits"):
    result = invoke(*words, recipe=recipe)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    result = invoke(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    return " ".join(result.output.replace("│", " ").split())


def steps_of(path):
    return [line for line in RunFolder(path).lines() if isinstance(line, StepLine)]


def numbers(path):
    """All losses and accuracies of a run."""
    tests = [line for line in RunFolder(path).lines() if isinstance(line, EvaluationLine)]
    return [line.loss for line in steps_of(path)] + [number for line in tests for number in (line.loss, line.accuracy)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two epochs that nobody interrupts."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run("--epochs", 2, *UNPOOLED, "--codec", "had:4", "--chunks", 2, "--run", path)
    return path


def test_it_learns_and_the_log_has_the_bytes_that_cross(whole):
    losses = [line.loss for line in steps_of(whole)]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    cost = steps_of(whole)[0].cost
    assert cost["raw_sent"] == cost["received"] == cost["raw_received"] == sum(LEFT)
    assert 4 / 32 < cost["sent"] / sum(LEFT) < 4.5 / 32


def test_a_run_that_goes_on_is_not_fitted_again_and_ends_as_if_it_had_not_stopped(whole, tmp_path):
    run("--epochs", 1, *UNPOOLED, "--codec", "had:4", "--chunks", 2, "--run", tmp_path / "run")
    fitted = tmp_path / "run" / "bottleneck.safetensors"
    fitted.unlink()
    run("--epochs", 2, "--resume", "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(whole) and not fitted.exists()


def test_a_dry_run_promises_the_bytes_of_a_step_and_tells_those_before_bottlenecks(whole):
    words = (*UNPOOLED, "--codec", "had:4", "--chunks", 2, "--dry-run")
    assert "before bottlenecks" in run(*words) and "before bottlenecks" not in run("--stages", 3, "--dry-run")
    cuts = json.loads(run(*words, "--json").splitlines()[-1])["plan"]["cuts"]
    cost = steps_of(whole)[0].cost
    assert sum(cut["forward"] for cut in cuts) == cost["sent"] and sum(cut["backward"] for cut in cuts) == sum(LEFT)
    assert [cut["raw_forward"] for cut in cuts] == list(LEFT)
    assert [cut["before_bottleneck"] for cut in cuts] == [BEFORE, BEFORE]


def test_traffic_is_told_with_the_sizes_of_the_tensors_before_bottlenecks(tmp_path):
    recipe = resolved("digits", {"cut": "unpooled", "bottleneck": TEXT, "chunks": 2})
    trainer = InProcess(recipe, stages_of(recipe), folder=tmp_path, every=9, devices=["cpu"] * 3)
    inputs, targets = data(recipe).batch(0)
    trainer.step(inputs, targets)
    for (there, back), left in zip(trainer.traffic(), LEFT, strict=True):
        assert (there.packed, there.raw, there.elements) == (left, BEFORE, BEFORE // 4) and back == there
    trainer.evaluate(inputs)
    for (there, back), left in zip(trainer.traffic(), LEFT, strict=True):
        assert (there.raw, there.packed) == (2 * BEFORE, 2 * left) and back.raw == BEFORE, "a test has no gradients"


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_a_fit_moves_nothing_but_bottlenecks_and_sees_what_training_will(tmp_path):
    recipe = resolved("digits", {"cut": "unpooled", "bottleneck": TEXT, "bottleneck_fit": 1})
    samples, stages = data(recipe), stages_of(recipe)
    inputs, _ = samples.batch(0)
    before = {name: tensor.clone() for stage in stages for name, tensor in stage.state_dict().items()}
    (loose, _) = explained(stages, [inputs])
    fit_bottlenecks(recipe, stages, samples, device="cpu", keep=tmp_path / "file.safetensors")
    (tight, _) = explained(stages, [inputs])
    assert tight.explained > loose.explained
    after = {name: tensor for stage in stages for name, tensor in stage.state_dict().items()}
    torch.testing.assert_close(without_bottlenecks(after), without_bottlenecks(before), rtol=0, atol=0)
    kept = load_file(tmp_path / "file.safetensors")
    torch.testing.assert_close(kept, bottleneck_state(stages), rtol=0, atol=0)
    # The second receiver adds the mean of each channel: BatchNorm's statistics, before it, are those of training.
    reached = inputs
    for layer in (*stages[0].train(), *list(stages[1].train())[:-1]):
        reached = layer(reached)
    torch.testing.assert_close(kept["bottleneck1_receiver.0.bias"], reached.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_a_file_of_a_fit_begins_another_run_as_the_fit_would(whole, tmp_path):
    run("--epochs", 0, *UNPOOLED, "--run", tmp_path / "fit")
    file = tmp_path / "fit" / "bottleneck.safetensors"
    words = ("--codec", "had:4", "--chunks", 2, "--set", f"bottleneck_file={file}", "--run", tmp_path / "run")
    run("--epochs", 2, *UNPOOLED, *words)
    assert numbers(tmp_path / "run") == numbers(whole) and not (tmp_path / "run" / file.name).exists()


def test_without_a_fit_nothing_is_kept_and_the_losses_are_others(whole, tmp_path):
    run("--epochs", 1, *UNPOOLED, "--chunks", 2, "--set", "bottleneck_fit=0", "--run", tmp_path / "run")
    assert not (tmp_path / "run" / "bottleneck.safetensors").exists()
    assert steps_of(tmp_path / "run")[0].loss != steps_of(whole)[0].loss


# -- other models, cuts and ranks --------------------------------------------------------------------------------------


def test_one_bottleneck_is_for_all_cuts_wherever_they_are(tmp_path):
    run("--epochs", 1, "--cuts", "wide,deep", "--bottleneck", "conv:8", "--run", tmp_path / "run")
    assert steps_of(tmp_path / "run")[0].cost["sent"] == 64 * 8 * (8 * 8 + 4 * 4) * 4


def test_a_rank_that_decays_sends_less_and_less_and_goes_on_where_it_was(tmp_path):
    words = ("--stages", 3, "--bottleneck", "none/linear:64,decay=0.5@10..30", "--batch", 128)
    run("--epochs", 3, *words, "--run", tmp_path / "whole")
    sent = [line.cost["sent"] // (4 * line.rows) - 16 * 64 for line in steps_of(tmp_path / "whole")]
    assert sent == [64] * 10 + [32] * 10 + [16] * 10 + [8] * 6
    run("--epochs", 1, *words, "--run", tmp_path / "run")
    run("--epochs", 3, "--resume", "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_texts_of_any_length_cross_narrow_in_bfloat16(tmp_path, files):
    recipe = small("cola", precision="bfloat16", bottleneck="linear:8", epochs=1)
    names = ("model", "max_length", "batch", "limit", "epochs", "bottleneck", "padding", "chunks")
    words = [word for name in names for word in ("--set", f"{name}={recipe.to_json()[name]}")]
    run(*words, "--stages", 3, "--run", tmp_path / "run", recipe="cola")
    run(*words, "--stages", 3, "--set", "bottleneck=none", "--run", tmp_path / "wide", recipe="cola")
    narrow, wide = (sum(line.cost["received"] for line in steps_of(tmp_path / name)) for name in ("run", "wide"))
    # A quarter of 32 features, and perhaps half the bytes for each.
    assert wide / narrow in (4, 8)


def test_fewer_tokens_are_for_texts_of_one_length():
    with pytest.raises(RecipeError, match="add --set padding=full"):
        verify_bottlenecks(small("cola", bottleneck="none/linear:8+s9"), Way.IN_PROCESS)
    verify_bottlenecks(small("cola", bottleneck="none/linear:8+s9", padding="full"), Way.IN_PROCESS)


FIELDS = {"epochs": 1, "batch": 240, "chunks": 2, "cut": "unpooled", "bottleneck": TEXT}
DECAYING = {**FIELDS, "cut": "pooled", "bottleneck": "none/linear:64,decay=0.5@2..4"}
CASES = [
    {"run": "ranks", "fields": FIELDS, "settings": {"map": "0,1,0"}},
    {"run": "decaying", "fields": DECAYING, "settings": {"map": "0,1,0"}},
    {"run": "broken", "fields": {**FIELDS, "epochs": 8}, "settings": {"map": "0,1,0"}, "stop_after": 3},
    {"run": "broken", "fields": {"epochs": 8}, "settings": {}, "resume": True},
]


def test_ranks_have_the_losses_of_one_process(tmp_path, _files):
    folder, statuses = trained(2, CASES, _files, tmp_path)
    assert all(of_rank == [0, 0, 143, 0] for of_rank in statuses)
    for name, fields in (("ranks", FIELDS), ("decaying", DECAYING), ("broken", {**FIELDS, "epochs": 8})):
        words = [word for field, value in fields.items() for word in ("--set", f"{field}={value}")]
        run(*words, "--stages", 3, "--run", tmp_path / f"{name} here")
        assert numbers(folder / name) == pytest.approx(numbers(tmp_path / f"{name} here"), rel=1e-3, abs=1e-4)
    assert (folder / "ranks" / "bottleneck.safetensors").exists()


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fitted", [True, False])
def test_a_server_has_the_losses_of_one_process(fitted, whole, tmp_path):
    pytest.importorskip("zmq")
    from thinpipe.remote.server import Server

    file = whole / "bottleneck.safetensors"
    begins = f"bottleneck_file={file}" if fitted else "bottleneck_fit=0"
    words = ("--epochs", 1, "--cut", "unpooled", "--bottleneck", TEXT, "--chunks", 2, "--set", begins)
    run(*words, "--stages", 3, "--run", tmp_path / "here")
    with Server(Offers(["digits"], files=[file]), listen="127.0.0.1:0", device="cpu") as server:
        address = server.address.removeprefix("tcp://")
        run(*words, "--connect", address, "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == pytest.approx(numbers(tmp_path / "here"), rel=1e-4, abs=1e-5)
    assert steps_of(tmp_path / "run")[2].cost["raw_sent"] == sum(LEFT)


def test_a_server_is_told_the_bottlenecks_and_the_digest_of_their_file(whole):
    changes = {"cut": "unpooled", "bottleneck": "conv:16k2s2+8/conv:16", "bottleneck_fit": 0}
    assert offer_name(resolved("digits", changes)) == "digits?cut=unpooled&bottleneck=conv:16k2s2%2B8/conv:16"
    file = whole / "bottleneck.safetensors"
    recipe = resolved("digits", {"cut": "unpooled", "bottleneck": TEXT, "bottleneck_file": str(file)})
    name = offer_name(recipe)
    assert str(file) not in name and "bottleneck_file=digest:" in name
    read = read_offer(name, [file])
    assert all(getattr(read, field) == getattr(recipe, field) for field in ("name", *MIDDLE))
    made = Offers(files=[file])[name].make().state_dict()
    torch.testing.assert_close(made, parts(recipe).middle.state_dict(), rtol=0, atol=0)
    with pytest.raises(KeyError, match=r"begins with bottlenecks of digest .* put the same file into .*/bottlenecks"):
        Offers()[name]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("bottleneck=cov:3", "did you mean conv"),
        ("bottleneck=conv:100000k64s64", "channels x kernel x kernel is at most 16,384"),
        ("bottleneck=conv:9%2B8%2B7%2B6%2B5", "at most 4 sets, got 5"),
        ("bottleneck=conv:999", "use at most 16"),
        ("bottleneck_file=/etc/passwd", "named by the digest"),
        ("bottleneck_fit=9", "does not concern the server"),
    ],
)
def test_a_bottleneck_that_cannot_be_lent_is_explained(query, said):
    with pytest.raises(KeyError, match=said):
        Offers()[f"digits?cut=unpooled&{query}"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bottleneck", TEXT), "one device has none; add --stages 3"),
        (("--stages", 3, "--bottleneck", "conv:10k2s2/cov:16"), "no bottleneck is called 'cov'; did you mean conv"),
        (("--stages", 2, "--bottleneck", TEXT), "has 2 bottlenecks, and there is one cut"),
        (("--stages", 3, "--bottleneck", TEXT), "conv:16 needs rows of channels x height x width, got 64; use linear"),
        (("--connect", "a:1", "--bottleneck", TEXT), "Or begin without a fit: --set bottleneck_fit=0"),
        (("--connect", "a:1", "--bottleneck", "linear:9,decay=0.5@2..4"), "with a server a rank stays as it is"),
        (("--stages", 3, "--set", "bottleneck_file=nowhere"), "there is no file 'nowhere' of bottlenecks"),
        (("--stages", 3, "--set", f"bottleneck_file={__file__}"), "there are none; add --bottleneck"),
        ((*UNPOOLED, "--set", f"bottleneck_file={__file__}"), "cannot be read as safetensors"),
        ((*UNPOOLED[:-1], "conv:9", "--set", "bottleneck_file={file}"), "do not fit conv:9"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_cannot_be_is_refused_with_what_can(words, said, dry, whole, tmp_path):
    given = [str(word).format(file=whole / "bottleneck.safetensors") for word in words]
    assert said in refused(*given, *(["--dry-run"] if dry else ["--run", tmp_path / "run"]))
    assert not (tmp_path / "run").exists()


def test_data_parallel_has_no_cut():
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    words = ["train", "digits", "--data-parallel", "--bottleneck", TEXT, "--dry-run"]
    said = CliRunner().invoke(app, words, env=ranks).output
    assert "data parallel has none; use --stages 3" in " ".join(said.replace("│", " ").split())
