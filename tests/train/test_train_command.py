"""``thinpipe train`` without a server: the baseline, its interruptions, and what it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine


def run(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)])


def refused(*words):
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())


def losses(path):
    """The losses of a run; each step must be there once, and each epoch tested once."""
    lines = list(RunFolder(path).lines())
    steps = [line for line in lines if isinstance(line, StepLine)]
    tests = [line for line in lines if isinstance(line, EvaluationLine)]
    assert [line.step for line in steps] == list(range(len(steps)))
    assert [line.epoch for line in tests] == list(range(1, len(tests) + 1))
    return [line.loss for line in steps], [(line.loss, line.accuracy) for line in tests]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    result = run("digits", "--epochs", 4, "--run", path, "--json")
    assert result.exit_code == 0, result.output
    return path, result.output


def test_a_recipe_is_trained_tested_and_summed_up(uninterrupted):
    path, output = uninterrupted
    said = json.loads(output.splitlines()[-1])
    assert said["run"] == str(path) and said["finished"] and said["steps"] == 92 and said["network"] is None
    assert said["recipe"]["epochs"] == 4 and said["accuracy"] > 0.5
    assert json.loads((path / "summary.json").read_text())["accuracy"] == said["accuracy"]
    assert "epoch 4/4" in output and str(path) in output
    steps, tests = losses(path)
    assert steps[-1] < steps[0] and len(tests) == 4


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(number, status, tmp_path, uninterrupted):
    path = tmp_path / "run"
    words = [sys.executable, "-m", "thinpipe", "train", "digits", "--epochs", "2000", "--run", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        log = path / "log.jsonl"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().count("\n") > 30) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == status, said
    assert f"thinpipe train digits --run {path} --resume" in said and "Traceback" not in said
    taken = len(losses(path)[0])
    epochs = max(4, taken // 23 + 1)
    result = run("digits", "--run", path, "--resume", "--epochs", epochs)
    assert result.exit_code == 0, result.output
    steps, tests = losses(path)
    whole_steps, whole_tests = losses(uninterrupted[0])
    assert len(steps) == 23 * epochs
    assert steps[:92] == whole_steps and tests[:4] == whole_tests


def test_a_run_that_was_killed_goes_on_from_its_last_state(tmp_path, uninterrupted):
    # What a crash leaves: states every N steps, and a log that is further on, its last line cut short.
    path = tmp_path / "run"
    assert run("digits", "--epochs", 3, "--every", 50, "--run", path).exit_code == 0
    for state in (path / "states").glob("step-*69"):
        state.rename(path / "gone")
    (path / "states" / "latest").write_text("step-00000050\n")
    log = path / "log.jsonl"
    log.write_text(log.read_text()[:-7])
    assert run("digits", "--run", path, "--resume", "--epochs", 4).exit_code == 0
    assert losses(path) == losses(uninterrupted[0])


def test_micro_batches_on_one_device_change_batch_norm_and_little_else(tmp_path, uninterrupted):
    assert run("digits", "--epochs", 1, "--chunks", 4, "--run", tmp_path / "run").exit_code == 0
    steps, _ = losses(tmp_path / "run")
    assert steps[0] == pytest.approx(losses(uninterrupted[0])[0][0], rel=0.05)


def test_a_finished_run_is_not_trained_again(uninterrupted):
    path, _ = uninterrupted
    before = losses(path)
    assert run("digits", "--run", path, "--resume").exit_code == 0
    assert losses(path) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digit"], "did you mean digits?"),
        (["digits", "--cut", "nowhere"], "there are pooled, unpooled"),
        (["digits", "--codec", "had:4"], "add --connect"),
        (["digits", "--connect", "a:1", "--codec", "bloc:4"], "bloc"),
        (["digits", "--trace", "x.json"], "--trace shows both sides"),
        (["digits", "--lr", "-1"], "lr is a number from 0"),
        (["digits", "--resume", "--run", "nowhere"], "nowhere has no run"),
    ],
)
def test_what_cannot_be_trained_is_explained(words, said):
    assert said in refused(*words)


def test_a_run_is_neither_overwritten_nor_resumed_with_other_numbers(uninterrupted):
    path, _ = uninterrupted
    assert "add --resume to go on with it" in refused("digits", "--run", path)
    assert "--lr was 0.1 when the run was begun, and is 0.2 now" in refused(
        "digits", "--run", path, "--resume", "--lr", 0.2
    )
    assert "is a run of digits, not of two-machines" in refused("two-machines", "--run", path, "--resume")
    assert "begun without a server" in refused("digits", "--run", path, "--resume", "--connect", "a:1")


def test_an_address_where_nobody_may_write_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("digits", "--run", tmp_path / "file" / "run")
    assert result.exit_code == 1 and "cannot be written" in result.output and "Traceback" not in result.output


def test_a_server_that_is_not_there_is_told_and_leaves_no_run_behind(tmp_path):
    pytest.importorskip("zmq")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    result = run("digits", "--connect", address, "--run", tmp_path / "run")
    assert result.exit_code == 1 and address in result.output and "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    assert run("digits", "--epochs", 1, "--run", tmp_path / "run").exit_code == 0
    before = (tmp_path / "run/log.jsonl").read_bytes()
    with RunFolder(tmp_path / "run").owned():
        result = run("digits", "--run", tmp_path / "run", "--resume", "--epochs", 2)
    assert result.exit_code == 1 and f"(pid {os.getpid()}) uses {tmp_path / 'run'} already" in result.output
    assert (tmp_path / "run/log.jsonl").read_bytes() == before
    assert run("digits", "--run", tmp_path / "run", "--resume", "--epochs", 2).exit_code == 0


def test_lines_and_nothing_else_go_to_a_terminal_that_is_wanted_as_none(tmp_path):
    ours, theirs = os.openpty()
    words = ["train", "digits", "--epochs", "1", "--no-tty", "--run", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "thinpipe", *words], stderr=theirs, stdout=subprocess.DEVNULL, check=True)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert said.startswith("epoch 1/1") and "\x1b" not in said
