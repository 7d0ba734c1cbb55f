"""``thinpipe reproduce --next`` does what is not recorded yet for some minutes, and the next call goes on elsewhere."""

import gzip
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from thinpipe.bench.record import Machine, Record
from thinpipe.checkpoint.folder import latest
from thinpipe.cli import app
from thinpipe.reproduce.queue.account import Account, found_before
from thinpipe.reproduce.queue.child import Child
from thinpipe.reproduce.queue.growth import SideBySide
from thinpipe.reproduce.queue.meter import Meter, Tail, Window
from thinpipe.reproduce.queue.order import Measurement, OrderError, read_order
from thinpipe.reproduce.queue.place import Place, Standing, State, saved_step
from thinpipe.reproduce.queue.runner import Deadline, Outcome, Runner
from thinpipe.reproduce.queue.show import Shown
from thinpipe.reproduce.queue.travel import Carrier, Limits
from thinpipe.reproduce.training.ask import Ask
from thinpipe.reproduce.training.run import Shelf, trained
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine

TABLE = "sortquant-cifar10"
ROW = "power3-3-power7-3"
"""Whose codec remembers the last batch."""
HOW = Ask(
    rows=(),
    seeds=(),
    epochs=None,
    chunks=None,
    changes={},
    data_dir=None,
    encoder=None,
    device="cpu",
    compile=False,
    tiny=True,
)


def place_in(folder, **changes):
    place = Place(results=folder, runs=folder / "runs", how=replace(HOW, **changes))
    place.prepare()
    return place


def order_in(folder, text):
    path = folder / "order.toml"
    path.write_text(text)
    return path


def rows(*names, seeds="[0]"):
    return f"[[run]]\ntable = {TABLE!r}\nrows = {list(names)}\nseeds = {seeds}\n"


def items(folder, *names):
    return read_order(order_in(folder, rows(*names)))


