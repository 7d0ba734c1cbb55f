"""A loss, gradients or weights that are not finite end a run, with advice, its last good weights, and valid JSON."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from thinpipe.checkpoint import latest
from thinpipe.cli import app
from thinpipe.errors import NotFiniteError
from thinpipe.finite import dumps, loads
from thinpipe.report.run import Run
from thinpipe.train import resolved
from thinpipe.train.in_process import InProcess
from thinpipe.train.local import Local
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from thinpipe.train.parts import data, loss, stages_of

WILD = ("--lr", 1e6, "--epochs", 2)


def train(*words):
    return CliRunner().invoke(app, ["train", "digits", *map(str, words)])


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def lines_of(path):
    """Reads a log as a strict reader does."""
    return [json.loads(line, parse_constant=refuse) for line in (path / "log.jsonl").read_text().splitlines()]


def verify_saved(folder, *, statistics=True):
    """Checks that all that is saved in a folder is finite."""
    files = list(folder.rglob("*.safetensors"))
    assert files
    for file in files:
        for name, tensor in load_file(file).items():
            if tensor.is_floating_point() and (statistics or "running" not in name):
                assert tensor.isfinite().all(), f"{name} of {file}"


WAYS = pytest.mark.parametrize(
    "words",
    [(), ("--chunks", 3), ("--stages", 2, "--codec", "wave:4", "--grad-codec", "block:4"), ("--set", "clip=1e12")],
    ids=str,
)


@WAYS
def test_a_run_whose_loss_is_not_finite_stops_with_advice(words, tmp_path):
    result = train(*WILD, *words, "--run", tmp_path / "run")  # which would save after some seconds
    assert result.exit_code == 1 and "Traceback" not in result.output, result.output
    said = " ".join(result.output.split())
    for each in ("in epoch 1 of 2, learning rate 1e+06: the loss is nan", "--lr 100000", "--set warmup=0.1", "on_nan="):
        assert each in said
    assert ("leave out --grad-codec" in said) == ("--grad-codec" in words)
    assert ("codecs wave:4 and, for gradients, block:4" in said) == ("--grad-codec" in words)
    assert ("--set clip=1" in said) == ("clip=1e12" not in words)
    assert "No weights were saved before that step" in said and "go on with" not in said
    *_, wild, note = lines_of(tmp_path / "run")
    assert wild["kind"] == "step" and wild["loss"] is None and wild["not_finite"]["loss"] == "nan"
    assert note["kind"] == "note" and "stopped at step" in note["text"]
    assert not (tmp_path / "run" / "summary.json").exists() and not (tmp_path / "run" / "states").exists()
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert shown.exit_code == 0 and "the loss was not finite, first in step" in shown.output


@WAYS
def test_a_run_that_diverges_keeps_its_last_good_weights(words, tmp_path):
    result = train(*WILD, *words, "--every", 2, "--run", tmp_path / "run")
    assert result.exit_code == 1 and "Traceback" not in result.output, result.output
    states = tmp_path / "run" / "states"
    assert f"The last good weights are in {latest(states)}" in result.output
    assert "not finite" in result.output or "is nan" in result.output
    verify_saved(states)
    lines_of(tmp_path / "run")


@pytest.mark.parametrize("way", ["one device", "in process"])
def test_weights_that_are_not_finite_are_never_saved(way, tmp_path):
    """The loss of a step says nothing about the weights after it."""
    recipe = resolved("digits", {"epochs": 1, "batch": 200})
    if way == "one device":
        trainer = Local(recipe, folder=tmp_path, every=2, device="cpu")
    else:
        trainer = InProcess(recipe, stages_of(recipe, 2), folder=tmp_path, every=2, devices=["cpu", "cpu"])
    samples = data(recipe)
    for step in range(3):
        assert trainer.step(*samples.batch(step)).isfinite()
    model = trainer._model if way == "one device" else trainer._pipe
    next(model.parameters()).register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NotFiniteError, match=r"the weights .*weight are not finite"):
        trainer.step(*samples.batch(3))
    assert latest(tmp_path).name == "step-00000002"
    verify_saved(tmp_path)


def test_a_run_may_go_on_and_says_so_in_valid_json(tmp_path):
    result = train(*WILD, "--set", "on_nan=continue", "--run", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1], parse_constant=refuse)
    assert said["finished"] and said["train_loss"] is None and said["not_finite"]["train_loss"] == "nan"
    assert "loss not finite  test loss not finite" in result.output and "not finite" in result.stdout
    assert json.loads((tmp_path / "run/summary.json").read_text(), parse_constant=refuse)["test_loss"] is None
    assert [line["epoch"] for line in lines_of(tmp_path / "run") if line["kind"] == "evaluation"] == [1, 2]
    figures = train("--run", tmp_path / "run", "--resume")
    assert figures.exit_code == 0


def test_a_run_that_stopped_goes_on_if_it_is_told_to(tmp_path):
    assert train(*WILD, "--every", 2, "--run", tmp_path / "run").exit_code == 1
    result = train("--run", tmp_path / "run", "--resume", "--set", "on_nan=continue")
    assert result.exit_code == 0, result.output
    steps = [line["step"] for line in lines_of(tmp_path / "run") if line["kind"] == "step"]
    assert steps == list(range(46))


def test_logs_of_older_versions_are_read_and_shown(tmp_path):
    assert train("--epochs", 1, "--run", tmp_path / "run").exit_code == 0
    path = tmp_path / "run" / "log.jsonl"
    *steps, last = [json.loads(line) for line in path.read_text().splitlines()]
    old = [*steps[:-1], steps[-1] | {"loss": math.nan}, last | {"loss": math.inf}]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert "NaN" in path.read_text() and "Infinity" in path.read_text()
    run = Run.read(tmp_path / "run")
    assert math.isnan(run.steps[-1].loss) and run.evaluations[-1].loss == math.inf
    other = tmp_path / "other"
    assert train("--epochs", 1, "--run", other).exit_code == 0
    for runs in ((tmp_path / "run",), (tmp_path / "run", other)):
        page = tmp_path / "page.html"
        shown = CliRunner().invoke(app, ["report", *map(str, runs), "--output", str(page), "--json"])
        assert shown.exit_code == 0, shown.output
        assert "not finite" in shown.output and "nan" not in shown.output.partition("{")[0].lower().replace(
            "finance", ""
        )
        json.loads(shown.stdout.splitlines()[-1], parse_constant=refuse)
        assert "not finite" in page.read_text() and ">nan<" not in page.read_text()


def test_lines_that_are_not_finite_are_read_as_they_were_written(tmp_path):
    folder = RunFolder(tmp_path)
    log = folder.log(0)
    written = [
        StepLine(step=0, epoch=0, rows=2, loss=math.inf, seconds=1.0, lr=0.1),
        EvaluationLine(step=1, epoch=1, rows=2, loss=-math.inf, accuracy=0.5, seconds=1.0),
    ]
    for line in written:
        log.add(line)
    assert list(folder.lines()) == written
    lines_of(tmp_path)


def test_json_of_any_values_is_valid_and_that_of_finite_ones_unchanged():
    value = {"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf, "e": None}, "f": "nan"}
    text = dumps(value)
    assert json.loads(text, parse_constant=refuse)["b"] == [1.5, None]
    again = loads(text)
    assert math.isnan(again["a"]) and again["c"] == {"d": -math.inf, "e": None} and again["f"] == "nan"
    plain = {"name": "x", "numbers": [1, 2.5], "none": None, "inner": {"true": True}}
    assert dumps(plain) == json.dumps(plain) and loads(dumps(plain)) == plain
    assert loads('{"not_finite": "a text"}') == {"not_finite": "a text"}


# -- with a server -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("zmq")
    from thinpipe.remote.server import Server
    from thinpipe.train.offers import Offers

    with Server(Offers(["digits"]), listen="127.0.0.1:0", device="cpu", folder=tmp_path / "server") as found:
        yield found.address.removeprefix("tcp://")


@pytest.mark.parametrize("words", [(), ("--set", "clip=1e12")], ids=["", "clipped"])
def test_with_a_server_both_sides_stay_at_a_good_step(words, server, tmp_path):
    result = train(*WILD, *words, "--every", 2, "--connect", server, "--run", tmp_path / "run")
    assert result.exit_code == 1 and "Traceback" not in result.output, result.output
    assert "learning rate 1e+06" in result.output and "last good weights" in result.output
    lines_of(tmp_path / "run")
    verify_saved(tmp_path / "run" / "states")
    # A variance overflows a step or two before the loss does; a client knows no more of a server's buffers.
    verify_saved(tmp_path / "server", statistics=False)


def test_gradients_that_are_not_finite_are_found_before_a_step_is_saved_with_a_server(server, tmp_path):
    from thinpipe.train.connected import connected
    from thinpipe.train.settings import Settings

    recipe = resolved("digits", {"epochs": 1, "batch": 200})
    samples = data(recipe)
    client = connected(recipe, Settings(connect=server, every=2), data=samples, folder=tmp_path / "client")
    for step in range(3):
        assert client.step(*samples.batch(step)).isfinite()
    # Its value is that of the loss, and its gradient at 0 infinite.
    client.__dict__["loss_fn"] = lambda outputs, targets: loss(outputs, targets) + (0 * outputs).sum().sqrt()
    with pytest.raises(NotFiniteError, match="the norm of all gradients is"):
        client.step(*samples.batch(3))
    assert client.committed == 2
    client.close()
    verify_saved(tmp_path / "client")
    verify_saved(tmp_path / "server")
    again = connected(recipe, Settings(connect=server, every=2), data=samples, folder=tmp_path / "client")
    assert again.committed == 2 and again.step(*samples.batch(2)).isfinite()
    again.close()


def test_weights_that_are_not_finite_are_not_saved_at_the_end_with_a_server(server, tmp_path):
    from thinpipe.train.connected import connected
    from thinpipe.train.settings import Settings

    recipe = resolved("digits", {"epochs": 1, "batch": 200})
    samples = data(recipe)
    client = connected(recipe, Settings(connect=server, every=50), data=samples, folder=tmp_path / "client")
    client.step(*samples.batch(0))
    with torch.no_grad():
        next(client.last.parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteError, match="are not finite"):
        client.save()
    client.close()
    verify_saved(tmp_path / "client")
    verify_saved(tmp_path / "server")
