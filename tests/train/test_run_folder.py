"""A run's folder: each step is logged once, whatever happened in between."""

import pytest

from thinpipe.train import RecipeError, resolved
from thinpipe.train.log import EvaluationLine, Origin, RunError, RunFolder, StepLine
from thinpipe.train.settings import Settings


def step(number, loss=1.0):
    return StepLine(step=number, epoch=number // 4, rows=8, loss=loss, seconds=0.1)


def evaluation(after):
    return EvaluationLine(step=after, epoch=after // 4, rows=20, loss=1.0, accuracy=0.5, seconds=0.1)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.begin(Origin.now(resolved("digits"), Settings(connect="host:1", codec="had:4")))
    return made


def filled(folder, count):
    log = folder.log(0)
    for number in range(count):
        log.add(step(number))
        if number % 4 == 3:
            log.add(evaluation(number + 1))
    return log


def numbers(folder):
    return [(type(line).__name__[0], line.step) for line in folder.lines()]


def test_what_a_run_was_made_from_is_read_again(folder):
    origin = folder.origin()
    assert origin.recipe == resolved("digits") and origin.settings == Settings(connect="host:1", codec="had:4")
    assert origin.versions["thinpipe"] and origin.command.startswith("thinpipe")


def test_a_resumed_log_drops_the_steps_that_are_taken_again(folder):
    filled(folder, 7)
    log = folder.log(4)
    assert numbers(folder) == [("S", 0), ("S", 1), ("S", 2), ("S", 3), ("E", 4)]
    assert log.evaluated  # the epoch is not tested twice
    log.add(step(4, 2.0))
    assert not log.evaluated and numbers(folder)[-1] == ("S", 4)


def test_a_run_that_its_server_took_back_says_nothing_twice(folder):
    log = filled(folder, 7)
    log.rewind(7)
    assert len(numbers(folder)) == 8
    log.rewind(3)
    assert numbers(folder) == [("S", 0), ("S", 1), ("S", 2)]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_short_is_dropped(folder, cut):
    filled(folder, 3)
    path = folder.path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert numbers(folder) == [("S", 0), ("S", 1)]
    folder.log(2).add(step(2))
    assert numbers(folder) == [("S", 0), ("S", 1), ("S", 2)]


def test_a_line_that_is_damaged_in_the_middle_is_named(folder):
    filled(folder, 3)
    path = folder.path / "log.jsonl"
    path.write_text(path.read_text().replace('"step": 1', '"stop": 1'))
    with pytest.raises(RunError, match=r"line 2 of .* is damaged"):
        list(folder.lines())


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(RunError, match="has no run"):
        RunFolder(tmp_path).origin()
    with pytest.raises(RunError, match="--run DIR"):
        RunFolder.newest("digits", tmp_path)


def test_runs_of_one_second_have_folders_of_their_own(tmp_path):
    first = RunFolder.fresh("digits", tmp_path)
    first.begin(Origin.now(resolved("digits"), Settings()))
    second = RunFolder.fresh("digits", tmp_path)
    assert first.path != second.path
    assert RunFolder.newest("digits", tmp_path).path == first.path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"codec": "had:4"}, "--codec concerns the network"),
        ({"bandwidth": "1mbit"}, "--bandwidth concerns the network"),
        ({"connect": "a:1", "key": "a.key"}, "--key and --server belong together"),
        ({"connect": "a:1", "bandwidth": "fast"}, "'fast' is not a rate"),
        ({"schedule": "2f2b"}, "no schedule is called '2f2b'"),
        ({"replicas": 2}, "--replicas makes several pipelines .* start it with torchrun"),
        ({"replicas": 2, "ranks": 4, "data_parallel": True}, "leave out --data-parallel"),
        ({"replicas": 3, "ranks": 4}, "3 cannot be made of 4 processes; .* --nproc-per-node 3"),
        ({"replicas": 8, "ranks": 4}, "8 cannot be made of 4 processes; .* --nproc-per-node 8"),
        ({"replicas": 2, "ranks": 4, "map": "0,1,2"}, "names rank 2, and each of 2 replicas has 2 of 4 ranks"),
        ({"device": "cuda:99"}, "there is no device"),
        ({"device": "moon"}, "there is no device"),
    ],
)
def test_settings_that_make_no_sense_are_explained(words, said):
    with pytest.raises(RecipeError, match=said):
        Settings(**words).verify()