def reproduce(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


class Told:
    """Keeps what a queue says."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def running(self, children):
        pass


# -- what is run, and in which order ---------------------------------------------------------------------------------


def test_the_documents_rows_on_cifar_10_come_first_with_one_seed_and_then_with_more():
    names = [str(item) for item in read_order()]
    first = ["none", "sort12+4", "sort9+3", "sort6+2", "sort3+1"]
    assert names[:5] == [f"sortquant-cifar10 {row}-seed0" for row in first]
    assert names[5:9] == [f"ablation-bits cifar10-uniform{bits}-seed0" for bits in (16, 12, 8, 4)]
    tables = list(dict.fromkeys(name.split()[0] for name in names if not name.startswith("bench")))
    texts = ["sortquant-rte", "sortquant-cola", "sortquant-cifar100", "sortquant-food101", "prune-vs-quant"]
    assert [table for table in tables if table in texts] == texts
    assert names.index("sortquant-cifar10 none-seed1") < names.index("sortquant-rte none-seed0")
    assert {f"sortquant-rte none-seed{seed}" for seed in range(5)} <= {*names}
    assert len(names) == len({*names}), "what is named twice is run once"


def test_every_command_of_the_list_is_one_and_leaves_the_record_that_it_names():
    for item in read_order():
        if isinstance(item, Measurement):
            verb, command, *words = item.words
            result = CliRunner().invoke(app, [verb, command, "--help"])
            assert result.exit_code == 0 and "--output" in result.output, item
            assert item.record.parent.name == command
            assert item.record.stem.removesuffix("-one-gpu") == words[words.index("--rows") + 1], item


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[run]]\ntable = "sortquant-cifar1O"\n', "entry 1: there is no table 'sortquant-cifar1O'; did you mean"),
        ('[[run]]\ntable = "prune-vs-quant"\nrows = ["zip*"]\n', "no row of prune-vs-quant matches 'zip*'; there are"),
        ('[[run]]\ntable = "prune-vs-quant"\nseed = 1\n', "it has no 'seed'; did you mean seeds?"),
        ('[[run]]\ntable = "prune-vs-quant"\nseeds = [-1]\n', "seeds are whole numbers"),
        ('[[run]]\ncommand = "bench pipe"\nrecord = "/pipe.json"\n', "record is the file that the command leaves"),
        ('[[run]]\ncommand = "bench pipe"\nrecord = "a/b.json"\nminutes = 0\n', "minutes are a number above 0"),
        ("[[run]\n", "cannot be read as a list of what to run"),
    ],
)
def test_a_list_that_names_what_there_is_not_is_refused_with_the_place(text, why, tmp_path):
    with pytest.raises(OrderError) as raised:
        read_order(order_in(tmp_path, text))
    assert why in str(raised.value)
    result = reproduce("--next", "--list", "--order", tmp_path / "order.toml")
    assert result.exit_code == 2 and "order.toml" in re.sub(r"[│\s]", "", result.output)


def test_rows_come_in_the_order_of_their_patterns_with_each_seed_after_the_other(tmp_path):
    found = read_order(order_in(tmp_path, rows("wave2", "sort*", "none", seeds="[1, 0]")))
    once = ["wave2", "sort12+4", "sort9+3", "sort6+2", "sort3+1", "none"]
    assert [item.job for item in found] == [f"{row}-seed{seed}" for seed in (1, 0) for row in once]


# -- what is known of it ---------------------------------------------------------------------------------------------


def begin(place, item, *, steps):
    """Trains a row in this process for some steps."""
    job, run, stopped = place.job(item), place.run(item), Stopped(place.run(item), steps)
    samples = Shelf().samples(job.recipe, "cpu")
    assert not trained(job, samples, run, stopped, Console(file=io.StringIO()))
    return run


class Stopped:
    """Wants to stop after so many steps."""

    def __init__(self, run, steps):
        self._run, self._steps = run, steps

    @property
    def wanted(self):
        log = self._run.log_path
        return log.exists() and log.read_text().count('"kind": "step"') >= self._steps


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder in which one row is recorded, one with other settings, and one is begun."""
    folder = tmp_path_factory.mktemp("recorded")
    assert reproduce(TABLE, "--tiny", "--rows", "none", "--output", folder, "--device", "cpu").exit_code == 0
    shutil.copy(folder / TABLE / "none-seed0.json", folder / TABLE / "sort6+2-seed0.json")
    begin(place_in(folder), items(folder, ROW)[0], steps=15)
    return folder


def test_the_list_shows_what_is_done_begun_and_to_do_with_what_is_left_of_it(recorded):
    order = order_in(recorded, rows("none", "sort6+2", ROW, "had4"))
    result = reproduce("--next", "--list", "--tiny", "--output", recorded, "--order", order, "--device", "cpu")
    assert result.exit_code == 0, result.output
    done, refused, begun, to_do = [line for line in result.output.splitlines() if f"│ {TABLE}" in line]
    assert "│ done" in done and "│ begun, 1 of 3 epochs" in begun and "│ to do" in to_do
    assert "│ refused" in refused and "1 done, 1 refused, 1 begun, 1 to do" in result.output
    # From what the row that is done took an epoch.
    assert (
        begun.rstrip("│ ").endswith(" s") and to_do.rstrip("│ ").endswith(" s") and not done.rstrip("│ ").endswith(" s")
    )
    standing = place_in(recorded).standing(items(recorded, "sort6+2")[0])
    assert standing.state is State.REFUSED and "recorded with codec=none, and it is sort:6+2 now" in standing.why


def test_what_is_missing_is_told_once_and_does_not_stop_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path))
    order = order_in(tmp_path, rows("none", "had4") + '[[run]]\ntable = "sortquant-rte"\nrows = ["none"]\n')
    found = [place_in(tmp_path, tiny=False).standing(item) for item in read_order(order)]
    assert [each.state for each in found] == [State.SKIPPED] * 3
    assert "cifar10 is not there" in found[0].why and "there is no encoder 'roberta-base'" in found[2].why
    result = reproduce("--next", "--order", order, "--output", tmp_path, "--device", "cpu", "--no-bare")
    assert result.exit_code == 0 and "2 are skipped, sortquant-cifar10 none-seed0 the first of them" in result.output


def test_a_second_call_with_everything_done_says_so(recorded, tmp_path):
    order = order_in(tmp_path, rows("none"))
    words = ("--next", "--tiny", "--output", recorded, "--order", order, "--device", "cpu")
    result = reproduce(*words)
    assert result.exit_code == 0 and result.output == "everything is done\n"
    order_in(tmp_path, rows("none", "sort6+2"))
    result = reproduce(*words)
    assert result.exit_code == 1, "a row that was recorded otherwise is an error"
    assert "sort6+2-seed0 is refused" in result.output and "nothing left that can be done" in result.output


