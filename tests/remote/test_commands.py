"""``thinpipe keygen``, ``serve``, ``train --connect``, ``report``: two terminals, as the README has them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.train import RECIPES
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@contextmanager
def serving(*words, listen="127.0.0.1:0", ended=0):
    """Starts a server in a process of its own; gives its address and the process, and ends it by SIGTERM."""
    command = [sys.executable, "-u", "-m", "thinpipe", "serve", "--listen", listen, *map(str, words)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"listens at (?:tcp://)?(\S+:\d+)", line):
                yield found[1], process
                break
        else:
            raise AssertionError(f"the server ended: {said}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            rest, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert "Traceback" not in rest, rest
    assert process.returncode == ended, rest


def wait_for_lines(path, count):
    """Waits until a run has logged so much."""
    log, deadline = path / "log.jsonl", time.monotonic() + 60
    while not (log.exists() and log.read_text().count("\n") >= count):
        assert time.monotonic() < deadline, f"{path} has not come to {count} lines"
        time.sleep(0.05)


def losses(path):
    """The losses of a run; each step must be there once, and each epoch tested once."""
    lines = list(RunFolder(path).lines())
    steps = [line for line in lines if isinstance(line, StepLine)]
    tests = [line for line in lines if isinstance(line, EvaluationLine)]
    assert [line.step for line in steps] == list(range(len(steps)))
    assert [line.epoch for line in tests] == list(range(1, len(tests) + 1))
    return [line.loss for line in steps], [line.accuracy for line in tests]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_keys_are_made_for_their_owners_alone_and_the_next_commands_are_told(tmp_path):
    result = run("keygen", "server", "alice", "--folder", tmp_path)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"server.key", "server.pub", "alice.key", "alice.pub"}
    assert (tmp_path / "alice.key").stat().st_mode & 0o777 == 0o600
    secret = re.search(r'secret = "(.*)"', (tmp_path / "alice.key").read_text())[1]
    assert secret not in result.output and secret not in (tmp_path / "alice.pub").read_text()
    assert f"--key {tmp_path}/server.key --clients {tmp_path}/alice.pub" in result.output


def test_keys_are_not_overwritten_and_a_refusal_makes_none(tmp_path):
    assert run("keygen", "alice", "--folder", tmp_path).exit_code == 0
    before = (tmp_path / "alice.key").read_bytes()
    result = run("keygen", "bob", "alice", "--folder", tmp_path)
    assert result.exit_code == 1 and "not overwritten" in result.output
    assert (tmp_path / "alice.key").read_bytes() == before and not (tmp_path / "bob.key").exists()


@pytest.mark.parametrize("names", [("a/b",), ("../b",), ("",), ("a", "a")])
def test_a_name_that_is_none_is_refused(names, tmp_path):
    result = run("keygen", *names, "--folder", tmp_path / "keys")
    assert result.exit_code in (1, 2) and "Traceback" not in result.output
    assert not list(tmp_path.glob("**/*.key"))


# -- two terminals ---------------------------------------------------------------------------------------------------


def test_four_commands_train_over_an_encrypted_connection_with_packed_cuts(tmp_path):
    keys, path = tmp_path / "keys", tmp_path / "run"
    assert run("keygen", "server", "alice", "--folder", keys).exit_code == 0
    with serving("--key", keys / "server.key", "--clients", keys) as (address, _):
        ends = ("--key", keys / "alice.key", "--server", keys / "server.pub")
        packed = ("--codec", "had:4", "--grad-codec", "had:4")
        result = run("train", "digits", "--connect", address, *ends, *packed, "--run", path, "--json")
        assert result.exit_code == 0, result.output
    said = json.loads(result.output.splitlines()[-1])
    assert said["accuracy"] > 0.95 and said["network"]["ratio"] < 0.2
    shown = run("report", path)
    assert shown.exit_code == 0 and "data over computation time" in shown.output and "had:4" in shown.output
    # The server is gone by now; whoever would look for it for ten minutes may say that it shall be less.
    again = run("train", "digits", "--run", path, "--resume", "--epochs", 11, "--give-up", 0.2)
    assert again.exit_code == 1 and address in again.output and "--resume" in again.output, again.output


@pytest.mark.parametrize(
    "words", [("--cut", "pooled"), ("--cut", "unpooled", "--chunks", "4", "--lr", "0.05")], ids=" ".join
)
def test_a_server_trains_like_one_device(words, tmp_path):
    # The recipe's values reach the server in the offer's name: it was started without any of them.
    assert run("train", "digits", "--epochs", 1, "--seed", 5, *words, "--run", tmp_path / "alone").exit_code == 0
    with serving("--recipe", "digits") as (address, _):
        result = run(
            "train", "digits", "--epochs", 1, "--seed", 5, *words, "--connect", address, "--run", tmp_path / "two"
        )
        assert result.exit_code == 0, result.output
    ours, theirs = losses(tmp_path / "two"), losses(tmp_path / "alone")
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    assert ours[1] == pytest.approx(theirs[1], abs=0.01)


def test_a_killed_server_and_a_stopped_client_go_on_as_if_nothing_had_happened(tmp_path, request):
    path, saved = tmp_path / "run", ("--folder", tmp_path / "server")
    with serving() as (address, _):
        assert run("train", "digits", "--epochs", 4, "--connect", address, "--run", tmp_path / "whole").exit_code == 0
    with serving(*saved, ended=-signal.SIGKILL) as (address, server):
        words = ["train", "digits", "--epochs", "2000", "--every", "10", "--connect", address, "--run", str(path)]
        client = subprocess.Popen(
            [sys.executable, "-m", "thinpipe", *words], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        request.addfinalizer(client.kill)  # which does nothing to one that has ended
        wait_for_lines(path, 15)
        server.kill()
        server.wait()
    with serving(*saved, listen=address):
        wait_for_lines(path, 40)
        client.send_signal(signal.SIGTERM)
        _, said = client.communicate(timeout=60)
        assert client.returncode == 143 and "--resume" in said and "Traceback" not in said, said
    with serving(*saved) as (address, _):  # elsewhere, which a resumed run may be told
        taken = len(losses(path)[0])
        epochs = max(4, taken // 23 + 1)
        result = run("train", "digits", "--run", path, "--resume", "--epochs", epochs, "--connect", address)
        assert result.exit_code == 0, result.output
    steps, accuracies = losses(path)
    expected = losses(tmp_path / "whole")
    assert len(steps) == 23 * epochs and steps[:92] == expected[0] and accuracies[:4] == expected[1]


@pytest.mark.parametrize(
    ("recipes", "offered"),
    [((), "mine"), (("digits",), "digits, mine"), (("all",), f"{', '.join(RECIPES)}, mine")],
    ids=["alone", "beside one", "beside all"],
)
def test_an_owners_module_is_offered_by_its_place_and_beside_it_the_recipes_that_are_named(tmp_path, recipes, offered):
    source = (
        "import torch\nfrom torch import nn\nfrom thinpipe.remote.offer import Offer\n"
        "def middle():\n"
        "    return Offer(make=lambda: nn.Linear(4, 4), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))\n"
    )
    (tmp_path / "mine.py").write_text(source)
    command = [
        sys.executable,
        "-u",
        "-m",
        "thinpipe",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--offer",
        "mine=mine:middle",
        *(word for name in recipes for word in ("--recipe", name)),
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == f"offers {offered}\n"
        assert "this machine only" in process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_client_that_nobody_knows_and_a_recipe_that_is_not_offered_are_told_so(tmp_path):
    keys = tmp_path / "keys"
    assert run("keygen", "server", "alice", "eve", "--folder", keys).exit_code == 0
    with serving("--recipe", "digits", "--key", keys / "server.key", "--clients", keys / "alice.pub") as (address, _):
        eve = ("--connect", address, "--key", keys / "eve.key", "--server", keys / "server.pub")
        result = run("train", "digits", *eve, "--run", tmp_path / "eve")
        assert result.exit_code == 1 and "Traceback" not in result.output, result.output
        alice = ("--connect", address, "--key", keys / "alice.key", "--server", keys / "server.pub")
        result = run("train", "two-machines", "--pixels", 32, *alice, "--run", tmp_path / "alice")
        assert result.exit_code == 1 and "digits" in result.output and "Traceback" not in result.output, result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--key", "server.key"), "--key and --clients belong together"),
        (("--key", "absent.key", "--clients", "a.pub"), "absent.key"),
        (("--recipe", "digit"), "did you mean digits?"),
        (("--offer", "mine"), "write name=package.module:factory"),
        (("--listen", "0.0.0.0:0"), "key"),
        (("--listen", "nonsense"), "nonsense"),
        (("--listen", "127.0.0.1:0", "--folder", "/proc/none"), "/proc/none cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_server_that_cannot_be_started_says_why(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("serve", *words)
    assert result.exit_code in (1, 2), result.output
    assert said in result.output and "Traceback" not in result.output
