"""One rank of four comes to grief; every other one ends, soon, with an error that names it. With real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

RANKS = 4
TIMEOUT = 3.0
AT_ONCE = 8
"""Stories that run beside each other; their ranks mostly wait."""

LEAVE, EXIT, HANG = 3.0, 15.0, 40.0
"""Seconds that a pipeline needs to end, and an interpreter with all of PyTorch, of which thirty may end at a time; and
those after which a rank is said to hang."""

CABLE = (
    "link add {1} type veth peer name inner netns {0}",
    "addr add 10.213.7.1/24 dev {1}",
    "link set {1} up",
    "-n {0} addr add 10.213.7.2/24 dev inner",
    "-n {0} link set inner up",
    "-n {0} link set lo up",
)

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb")


@dataclass(frozen=True)
class Story:
    """What one rank does while the others train; see ``fault_ranks.py``."""

    story: str
    culprit: int
    schedule: str = "1f1b"
    event: str = ""
    backward: bool = False
    patience: float = 60.0
    replicas: int = 1

    def __str__(self):
        direction = " backward" if self.backward else ""
        mesh = f" of {self.replicas} replicas" if self.replicas > 1 else ""
        return f"{self.story} {self.event}{direction} {self.schedule} rank {self.culprit}{mesh}".replace("  ", " ")


@dataclass
class Ending:
    """How a rank ended.

    Its exit code, its last words, and the seconds from the fault to its error, until nothing of its pipeline was left,
    and to its exit.
    """

    code: int
    error: str
    logged: str
    noticed: float
    left: float
    exited: float


class Nursery:
    """The process that all ranks are forked from."""

    def __init__(self, folder):
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "fault_ranks.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._changed = threading.Condition()
        self._pids, self._ended = {}, {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._pids, 60), (
                "the process that ranks are forked from did not start"
            )

    def _listen(self):
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "started" in message:
                    self._pids[message["started"]] = message["pid"]
                else:
                    self._ended[message["ended"]] = message
                self._changed.notify_all()

    def start(self, job):
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()

    def kill(self, name, number):
        with self._changed:
            self._changed.wait_for(lambda: name in self._pids, 10)
            if name not in self._ended:
                os.kill(self._pids[name], number)

    def ended(self, name, seconds):
        """Waits for a rank to end, and says how; None if it does not."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._ended, seconds)
            return self._ended.get(name)

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._listener.join(10)
        self._process.stdout.close()


def play(nursery, story):
    """Lets a story happen, and tells how each rank ended; a rank that hangs is killed and has no ending."""
    folder = nursery.folder / str(story).replace(" ", "-")
    folder.mkdir()
    ranks = begin(nursery, story, folder)
    return end(nursery, story, folder, ranks)


def begin(nursery, story, folder, places=None):
    """Starts the ranks of a story; ``places`` are the network namespaces and interfaces of those that have some."""
    ranks = [f"{folder.name}.{rank}" for rank in range(RANKS)]
    for rank, name in enumerate(ranks):
        place = {} if places is None else dict(zip(("namespace", "interface"), places[rank], strict=True))
        job = {"rank": rank, "id": name, "folder": str(folder), "timeout": TIMEOUT}
        nursery.start({**vars(story), **job, **place})
    return ranks


def end(nursery, story, folder, ranks):
    """Waits for all ranks of a story; the one to blame comes last, and is continued then if it was stopped."""
    until = time.monotonic() + HANG
    endings = {}
    for rank in sorted(range(RANKS), key=lambda rank: rank == story.culprit):
        if rank == story.culprit and story.event == "stopped":
            (folder / "continued").write_text(str(time.time()))
            nursery.kill(ranks[rank], signal.SIGCONT)
            until = time.monotonic() + HANG
        ended = nursery.ended(ranks[rank], max(0.0, until - time.monotonic()))
        if ended is None:
            nursery.kill(ranks[rank], signal.SIGUSR1)  # leaves the stacks of its threads beside what it logged
            time.sleep(0.3)
            nursery.kill(ranks[rank], signal.SIGKILL)
        endings[rank] = ended and _ending(folder, rank, ended, story)
    return endings


def _ending(folder, rank, ended, story):
    happened = _time(folder, "continued" if (story.event, story.culprit) == ("stopped", rank) else "happened")
    logged = (folder / f"{rank}.err").read_text().replace(f"[rank{rank}]: ", "")  # which torch puts before errors
    errors = [line for line in logged.splitlines() if line.startswith("thinpipe.errors.")]
    return Ending(
        ended["code"],
        errors[-1] if errors else "",
        logged,
        _time(folder, f"{rank}.ended") - happened,
        _time(folder, f"{rank}.left") - happened,
        ended["at"] - happened,
    )


def _time(folder, what):
    path = folder / what
    return float(path.read_text()) if path.exists() else float("nan")


