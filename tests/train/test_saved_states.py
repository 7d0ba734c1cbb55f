"""What a run saves: a damaged file costs some steps, a full disk costs time, and neither costs a run."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from thinpipe.checkpoint import disk
from thinpipe.cli import app
from thinpipe.train.board import Board
from thinpipe.train.log import RunFolder, StepLine

WAYS = {
    "one device": (),
    "stages": ("--stages", "2", "--codec", "ef(block:4)", "--grad-codec", "ef(block:4)"),
}


def run(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)])


def losses(path):
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["loss"]) for line in lines]


@pytest.fixture(scope="module", params=WAYS)
def whole(request, tmp_path_factory):
    """A run that nothing happened to, and one of the same way that was interrupted after 30 of 46 steps."""
    folder = tmp_path_factory.mktemp("whole")
    words = ("digits", "--epochs", 2, "--every", 10, *WAYS[request.param])
    assert run(*words, "--run", folder / "whole").exit_code == 0
    return folder / "whole", words


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["model/00000.safetensors", "manifest.json", "memories"])
def test_a_run_with_a_damaged_state_is_resumed_from_the_one_before_it(whole, tmp_path, caplog, file):
    straight, (name, *words) = whole
    path = tmp_path / "run"
    assert run(name, *words, "--epochs", 1, "--run", path).exit_code == 0  # 23 steps: states of 20 and 23
    states = sorted(each.name for each in (path / "states").glob("step-*"))
    assert states == ["step-00000020", "step-00000023"]
    if file == "memories":
        if "--codec" not in words:
            pytest.skip("nothing is remembered")
        flip(path / "states" / "memories" / states[-1] / "tensors.safetensors")
    else:
        flip(path / "states" / states[-1] / file)
    result = run(name, "--run", path, "--resume", "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert "going on from step 20, 3 steps are repeated" in caplog.text
    assert losses(path) == losses(straight)


def test_a_damaged_line_of_the_log_is_left_out_when_a_run_is_resumed(whole, tmp_path, caplog):
    straight, (name, *words) = whole
    path = tmp_path / "run"
    assert run(name, *words, "--epochs", 1, "--run", path).exit_code == 0
    lines = (path / "log.jsonl").read_text().splitlines()
    (path / "log.jsonl").write_text("\n".join([*lines[:4], lines[4][:-5] + "\x00", *lines[5:]]) + "\n")
    assert run(name, "--run", path, "--resume", "--epochs", 2).exit_code == 0
    assert "line 5 of" in caplog.text and "is left out" in caplog.text
    assert losses(path) == [line for line in losses(straight) if line[:2] != ("step", 4)]


# -- full disks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("nobody may mount a small disk here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def begun(command):
    """A process with as many threads as this one, or sums would have other last bits."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_on_a_full_disk_waits_and_goes_on_when_there_is_room(whole, small_disk, caplog):
    straight, words = whole
    command = [sys.executable, "-m", "thinpipe", "train", *map(str, words), "--run", str(small_disk / "run")]
    with begun(command) as process:
        log = small_disk / "run" / "log.jsonl"
        until = time.monotonic() + 60
        while not log.exists() or log.read_text().count("\n") < 3:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        filling = small_disk / "filling"
        with pytest.raises(OSError, match="No space left"):
            filling.write_bytes(bytes(2**24))
        said = ""
        while "waiting, trying again" not in said:
            said += (line := process.stderr.readline())
            assert line, said
        assert re.search(r"this process cannot save .*: no space left on its disk; waiting", said)
        time.sleep(1.2)
        assert process.poll() is None
        filling.unlink()
        _, rest = process.communicate(timeout=100)
        assert process.returncode == 0, said + rest
        assert "Traceback" not in said + rest
    assert losses(small_disk / "run") == losses(straight)
    assert not [path for path in (small_disk / "run").rglob("*") if path.name.startswith((".saving", ".unfinished"))]


_SMALL_FILES = """
import resource, signal, sys
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
from thinpipe.cli import app
app(["train", *sys.argv[1:]])
"""


def test_a_run_that_may_not_write_large_files_waits_until_it_may(whole, tmp_path):
    straight, words = whole
    command = [sys.executable, "-c", _SMALL_FILES, *map(str, words), "--run", str(tmp_path / "run")]
    with begun(command) as process:
        said = ""
        while "waiting, trying again" not in said:
            said += (line := process.stderr.readline())
            assert line, said
        assert "cannot save step 10: a file larger than its disk allows; waiting" in said
        process.send_signal(signal.SIGUSR1)
        _, rest = process.communicate(timeout=100)
        assert process.returncode == 0 and "Traceback" not in said + rest, said + rest
    assert losses(tmp_path / "run") == losses(straight)


def test_a_line_of_the_log_is_written_whole_or_not_at_all(small_disk, monkeypatch, caplog):
    monkeypatch.setattr(disk, "SHORTEST", 0.05)
    folder = RunFolder(small_disk)
    log = folder.log(0)
    filling = small_disk / "filling"
    with pytest.raises(OSError, match="No space left"):
        filling.write_bytes(bytes(2**24))
    lines = [StepLine(step=step, epoch=0, rows=8, loss=1.0, seconds=0.1) for step in range(200)]
    adding = threading.Thread(target=lambda: [log.add(line) for line in lines])
    adding.start()
    until = time.monotonic() + 20
    while "waiting" not in caplog.text:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (small_disk / "log.jsonl").read_bytes()[-1:] in (b"", b"\n")
    filling.unlink()
    adding.join()
    assert list(folder.lines()) == lines


def test_curves_are_given_up_and_the_run_is_not(caplog):
    class Full:
        def add_scalar(self, *_):
            raise OSError(28, "No space left on device")

        flush = close = add_scalar

    board = Board(Full())
    for step in range(3):
        board.stepped(StepLine(step=step, epoch=0, rows=8, loss=1.0, seconds=0.1))
    board.close()
    assert caplog.text.count("no more TensorBoard events are written: No space left on device") == 1