# -- how many side by side -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ([3000, 5600, 6900, 7000], 4),  # the fourth brings little, and is in nobody's way
        ([3000, 5600, 5500], 2),  # the third costs something
        ([3000, 3100], 2),
        ([3000, 2900], 1),
    ],
)
def test_one_more_is_added_as_long_as_all_together_gain_from_it(rates, kept):
    growth = SideBySide()
    for count, rate in enumerate(rates, 1):
        assert growth.wanted == count and not growth.settled
        growth.measured(count, rate)
    assert growth.settled and growth.wanted == kept
    growth.measured(len(rates), 9000)
    assert growth.wanted == kept and growth.rates()[len(rates)] == (rates[-1] + 9000) / 2, "settled, and still measured"


def test_no_more_are_added_than_there_may_be_or_there_is_room_for():
    growth = SideBySide(most=2)
    for count in (1, 2):
        growth.measured(count, 1000 * count)
    assert growth.settled and growth.wanted == 2
    growth = SideBySide()
    growth.measured(1, 1000)
    growth.stay(1)
    assert growth.wanted == 1 and growth.settled


def line(**said):
    return json.dumps(said) + "\n"


def step(number, epoch=0):
    return line(kind="step", step=number, epoch=epoch, rows=30, loss=1.0)


def test_a_log_counts_from_the_moment_when_it_is_opened_anew(tmp_path):
    path, times = tmp_path / "log.jsonl", iter(range(100))
    path.write_text(step(0) + step(1) + step(2))
    tail = Tail(path, clock=lambda: float(next(times)))
    tail.read()
    assert not tail.rows, "that is of the process before"
    part = tmp_path / "log.jsonl.part"
    part.write_text(step(0) + step(1))
    part.replace(path)
    tail.read()
    assert not tail.steps, "it was kept of before"
    with path.open("a") as log:
        for written in (step(2), step(3), line(kind="evaluation", step=4, epoch=1, rows=90), step(4, 1)[:20]):
            log.write(written)
            log.flush()
            tail.read()
    assert (tail.steps, tail.rows, tail.tested, tail.loss) == (2, 60 + 30, 1, 1.0)
    assert tail.seconds_per_epoch is None, "of this epoch the beginning was not seen"
    with path.open("a") as log:
        log.write(step(4, 1)[20:] + line(kind="evaluation", step=5, epoch=2, rows=90))
    tail.read()
    assert tail.steps == 3 and tail.seconds_per_epoch == 1.0


def test_a_rate_is_measured_while_the_same_ones_train_and_none_of_them_starts(tmp_path):
    now, first, second = [0.0], Tail(tmp_path / "a"), Tail(tmp_path / "b")
    meter = Meter(Window(settle=2, length=10), clock=lambda: now[0])

    def pass_by(seconds, tails, *, rate):
        found = []
        for _ in range(seconds):
            now[0] += 1
            for tail in tails.values():
                tail.steps, tail.rows = tail.steps + 1, tail.rows + rate
            found.append(meter.rate(tails))
        return [each for each in found if each is not None]

    assert pass_by(14, {1: first}, rate=100) == [100]
    assert pass_by(12, {1: first, 2: second}, rate=80) == [], "the second has to settle, and be measured"
    assert pass_by(2, {1: first, 2: second}, rate=80) == [160]
    assert pass_by(5, {}, rate=0) == [] and pass_by(9, {1: first}, rate=50) == []


