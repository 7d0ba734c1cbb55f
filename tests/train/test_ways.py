"""The ways of ``thinpipe train`` in one process, and with a server: the numbers of one device, and no others."""

import io
import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from thinpipe.train.progress import watching
from train.small import small

NEAR = {"rel": 1e-5, "abs": 1e-6}


def run(*words, recipe="digits"):
    result = CliRunner().invoke(app, ["train", recipe, *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    result = CliRunner().invoke(app, ["train", *map(str, words)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())


def steps_of(path):
    return [line for line in RunFolder(path).lines() if isinstance(line, StepLine)]


def numbers(path):
    """All losses and accuracies of a run."""
    lines = list(RunFolder(path).lines())
    tests = [number for line in lines if isinstance(line, EvaluationLine) for number in (line.loss, line.accuracy)]
    return [line.loss for line in steps_of(path)] + tests


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """What one device computes, by the number of micro-batches."""
    folder, torch_threads = tmp_path_factory.mktemp("one"), torch.get_num_threads()
    torch.set_num_threads(1)
    for chunks in (1, 3):
        run("--epochs", 1, "--chunks", chunks, "--run", folder / str(chunks))
    torch.set_num_threads(torch_threads)
    return {chunks: numbers(folder / str(chunks)) for chunks in (1, 3)}


@pytest.mark.parametrize(
    ("words", "chunks"),
    [
        (["--stages", 2], 1),
        (["--stages", 3], 3),  # where the recipe is cut for a client and a server
        (["--cuts", "wide_norm,deep,flat"], 3),
        (["--cuts", "2,11", "--devices", "cpu,cpu,cpu"], 1),
    ],
)
def test_stages_in_threads_have_the_losses_of_one_device(words, chunks, tmp_path, one_device):
    run("--epochs", 1, "--chunks", chunks, *words, "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == pytest.approx(one_device[chunks], **NEAR)


@pytest.mark.parametrize("name", ["cola", "cifar10-scratch"])
def test_texts_and_images_have_the_losses_of_one_device(name, tmp_path, files):
    recipe = small(name, dropout=0, chunks=2, clip=0.5, limit=8)
    fields = [word for field, value in recipe.to_json().items() for word in ("--set", f"{field}={_text(value)}")][2:]
    for words in ((), ("--stages", 2), ("--stages", 3)):
        run(*fields, *words, "--run", tmp_path / str(len(words) and words[1]), recipe=name)
    for stages in (2, 3):
        assert numbers(tmp_path / str(stages)) == pytest.approx(numbers(tmp_path / "0"), rel=1e-4)


def _text(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_a_server_has_the_losses_of_one_device(tmp_path, one_device):
    pytest.importorskip("zmq")
    from thinpipe.remote.server import Server
    from thinpipe.train.offers import Offers

    with Server(Offers(["digits"]), listen="127.0.0.1:0", device="cpu") as server:
        address = server.address.removeprefix("tcp://")
        run("--epochs", 1, "--chunks", 3, "--connect", address, "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == pytest.approx(one_device[3], **NEAR)


def test_the_log_has_the_bytes_that_crossed_the_cuts(tmp_path):
    run("--epochs", 1, "--stages", 3, "--codec", "block:8", "--run", tmp_path / "run")
    first, *_, last = (line.cost for line in steps_of(tmp_path / "run"))
    # 16 maps of 8 x 8 at the first cut and 64 numbers at the second, for each of 64 rows, 4 bytes each.
    assert first["raw_sent"] == first["raw_received"] == first["received"] == 64 * (16 * 64 + 64) * 4
    assert first["raw_sent"] / 4 < first["sent"] < first["raw_sent"] / 3
    assert last["raw_sent"] == 30 * (16 * 64 + 64) * 4, "the last batch has what is left"


def test_codecs_that_remember_go_on_where_they_were(tmp_path):
    # Pipe's checkpoints are of the model alone; what codecs remembered was lost.
    words = ("--stages", 2, "--codec", "ef(topk:0.1)", "--grad-codec", "block:4,sr", "--chunks", 2)
    run("--epochs", 2, *words, "--run", tmp_path / "whole")
    run("--epochs", 1, *words, "--run", tmp_path / "run")
    run("--epochs", 2, "--resume", "--run", tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_what_is_dropped_out_is_the_same_in_a_run_that_goes_on(tmp_path, files):
    words = ["--set", "model=tiny", "--set", "max_length=24", "--set", "limit=8", "--set", "dropout=0.3"]
    words += ["--stages", 2, "--batch", 4, "--chunks", 2, "--set", "lr_schedule=constant", "--set", "warmup=0"]
    run("--epochs", 4, *words, "--run", tmp_path / "whole", recipe="cola")
    run("--epochs", 2, *words, "--run", tmp_path / "run", recipe="cola")
    run("--epochs", 4, "--resume", "--run", tmp_path / "run", recipe="cola")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stages", 2, "--bandwidth", "1mbit"], "--bandwidth concerns the network"),
        (["--stages", 2, "--schedule", "1f1b"], "all micro-batches go forward, then all backward"),
        (["--stages", 2, "--give-up", 5], "look for a server that was lost"),
        (["--stages", 2, "--cuts", "deep,flat"], "--stages says 2 and --cuts says 3"),
        (["--cuts", "dep"], "did you mean deep?"),
        (["--cuts", "12"], "a stage begins at one of the layers 1 to 11, got 12"),
        (["--cuts", "flat,deep"], "order"),
        (["--stages", 13], "at most 12"),
        (["--stages", 2, "--devices", "cpu"], "--devices has 1 for 2 stages"),
        (["--map", "0,1"], "start it with torchrun"),
        (["--data-parallel"], "torchrun --nproc-per-node 2"),
        (["--connect", "a:1", "--stages", 2], "leave out --connect"),
        (["--set", "momentun=0.8"], "did you mean momentum?"),
        (["--set", "momentum"], "write --set momentum=0.8"),
        (["--epoch", 3], "--epochs"),
    ],
)
def test_what_a_way_has_no_use_for_is_refused_with_a_reason(words, said, tmp_path):
    assert said in refused("digits", *words, "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fields_come_from_a_file_from_set_and_from_options_in_this_order(tmp_path):
    (tmp_path / "mine.toml").write_text("epochs = 3\nlr = 0.02\nbatch = 512\n")
    words = ("--file", tmp_path / "mine.toml", "--set", "lr=0.03", "--set", "batch=256", "--batch", 128)
    recipe = json.loads(run(*words, "--dry-run", "--json").splitlines()[-1])["recipe"]
    assert (recipe["epochs"], recipe["lr"], recipe["batch"]) == (3, 0.03, 128)


def test_a_run_is_resumed_in_the_way_it_was_begun(tmp_path):
    run("--epochs", 1, "--stages", 2, "--run", tmp_path / "run")
    again = ("digits", "--run", tmp_path / "run", "--resume")
    assert "--stages was 2 when the run was begun" in refused(*again, "--stages", 3)
    assert "begin another run for connected" in refused(*again, "--connect", "a:1")


def test_a_terminal_sees_loss_metrics_and_speeds():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=140)
    with watching(console, epochs=2, total=4, done=0) as watcher:
        watcher.evaluated(EvaluationLine(step=0, epoch=0, rows=9, loss=1.0, accuracy=0.5, mcc=0.25, seconds=1.0))
        cost = {"sent": 3_000_000, "received": 1_000_000}
        watcher.stepped(StepLine(step=0, epoch=0, rows=64, loss=0.125, seconds=2.0, cost=cost))
    assert "epoch 1/2" in text.getvalue()
    assert "loss 0.1250  accuracy 50.00%  MCC 0.2500  32 samples/s, 2.00 MB/s" in text.getvalue()


def test_tensorboard_gets_the_curves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run("--epochs", 1, "--stages", 2, "--run", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    assert {"train/loss", "train/lr", "speed/samples_per_second", "speed/bytes_per_second"} <= {
        *events.Tags()["scalars"]
    }
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses == pytest.approx([line.loss for line in steps_of(tmp_path / "run")])


def test_without_tensorboard_a_line_says_how_to_have_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    assert "pip install 'thinpipe[board]'" in run("--epochs", 1, "--run", tmp_path / "run")
    assert not (tmp_path / "run" / "events").exists()