def _ip(command):
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def _faults():
    """Every kind of fault in the middle of a step, for every schedule, each time of another rank."""
    kinds = (("killed", False), ("stopped", False), ("raises", False), ("raises", True))
    for a, schedule in enumerate(SCHEDULES):
        for b, (event, backward) in enumerate(kinds):
            culprit = (0, 2, 3, 1)[(a + b) % RANKS]
            yield Story("in_a_step", culprit, schedule, event, backward)
    for culprit, (event, backward) in zip((3, 0, 2, 1), kinds, strict=True):
        yield Story("in_a_step", culprit, "1f1b", event, backward, replicas=2)


FAULTS = list(_faults())
OTHERS = {
    "never steps": Story("never_steps", 2, patience=TIMEOUT),
    "first rank never steps": Story("never_steps", 0, patience=TIMEOUT),
    "never steps in a mesh": Story("never_steps", 1, patience=TIMEOUT, replicas=2),
    "interrupted": Story("in_a_step", 2, event="interrupted"),
    "exits": Story("in_a_step", 1, event="exits"),
    "raises between steps": Story("between_steps", 3, event="raises"),
    "raises in a context": Story("between_steps_of_a_context", 1, event="raises"),
    "killed between steps": Story("between_steps", 0, event="killed"),
    "dies before the start": Story("dies_before_the_start", 2),
    "closes early": Story("closes_early", 0),
    "closes early in a mesh": Story("closes_early", 2, replicas=2),
    "last closes early": Story("closes_early", 3),
    "ends late": Story("ends_late", 1),
    "stops before its trace": Story("stops_before_its_trace", 2, event="stopped"),
    "forgets to close": Story("forgets_to_close", 2),
    "one after the other": Story("one_after_the_other", 0),
    "one mesh after the other": Story("one_after_the_other", 3, replicas=2),
    "computes": Story("in_a_step", 2, event="computes"),
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    made = Nursery(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def played(request, nursery):
    """Plays the stories of the tests that were asked for, several at a time."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    asked = {item.callspec.params["story"] for item in here if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        stories = [story for story in (*FAULTS, *OTHERS.values()) if story in asked]
        futures = {story: pool.submit(play, nursery, story) for story in stories}
        yield lambda story: futures[story].result()
        for future in futures.values():
            future.cancel()


@pytest.fixture
def cable():
    """Joins a network namespace to this one by a cable that can be pulled."""
    name, commands = f"thinpipe{os.getpid()}", ("netns add {0}", *CABLE)
    try:
        for command in commands:
            _ip(command.format(name, f"tp{os.getpid()}"))
        yield name, f"tp{os.getpid()}"
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def tell(*names):
    return pytest.mark.parametrize("story", [OTHERS[name] for name in names], ids=names)


def others(story, endings):
    """Lists the ranks that are not to blame, after making sure that all ended."""
    assert all(endings.values()), f"ranks that did not end: {[rank for rank, each in endings.items() if each is None]}"
    return {rank: ending for rank, ending in endings.items() if rank != story.culprit}


@pytest.mark.parametrize("story", FAULTS, ids=str)
def test_a_fault_of_one_rank_in_a_step_ends_all_others_with_an_error_that_names_it(played, story):
    kind = {"killed": "PeerLost", "stopped": "StallError", "raises": "PeerError"}[story.event]
    letter = "F" if not story.backward else "I" if story.schedule == "zb" else "B"
    stage = story.culprit % (RANKS // story.replicas)
    for rank, ending in others(story, played(story)).items():
        assert ending.error.startswith(f"thinpipe.errors.{kind}: rank {story.culprit} "), ending.logged
        assert re.search(rf" at {letter}{stage}\.1 of step 1\b", ending.error)
        assert re.search(rf"; this rank, {rank}, was at .*, waiting for .* from rank \d$", ending.error)
        assert ending.code == 1
        assert ending.noticed < (TIMEOUT if story.event == "stopped" else 0) + 2
        assert ending.left < ending.noticed + LEAVE
        assert ending.exited < ending.left + EXIT


@pytest.mark.parametrize("story", [story for story in FAULTS if story.event == "raises"], ids=str)
def test_a_rank_that_raises_ends_with_its_own_error(played, story):
    ending = played(story)[story.culprit]
    assert ending.code == 1
    assert "\nValueError: a layer of the test does not like this micro-batch\n" in ending.logged


@pytest.mark.parametrize("story", [story for story in FAULTS if story.event == "stopped"], ids=str)
def test_a_stopped_rank_that_is_continued_ends_too(played, story):
    ending = played(story)[story.culprit]
    assert ending.code == 1
    assert re.match(r"thinpipe.errors.(PeerLost|StallError): ", ending.error)
    assert "stood still" in ending.error or "gave this one up" in ending.error
    assert ending.noticed < 2


@tell("never steps", "first rank never steps", "never steps in a mesh")
def test_a_rank_that_never_steps_is_given_up_when_patience_ends(played, story):
    endings = played(story)
    for rank, ending in others(story, endings).items():
        assert ending.error.startswith(f"thinpipe.errors.StallError: rank {story.culprit} is alive, but "), (
            ending.logged
        )
        assert "at the end of step 0" in ending.error
        assert f"this rank, {rank}, was at " in ending.error
        assert story.patience - 1 < ending.noticed < story.patience + 2
        assert ending.code == 1
    assert "StallError: the other ranks gave this one up" in endings[story.culprit].error


@tell("interrupted")
def test_an_interrupt_of_one_rank_reaches_all(played, story):
    endings = played(story)
    for ending in others(story, endings).values():
        assert re.match(r"thinpipe.errors.PeerError: rank 2 failed at F2.1 of step 1: KeyboardInterrupt", ending.error)
        assert (ending.code, ending.noticed < 2) == (1, True)
    assert endings[2].code == -signal.SIGINT
    assert "\nKeyboardInterrupt\n" in endings[2].logged


@tell("exits")
def test_a_layer_that_exits_reaches_all(played, story):
    endings = played(story)
    for ending in others(story, endings).values():
        assert re.match(r"thinpipe.errors.PeerError: rank 1 failed at F1.1 of step 1: SystemExit: 7", ending.error)
    assert endings[1].code == 7


@tell("raises in a context")
def test_an_error_between_steps_is_told_by_the_context(played, story):
    endings = played(story)
    for ending in others(story, endings).values():
        assert re.match(r"thinpipe.errors.PeerError: rank 1 failed at the end of step 1: ValueError", ending.error)
        assert (ending.code, ending.noticed < 2) == (1, True)
    assert endings[1].code == 1


@tell("raises between steps", "killed between steps")
def test_a_process_that_ends_between_steps_is_missed(played, story):
    for ending in others(story, played(story)).values():
        assert ending.error.startswith(f"thinpipe.errors.PeerLost: rank {story.culprit} "), ending.logged
        assert "at the end of step 1" in ending.error
        assert (ending.code, ending.noticed < 2) == (1, True)


@tell("closes early", "last closes early", "closes early in a mesh")
def test_a_rank_that_closes_too_early_is_missed(played, story):
    endings = played(story)
    for ending in others(story, endings).values():
        assert f"PeerLost: rank {story.culprit} closed its pipeline after 2 steps" in ending.error, ending.logged
        assert (ending.code, ending.noticed < 2) == (1, True)
    assert (endings[story.culprit].code, endings[story.culprit].logged) == (0, "")


@tell("dies before the start")
def test_a_rank_that_dies_before_the_start_is_not_waited_for(played, story):
    for ending in others(story, played(story)).values():
        assert re.match(r"thinpipe.errors.StallError: .*ranks? 2\b", ending.error), ending.logged
        assert (ending.code, ending.noticed < TIMEOUT + 2) == (1, True)


@tell("stops before its trace")
def test_a_trace_is_not_waited_for_longer_than_its_rank_may_be_silent(played, story):
    endings = played(story)
    for ending in others(story, endings).values():
        assert (ending.code, ending.left < TIMEOUT + LEAVE) == (0, True)
    assert "trace.json was not written" in endings[0].logged
    assert endings[2].code == 0


@tell("ends late", "forgets to close", "one after the other", "one mesh after the other", "computes")
def test_nothing_is_said_where_nothing_is_wrong(played, story):
    for ending in played(story).values():
        assert ending is not None
        errors = [line for line in ending.logged.splitlines() if "does not like" not in line]
        assert ending.code == 0, ending.logged
        if story.story != "one_after_the_other":  # where one of the pipelines fails, on purpose
            assert not errors


def test_a_rank_whose_cable_is_pulled_is_given_up_by_all_and_gives_up_all(nursery, cable):
    story = Story("cut_off", 2)
    namespace, interface = cable
    folder = nursery.folder / "cut_off"
    folder.mkdir()
    places = [(namespace, "inner") if rank == story.culprit else (None, interface) for rank in range(RANKS)]
    ranks = begin(nursery, story, folder, places)
    until = time.monotonic() + 10
    while not (folder / "trains").exists() and time.monotonic() < until:
        time.sleep(0.05)
    (folder / "happened").write_text(str(time.time()))
    _ip(f"link set {interface} down")
    endings = end(nursery, story, folder, ranks)
    for ending in others(story, endings).values():
        assert ending.error.startswith("thinpipe.errors.StallError: rank 2 has been silent for 3 s; "), ending.logged
    assert "rank 2 may be the one that is cut off" in endings[2].error
    for ending in endings.values():
        assert (ending.code, ending.noticed < TIMEOUT + 2) == (1, True)