def test_the_next_call_begins_with_as_many_as_the_last_one_found(tmp_path):
    place, growth = place_in(tmp_path), SideBySide()
    for count, rate in ((1, 1000), (2, 1900), (3, 1950)):
        growth.measured(count, rate)
    account = Account(outcome=Outcome(rows=5e5), growth=growth, seconds=500.0, bare=2000.0, what=TABLE, fixed=False)
    record = account.record(place)
    assert record.results["of_one_by_one"] == 1.95 and record.results["of_bare"] == 0.975
    assert record.results["samples_per_second"] == 1000 and record.results["side_by_side"] == 3
    record.save(place.results)
    found = found_before(place, TABLE)
    assert found.wanted == 3 and found.settled
    assert found_before(place, "prune-vs-quant").wanted == 1, "of another table it says nothing"
    other = replace(record, machine=replace(Machine.current(), gpus=["another"]))
    other.save(place.results)
    assert found_before(place, TABLE).wanted == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_what_runs_is_shown_with_its_epoch_its_loss_and_its_pace(terminal, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("thinpipe.reproduce.queue.show._EVERY", 0.0)
    tails = [Tail(tmp_path / "a"), Tail(tmp_path / "b")]
    children = [
        SimpleNamespace(pid=number, item=item, tail=tail, epochs=40)
        for number, (item, tail) in enumerate(zip(items(tmp_path, "none", "had4"), tails, strict=True))
    ]
    out = io.StringIO()
    with Shown(Console(file=out, force_terminal=terminal, width=150)) as shown:
        shown.running(children)
        tails[0].epoch, tails[0].loss, tails[0].rows = 11, 0.4321, 5e6
        time.sleep(0.01)
        shown.running(children)
        shown.say("what has happened")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "what has happened" in text and re.search(r"none-seed0 +epoch 12/40 +loss 0.4321 +[\d,]{7,}/s", text)
    assert re.search(r"had4-seed0 +starts", text)
    assert ("2 side by side" in text) == terminal and ("samples/s: sortquant" in text) != terminal


# -- processes -------------------------------------------------------------------------------------------------------

OBEYS = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(143)); print('up', flush=True); time.sleep(60)"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


class Pretend(Place):
    """A place whose rows are programs of a line; they have no records."""

    programs: dict

    def words(self, item):
        return [sys.executable, "-c", self.programs[item.row.name]]

    def standing(self, item):
        done = (self.runs / f"{item.row.name}.done").exists()
        return Standing(State.DONE if done else State.TO_DO, epochs=3)


def pretend(folder, programs, *, seconds=60.0, **options):
    """Makes a runner of programs, by the names of rows."""
    place = Pretend(results=folder, runs=folder / "runs", how=HOW)
    object.__setattr__(place, "programs", programs)
    place.runs.mkdir(exist_ok=True)
    told = options.pop("told", None) or Told()
    usual = {"has_room": lambda _: True, "per_epoch": {}, "window": Window()}
    growth = options.pop("growth", SideBySide(1, settled=True))
    deadline = Deadline(time.monotonic(), seconds)
    runner = Runner(place, items(folder, *programs), deadline, growth, told, **usual | options)
    return runner, told, deadline


def says(path, program):
    return f"open({str(path)!r}, 'w').close(); {program}"


def test_when_time_is_over_all_are_asked_to_save_and_who_does_not_is_ended(tmp_path):
    marks = {name: tmp_path / f"{name}.up" for name in ("none", "had4")}
    programs = {"none": says(marks["none"], OBEYS), "had4": says(marks["had4"], DEAF)}
    growth = SideBySide(2, settled=True)
    runner, _, deadline = pretend(tmp_path, programs, seconds=10.0, growth=growth)
    runner._has_stepped = True
    outcome = runner.run(lambda: False)
    over = time.monotonic()
    assert all(mark.exists() for mark in marks.values())
    assert [item.row.name for item in outcome.stopped] == ["none", "had4"], "in the order in which they ended"
    assert deadline.stop < deadline.kill <= over < deadline.begin + deadline.seconds


def test_a_row_that_fails_is_told_with_its_last_words_and_tried_again_at_the_end(tmp_path):
    done = "open({!r}, 'w').close()"
    programs = {
        "none": "print('what went wrong'); exit(1)",
        "had4": done.format(str(tmp_path / "runs" / "had4.done")),
    }
    runner, told, _ = pretend(tmp_path, programs)
    outcome = runner.run(lambda: False)
    begun = [text.split()[1] for text in told.said if text.endswith("begins")]
    assert begun == ["none-seed0", "had4-seed0", "none-seed0"]
    assert [item.row.name for item in outcome.done] == ["had4"] and [item.row.name for item in outcome.failed] == [
        "none"
    ]
    assert any("failed with status 1:\nwhat went wrong" in text for text in told.said)


