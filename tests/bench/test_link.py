"""The bench of a slow wire runs real processes over a real one, measures them, and leaves neither behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from thinpipe.bench.link import Plan, results
from thinpipe.bench.link_processes import RankError, run_ranks
from thinpipe.bench.link_rank import Assignment
from thinpipe.bench.link_sheet import link_sheet
from thinpipe.bench.link_stage import TINY, Work, loss
from thinpipe.bench.measure import Samples
from thinpipe.bench.network import ADDRESSES, PREFIX, Network, joined, obstacle, sweep
from thinpipe.bench.record import Machine, Record
from thinpipe.cli import app

WHY_NOT = obstacle()
needs_namespaces = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
# A shell that starts tests in the background has them ignore the interrupt, and all that they start.
AWAKE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{AWAKE}; from thinpipe.cli import main; main()"]
STAY = [sys.executable, "-c", "import time; time.sleep(60)"]
WAIT = 30


def link(*words, fails=False):
    result = CliRunner().invoke(app, ["bench", "link", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.split()) if fails else json.loads(result.stdout.splitlines()[-1])


def namespaces(owner):
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{PREFIX}-{owner}-*")) if folder.exists() else []


def children(process):
    """Finds the ranks that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == process and state != "Z":
            found.append(int(stat.parent.name))
    return found


def ended(process):
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition):
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_the_command_measures_over_the_loopback_and_records(tmp_path):
    words = ("--tiny", "--no-namespaces", "--variants", "tdp_raw,bare", "--rounds", 3, "--json", "--output", tmp_path)
    run = link("--bandwidth", "full", *words)
    assert run["ideal_ms"] == 30 and run["tdp_raw_ms"] >= 30 and run["bare_ms"] > 0
    assert {name: len(seconds) for name, seconds in run["samples"].items()} == {"tdp_raw": 3, "bare": 3}
    assert "loopback" in run["notes"][0]
    assert Record.load(tmp_path / "link" / "full.json").results["tdp_raw_ms"] == run["tdp_raw_ms"]


@needs_namespaces
def test_the_command_measures_over_a_wire_that_the_kernel_slows():
    run = link("--bandwidth", "20mbit", "--tiny", "--rounds", 1, "--variants", "tdp_raw,bare", "--json")
    assert run["settings"]["wire"] == "namespaces" and run["notes"] == []
    assert run["tdp_raw_ms"] >= run["ideal_ms"]
    assert namespaces(os.getpid()) == []


def test_what_cannot_be_slowed_without_the_kernel_is_not_guessed():
    run = link("--bandwidth", "50mbit", "--tiny", "--no-namespaces", "--variants", "tdp_raw", "--json")
    assert run["tdp_raw_ms"] is None
    assert any("tdp_raw cannot be slowed down" in note for note in run["notes"])


def test_an_unknown_variant_or_bandwidth_is_refused():
    assert "no variant is called 'tpd'" in link("--variants", "tpd", fails=True)
    assert "full" in link("--bandwidth", "fast", fails=True)


RECEIVE = """
import socket, time
listener = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = listener.accept()
began, count = time.perf_counter(), 0
while piece := connection.recv(1 << 16):
    count += len(piece)
print(count, time.perf_counter() - began)
"""
SEND = f"import socket; socket.create_connection(({ADDRESSES[1]!r}, 5000)).sendall(bytes(1 << 20))"


def transfer(network):
    command = network.command(1, [sys.executable, "-c", RECEIVE])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        subprocess.run(network.command(0, [sys.executable, "-c", SEND]), check=True, timeout=WAIT)
        count, seconds = receiver.stdout.readline().split()
    assert int(count) == 1 << 20
    return float(seconds)


@needs_namespaces
def test_the_wire_carries_what_its_rate_allows_until_it_is_changed():
    with joined(20e6) as network:
        # A quarter of the mebibyte is let through at once, the rest takes 0.31 s.
        assert 0.25 < transfer(network) < 2
        network.shape(None)
        assert transfer(network) < 0.25
        network.shape(10e6)
        assert transfer(network) > 0.5


