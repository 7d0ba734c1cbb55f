"""A terminal shows a run as it goes and is left as it was; a log gets lines."""

import errno
import fcntl
import io
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.train.beginning import begin, resume
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from thinpipe.train.panel_live import Display
from thinpipe.train.progress import Lines, watching
from thinpipe.train.side_costs import sides_of
from thinpipe.train.training import train
from train.screen import Screen

EPOCHS = 3


class Terminal(io.StringIO):
    """Keeps what is written to it, until it is closed as a window is."""

    def __init__(self):
        super().__init__()
        self.gone = False

    def write(self, text):
        if self.gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)

    @property
    def screen(self):
        return Screen(self.getvalue().replace("\n", "\r\n"))

    def wait_for(self, text):
        deadline = time.monotonic() + 20
        while text not in self.screen.text and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.screen.text


@pytest.fixture
def terminal():
    return Terminal()


def console_on(terminal):
    return Console(file=terminal, force_terminal=True, width=80, height=24)


def display(terminal, *, notice=str, done=0):
    return Display(console_on(terminal), epochs=EPOCHS, total=60, done=done, notice=notice)


def step(number, *, loss=0.5):
    sides = [{"name": "stage 0", "computed": 0.06, "encode": 0.01, "decode": 0.0, "stalled": 0.02}]
    cost = {"sent": 1000, "received": 2000, "sides": sides}
    return StepLine(step=number, epoch=number // 20, rows=64, loss=loss, seconds=0.1, cost=cost)


def test_a_run_is_shown_as_it_goes(terminal):
    with display(terminal) as shown:
        assert "waiting for the first step" in terminal.screen.text and "0/60" in terminal.screen.text
        assert not terminal.screen.cursor
        shown.stepped(step(20, loss=0.25))
        text = terminal.wait_for("21/60")
        assert "epoch 2/3" in text and "loss 0.2500" in text and "640 samples/s" in text and "█ busy" in text
        shown.evaluating(1)
        assert "evaluating after epoch 1" in terminal.wait_for("evaluating")
        shown.evaluated(EvaluationLine(step=20, epoch=1, rows=9, loss=0.1, accuracy=0.5, seconds=1, mcc=0.25))
        assert "evaluating" not in terminal.wait_for("accuracy 50.00%  MCC 0.2500  640 samples/s, 0.03 MB/s")
    assert terminal.screen.text == "" and terminal.screen.cursor


def test_a_run_that_goes_on_begins_where_it_was_and_may_go_back(terminal):
    with display(terminal, done=40) as shown:
        assert "40/60" in terminal.screen.text
        shown.stepped(step(44))
        assert "epoch 3/3" in terminal.wait_for("45/60")
        # A server that was restarted has taken some steps back.
        shown.stepped(step(18))
        assert "epoch 1/3" in terminal.wait_for("19/60")


def test_what_others_print_stands_above_it(terminal):
    with display(terminal) as shown:
        shown.stepped(step(0))
        terminal.wait_for("stage 0")
        sys.stderr.write("a warning of somebody else\n")
        assert terminal.screen.text.startswith("a warning of somebody else\nepoch 1/3")
    assert terminal.screen.text == "a warning of somebody else"


def test_a_wish_to_stop_is_answered_at_once_in_the_midst_of_a_step(terminal):
    said = []
    with display(terminal, notice=lambda: "".join(said)) as shown:
        shown.stepped(step(0))
        terminal.wait_for("loss")
        said.append("finishing the step")
        assert "loss" not in terminal.wait_for("finishing the step")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_terminal_is_as_it_was_after_an_error(error, terminal):
    before = sys.stdout, sys.stderr
    with pytest.raises(error), display(terminal) as shown:
        shown.stepped(step(0))
        terminal.wait_for("stage 0")
        raise error
    assert terminal.screen.text == "" and terminal.screen.cursor and (sys.stdout, sys.stderr) == before


def test_a_display_that_fails_ends_and_not_the_run(terminal, caplog):
    def broken():
        if shown is not None:
            raise ValueError("nobody thought of this")
        return ""

    shown, before = None, (sys.stdout, sys.stderr)
    with display(terminal, notice=broken) as entered:
        shown = entered
        deadline = time.monotonic() + 20
        while not caplog.records and time.monotonic() < deadline:
            shown.stepped(step(0))
            time.sleep(0.02)
        # Whoever has something to say is heard, as if there had been no display.
        assert (sys.stdout, sys.stderr) == before and terminal.screen.cursor
        shown.stepped(step(1))
    (record,) = caplog.records
    assert record.message == "the run goes on, but is no longer shown: nobody thought of this"


def test_a_terminal_that_was_closed_ends_the_display_and_not_the_run(terminal, caplog):
    with display(terminal) as shown:
        terminal.gone = True
        deadline = time.monotonic() + 20
        while not caplog.records and time.monotonic() < deadline:
            shown.stepped(step(0))
            time.sleep(0.02)
        shown.stepped(step(1))
        shown.evaluating(1)
    (record,) = caplog.records
    assert "the run goes on, but is no longer shown" in record.message and "Input/output error" in record.message


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with watching(console_on(terminal), epochs=1, total=1, done=0) as watcher:
        assert isinstance(watcher, Lines)


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A run of two stages that are threads, in a process whose stderr is no terminal; and what it printed there."""
    path, printed = tmp_path_factory.mktemp("runs") / "stages", io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", printed)
        patch.setenv("FORCE_COLOR", "1")  # as some do for the colours of their logs
        words = {"stages": 2, "codec": "block:8"}
        assert train(*begin("digits", {"epochs": 2, "chunks": 2}, words, path), here=None, trace=None) == 0
    return path, printed.getvalue()


def test_a_log_gets_a_line_for_each_epoch_and_no_control_characters(stages):
    lines = [line for line in stages[1].splitlines() if "TensorBoard" not in line]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("test loss" in line and "accuracy" in line and "samples/s" in line for line in lines)
    assert all(letter.isprintable() or letter == "\n" for letter in stages[1])


def test_every_step_tells_what_its_stages_did(stages):
    steps = [line for line in RunFolder(stages[0]).lines() if isinstance(line, StepLine)]
    for line in steps:
        sides = sides_of(line.cost)
        assert [side.name for side in sides] == ["stage 0", "stage 1"]
        for side in sides:
            spent = side.times.computed + side.times.encode + side.times.decode + side.times.stalled
            assert 0 < spent <= line.seconds + 1e-5 and side.times.computed > 0
    # Activations are packed by the first stage and unpacked by the second; gradients are not packed at all.
    first, second = (sum(side.times.encode for side in pair) for pair in zip(*map(_sides, steps), strict=True))
    assert first > 2 * second


def test_logs_with_and_without_sides_have_the_same_figures(stages, tmp_path):
    # Runs of earlier versions have none.
    path = shutil.copytree(stages[0], tmp_path / "run")
    lines = [json.loads(text) for text in (path / "log.jsonl").read_text().splitlines()]
    assert all(line["cost"].pop("sides") for line in lines if line["kind"] == "step")
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    older = Run.read(path)
    assert Figures.of(older) == Figures.of(Run.read(stages[0]))
    assert all(sides_of(line.cost) == [] for line in older.steps)
    assert train(*resume("digits", {"epochs": 3}, {}, path), here=None, trace=None) == 0
    assert [len(sides_of(line.cost)) for line in Run.read(path).steps[::23]] == [0, 0, 2]


def test_a_client_and_its_server_are_two_sides(tmp_path):
    pytest.importorskip("zmq")
    from thinpipe.remote.server import Server
    from thinpipe.train.offers import Offers

    with Server(Offers(["digits"]), listen="127.0.0.1:0", device="cpu") as server:
        words = {"connect": server.address.removeprefix("tcp://")}
        found = begin("digits", {"epochs": 1, "batch": 240}, words, tmp_path / "run")
        assert train(*found, here=None, trace=None) == 0
    for line in Run.read(tmp_path / "run").steps:
        client, server = sides_of(line.cost)
        assert (client.name, server.name) == ("client", "server")
        assert client.times.computed > 0 and server.times.computed > 0 and client.peak_up > 0 and server.peak_down > 0


SCRIPT = """
import sys
from pathlib import Path
from thinpipe.train.beginning import begin
from thinpipe.train.training import train

def run(name, epochs, **given):
    fields, settings = {"epochs": epochs, "chunks": 2}, {"stages": 3, "codec": "block:8"}
    return train(*begin("digits", fields, settings, Path(sys.argv[1]) / name), here=None, trace=None, **given)

run("plain", 1, plain=True)
sys.stderr.write("now live\\n")
run("whole", 2)
sys.stderr.write("and without end\\n")
sys.exit(run("live", 2000))
"""


def test_a_real_terminal_shows_the_panel_and_is_left_clean(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    surroundings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    surroundings |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(program, env=surroundings, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    written, asked = "", False
    try:
        while piece := _read(ours):
            written += piece
            _, _, endless = written.partition("and without end\r\n")
            if not asked and "stage 2" in endless and "accuracy" in endless:
                process.send_signal(signal.SIGINT)
                asked = True
        process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(ours)
    assert process.returncode == 128 + signal.SIGINT, written[-4000:]
    plain, live = written.split("now live\r\n")
    assert "\x1b" not in plain and "epoch 1/1  loss" in plain
    whole, interrupted = live.split("and without end\r\n")
    assert "\x1b[32m█" in whole and "stage 2" in whole and "samples/s" in whole and "━" in whole
    assert Screen(whole).text == "" and Screen(whole).cursor
    # Nothing of what was shown is left, and the next words stand in its place.
    left = Screen(interrupted).text.splitlines()
    assert (
        Screen(interrupted).cursor
        and left[0].startswith("saved after step")
        and "--resume" in left[-1]
        and len(left) <= 3
    )


def _read(end):
    try:
        return os.read(end, 65536).decode(errors="replace")
    except OSError:  # nobody has the other end any more
        return ""


def _sides(line):
    return sides_of(line.cost)