def test_a_row_that_finds_no_memory_beside_others_waits_for_them(tmp_path):
    up, tried, noticed, done = (tmp_path / name for name in ("up", "tried", "noticed", "runs/had4.done"))
    wait = "import time, pathlib\nwhile not pathlib.Path({0!r}).exists(): time.sleep(0.01)\n"
    programs = {
        "none": f"open({str(up)!r}, 'w').close()\n" + wait.format(str(noticed)) + "exit(1)",
        "had4": wait.format(str(up))
        + f"if pathlib.Path({str(tried)!r}).exists(): open({str(done)!r}, 'w').close()\n"
        + f"else: open({str(tried)!r}, 'w').close(); print('CUDA out of memory'); exit(1)",
    }

    class Notices(Told):
        def say(self, text):
            super().say(text)
            if "had4-seed0 failed" in text:
                noticed.touch()

    growth = SideBySide(2, settled=True)
    runner, told, _ = pretend(tmp_path, programs, growth=growth, told=Notices())
    runner._has_stepped = True
    outcome = runner.run(lambda: False)
    assert growth.wanted == 1 and [item.row.name for item in outcome.done] == ["had4"], told.said


def test_whoever_stops_the_queue_has_all_saved(tmp_path):
    mark = tmp_path / "up"
    runner, _, _ = pretend(tmp_path, {"none": says(mark, OBEYS)})
    began = time.monotonic()
    outcome = runner.run(mark.exists)
    assert len(outcome.stopped) == 1 and time.monotonic() - began < 30


def test_a_row_that_can_neither_end_nor_be_carried_leaves_its_place_to_another(tmp_path):
    done = f"open({str(tmp_path / 'runs' / 'had4.done')!r}, 'w').close()"
    runner, told, _ = pretend(
        tmp_path,
        {"none": "exit(1)", "had4": done},
        stays=lambda item: item.row.name == "none",
        per_epoch={TABLE: 1e6},
    )
    outcome = runner.run(lambda: False)
    assert [item.row.name for item in outcome.done] == ["had4"] and not outcome.failed
    assert not [text for text in told.said if "none-seed0 begins" in text]


def test_a_row_that_another_queue_trains_is_left_to_it(tmp_path):
    runner, told, _ = pretend(tmp_path, {"none": "exit(1)"})
    with RunFolder(tmp_path / "runs" / TABLE / "none-seed0").owned():
        outcome = runner.run(lambda: False)
    assert [item.row.name for item in outcome.elsewhere] == ["none"] and not outcome.failed
    assert [text for text in told.said if "left to another process" in text]


def test_ctrl_c_in_a_terminal_reaches_no_child(tmp_path):
    child = Child(None, [sys.executable, "-c", OBEYS], said=tmp_path / "said", log=None)
    try:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
        while "up" not in child.last_words():
            time.sleep(0.01)
        for _ in range(3):
            child.stop()  # a second signal would end it before it has saved
        deadline = time.monotonic() + 30
        while child.status() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == 143
    finally:
        child.kill()


# -- real trainings --------------------------------------------------------------------------------------------------

EPOCHS = 12


def said(run):
    """What a log says, without times and what was counted of them."""
    steps = [
        (each.step, each.epoch, each.rows, each.loss, each.lr, each.cost["sent"], each.cost["received"])
        for each in run.lines()
        if isinstance(each, StepLine)
    ]
    tests = [
        (each.step, each.epoch, each.rows, each.loss, each.accuracy)
        for each in run.lines()
        if isinstance(each, EvaluationLine)
    ]
    return steps, tests


def figures(record):
    timed = ("seconds", "samples_per_second", "seconds_per_batch")
    results = {name: value for name, value in record.results.items() if name not in timed}
    return results, {name: curve for name, curve in record.samples.items() if name != "seconds"}, record.settings