@needs_namespaces
def test_hosts_are_taken_away_after_a_failure_with_what_runs_there():
    with pytest.raises(ZeroDivisionError), joined() as network:
        stays = subprocess.Popen(network.command(0, STAY))
        until(lambda: subprocess.check_output(["ip", "netns", "pids", network.names[0]]))
        raise ZeroDivisionError
    assert stays.wait(WAIT) == -signal.SIGKILL
    assert namespaces(os.getpid()) == []


@needs_namespaces
def test_hosts_of_a_killed_process_are_swept_and_those_of_a_living_one_are_not():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = Network(gone.pid)
    left.make()
    assert namespaces(gone.pid) == list(left.names)
    with joined() as network:
        assert namespaces(gone.pid) == []
        sweep()
        assert namespaces(os.getpid()) == list(network.names)


def test_a_failing_rank_is_quoted_and_takes_the_other_along(tmp_path):
    note = tmp_path / "pid"
    stays = [sys.executable, "-c", f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"]
    wait = f"import os, time\nwhile not os.path.exists({str(note)!r}): time.sleep(.01)\ntime.sleep(.1)\n"
    fails = [sys.executable, "-c", f"{wait}raise SystemExit('out of paper')"]
    with pytest.raises(RankError, match=r"(?s)rank 0 still ran.*rank 1 ended with code 1.*out of paper"):
        run_ranks([stays, fails], pytest.fail, patience=WAIT)
    assert ended(int(note.read_text()))


def test_silent_ranks_are_ended_when_patience_is():
    with pytest.raises(RankError, match="no end after 1 s"):
        run_ranks([STAY, STAY], pytest.fail, patience=1)


def test_every_line_of_rank_0_is_heard():
    heard = []
    speaks = [sys.executable, "-c", "print('a\\nb'); print('c')"]
    run_ranks([speaks, speaks], heard.append, patience=WAIT)
    assert heard == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_a_command_that_is_interrupted_or_killed(blow):
    words = ["bench", "link", "--tiny", "--rounds", "100000", "--variants", "bare"]
    command = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ranks = until(lambda: found if len(found := children(command.pid)) == 2 else None)
        command.send_signal(blow)
        assert command.wait(WAIT) != 0
        until(lambda: all(map(ended, ranks)))
    finally:
        command.kill()
    if blow == signal.SIGKILL and WHY_NOT is None:
        sweep()
    assert namespaces(command.pid) == []


def test_a_rank_reads_its_assignment_from_its_command_line():
    assignment = Assignment(1, "127.0.0.1", 5000, "lo", ("bare",), 3, 1, 0.1, 60.0, TINY, 50e6, 0)
    assert Assignment.read(assignment.text()) == assignment


def test_a_stage_sleeps_both_ways_and_passes_everything_on():
    work = Work(micros=1, rows=4, width=4, forward=0.02, backward=0.04)
    x, target = work.micro_batch().requires_grad_(), work.micro_batch()
    began = time.perf_counter()
    output = work.stage()(x)
    halfway = time.perf_counter()
    loss(output, target).backward()
    assert halfway - began >= 0.02 and time.perf_counter() - halfway >= 0.04
    torch.testing.assert_close(output, x)
    torch.testing.assert_close(x.grad, target)


def test_the_ideal_is_that_of_1f1b():
    assert Work().ideal == pytest.approx(0.540) and Work().message_bytes == 1048576


@pytest.mark.parametrize(("coded", "word"), [(0.56, "kept"), (0.60, "MISSED")])
def test_figures_stand_beside_the_bars_they_are_held_to(coded, word):
    samples = Samples({"tdp_raw": [2.7, 2.8], "raw": [1.8, 1.9], "coded": [coded, coded]})
    plan = Plan("50mbit")
    settings = {"work": vars(plan.work), "message_bytes": plan.work.message_bytes, "bits_per_second": plan.rate}
    found = results(plan.work, samples)
    record = Record("link", found, samples.seconds, settings, Machine.current(), row=plan.bandwidth)
    assert (found["ideal_ms"], found["raw_ms"], found["coded_ms"]) == (540, 1850, 1e3 * coded)
    line = next(line for line in link_sheet([record]).lines if line[1].startswith("coded"))
    assert line[-1] == f"at most 1.06 of ideal: {coded / 0.54:.3f}, {word}"