@pytest.mark.timeout(600)
def test_a_run_that_is_sliced_and_carried_is_the_undisturbed_one_bit_for_bit(tmp_path):
    whole = tmp_path / "whole"
    words = (TABLE, "--tiny", "--rows", ROW, "--epochs", EPOCHS, "--output", whole, "--device", "cpu")
    assert reproduce(*words).exit_code == 0
    carried, total = tmp_path / "carried", 12 * EPOCHS
    for number, steps in enumerate((total // 3, 2 * total // 3, 10 * total)):
        # Another machine each time: nothing is there but what was carried.
        place = place_in(tmp_path / f"machine-{number}", epochs=EPOCHS)
        carrier = Carrier(carried, place)
        carrier.unpack()
        (item,) = items(tmp_path, ROW)
        before = saved_step(place.run(item))
        assert bool(before) == bool(number)
        stop, told = Stopped(place.run(item), steps), Told()
        deadline = Deadline(time.monotonic(), 500.0)
        runner = Runner(
            place,
            [item],
            deadline,
            SideBySide(1, settled=True),
            told,
            window=Window(),
            has_room=lambda _: True,
            per_epoch={},
        )
        outcome = runner.run(lambda stop=stop: stop.wanted)
        assert not outcome.failed, told.said
        files = carrier.pack()
        assert not carrier.notes and len(files) == 1
    assert [path.name for path in carried.iterdir()] == ["records.tar.gz"], "what is done is no unfinished run"
    name = f"{TABLE}/{ROW}-seed0"
    ours, theirs = (RunFolder(folder / "runs" / name) for folder in (place.results, whole))
    assert said(ours) == said(theirs) and len(said(ours)[0]) == total
    records = [Record.load(folder / f"{name}.json") for folder in (place.results, whole)]
    assert figures(records[0]) == figures(records[1])
    home = place_in(tmp_path / "home", epochs=EPOCHS)
    Carrier(carried, home).unpack()
    assert home.standing(item).state is State.DONE


@pytest.mark.timeout(600)
def test_two_are_trained_side_by_side_and_the_call_is_recorded(tmp_path):
    text = rows("none", ROW) + '[[run]]\ncommand = "no-such-command"\nrecord = "no/such.json"\n'
    words = ("--tiny", "--output", tmp_path, "--order", order_in(tmp_path, text), "--device", "cpu")
    result = reproduce("--next", *words, "--side-by-side", 2, "--minutes", 8, "--carry", tmp_path / "carried")
    assert result.exit_code == 1, result.output
    assert "no-such-command failed with status 2" in result.output and "No such command" in result.output
    assert "2 done, 1 failed" in result.output
    assert {path.name for path in (tmp_path / TABLE).glob("*.json")} == {"none-seed0.json", f"{ROW}-seed0.json"}
    (path,) = (tmp_path / "queue").glob("*.json")
    record = Record.load(path)
    assert (record.results["done"], record.results["failed"]) == (2, 1) and record.results["rows"] > 0
    assert record.results["bare_samples_per_second"] > 0, "which was measured first"
    assert record.settings["fixed"] and len(record.settings["done"]) == 2
    begun = [text for text in result.output.splitlines() if text.endswith("begins")]
    ended = result.output.index("is done")
    assert result.output.index(begun[1]) < ended, "the second was begun before the first was done"
    with tarfile.open(tmp_path / "carried" / "records.tar.gz") as archive:
        assert len(archive.getnames()) == 3, "both rows, and the call itself"


# -- what is carried -------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(recorded, tmp_path):
    """A place with an unfinished run."""
    shutil.copytree(recorded / "runs" / TABLE / f"{ROW}-seed0", tmp_path / "here" / "runs" / TABLE / f"{ROW}-seed0")
    return place_in(tmp_path / "here")


def run_in(place):
    return RunFolder(place.runs / TABLE / f"{ROW}-seed0")


def test_a_run_that_is_larger_than_a_file_may_be_is_cut_into_several(begun, tmp_path):
    limits = Limits(size=40_000)
    files = Carrier(tmp_path / "carried", begun, limits).pack()
    assert 1 < len(files) <= 8 and all(path.stat().st_size <= 40_000 for path in files)
    assert all(path.name.replace("-", "").replace(".", "").isalnum() for path in files), "names that travel anywhere"
    there = place_in(tmp_path / "there")
    Carrier(tmp_path / "carried", there, limits).unpack()
    states = [latest(run_in(place).states) for place in (begun, there)]
    assert [path.read_bytes() for path in sorted(states[0].rglob("*")) if path.is_file()] == [
        path.read_bytes() for path in sorted(states[1].rglob("*")) if path.is_file()
    ]
    assert said(run_in(begun)) == said(run_in(there))
    files[0].unlink()
    empty = place_in(tmp_path / "empty")
    Carrier(tmp_path / "carried", empty, limits).unpack()
    assert not run_in(empty).exists, "a piece is missing"


def test_a_run_that_has_no_room_is_left_out_with_a_note(begun, tmp_path):
    carrier = Carrier(tmp_path / "carried", begun, Limits(size=1_000))
    assert carrier.pack() == [] and f"{ROW}-seed0 is not packed: it is too large" in carrier.notes[0]
    assert list((tmp_path / "carried").iterdir()) == []


def test_what_is_on_the_disk_and_as_far_stays_and_what_is_done_is_not_begun_again(begun, tmp_path, recorded):
    Carrier(tmp_path / "carried", begun).pack()
    run = run_in(begun)
    (run.path / "mark").touch()
    shutil.rmtree(run.states / latest(run.states).name)  # the last state is lost, and there is none before it
    assert not saved_step(run)
    Carrier(tmp_path / "carried", begun).unpack()
    assert saved_step(run) == 15, "what was carried is further"
    log = run.log_path.read_bytes()
    run.log_path.write_bytes(log + b"\n")
    carrier = Carrier(tmp_path / "carried", begun)
    carrier.unpack()
    assert run.log_path.read_bytes() != log, "it is as far, and was left alone"
    finished = place_in(tmp_path / "finished")
    (finished.results / TABLE).mkdir()
    shutil.copy(recorded / TABLE / "none-seed0.json", finished.results / TABLE / f"{ROW}-seed0.json")
    carrier = Carrier(tmp_path / "carried", finished)
    carrier.unpack()
    assert not run_in(finished).exists
    carrier.pack()
    assert not list((tmp_path / "carried").glob("run-*")), "nobody will go on with it"


def test_records_are_handed_on_until_somebody_has_them(begun, tmp_path, recorded):
    carried = tmp_path / "carried"
    carrier = Carrier(carried, begun)
    carrier.unpack()
    (begun.results / TABLE).mkdir()
    shutil.copy(recorded / TABLE / "none-seed0.json", begun.results / TABLE)
    carrier.pack()
    there = place_in(tmp_path / "there")
    for _ in range(2):  # as on two machines, one after the other
        shutil.rmtree(there.results / TABLE, ignore_errors=True)
        carrier = Carrier(carried, there)
        carrier.unpack()
        assert (there.results / TABLE / "none-seed0.json").exists()
        carrier.pack()
        assert (carried / "records.tar.gz").exists()
    carrier = Carrier(carried, there)
    carrier.unpack()
    carrier.pack()
    assert not (carried / "records.tar.gz").exists(), "they were there before"


def hostile(folder, *members, name="run-00000000.1-of-1.tar.gz"):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / name, "w:gz") as archive:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return folder / name


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        "/tmp/recipe.json",
        "../recipe.json",
        "a/../../recipe.json",
        "a/b/state.pt",
        "a/b/run.py",
        "a/b c/recipe.json",
        link("a/b/recipe.json", "/etc/passwd"),
    ],
    ids=lambda member: getattr(member, "name", member),
)
def test_files_that_a_run_would_not_have_are_refused(member, tmp_path):
    path = hostile(tmp_path / "carried", (member, b""))
    place = place_in(tmp_path / "here")
    carrier = Carrier(tmp_path / "carried", place)
    carrier.unpack()
    assert "which is no file of a run and no record" in carrier.notes[0]
    assert {each.name for each in place.runs.iterdir()} == {"made-up-texts"} and path.exists()
    carrier.pack()
    assert path.exists(), "what could not be read is nobody's to delete"


def test_more_than_a_run_would_have_is_refused(tmp_path):
    limits = Limits(unpacked=100_000, members=3)
    carried = tmp_path / "carried"
    hostile(carried, ("a/b/log.jsonl", bytes(200_000)), name="run-00000001.1-of-1.tar.gz")
    hostile(carried, *((f"a/b/{k}.json", b"{}") for k in range(4)), name="run-00000002.1-of-1.tar.gz")
    (carried / "run-00000003.1-of-1.tar.gz").write_bytes(gzip.compress(bytes(10_000_000))[:-20])
    (carried / "records.tar.gz").write_bytes(b"no archive")
    hostile(carried, ("a/b/recipe.json", b"{}"), name="run-00000004.1-of-1.tar.gz")
    carrier = Carrier(carried, place_in(tmp_path / "here"), limits)
    carrier.unpack()
    assert len(carrier.notes) == 5 and all("is left where it is" in note for note in carrier.notes)
