"""What a record says of how it was made: a command that anybody can type, and the code that was run."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from thinpipe.bench.options import kept
from thinpipe.bench.page import runs_of
from thinpipe.bench.record import Machine, Record, typed, without_folders


def record(**given):
    return Record("bench", {"seconds": 1.0}, {}, {}, Machine("CPU", 2, [], "3.12", {"torch": "2"}), "row", **given)


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        ("reproduce cola --data-dir /tmp/data --output /tmp/r", "reproduce cola --data-dir DATA --output OUTPUT"),
        ("train cola --data-dir=/data --set model=/tmp/roberta", "train cola --data-dir=DATA --set model=MODEL"),
        ("bench codecs --tensors /here/captured --output results", "bench codecs --tensors captured --output results"),
        ("probe /elsewhere/own.py", "probe own.py"),
        ("train cola --codec topk:0.1|uniform:8/none", "train cola --codec topk:0.1|uniform:8/none"),
    ],
)
def test_a_command_is_written_as_a_reader_can_type_it(ran, told):
    assert shlex.split(typed(["thinpipe", *ran.split()], here=Path("/here"))) == ["thinpipe", *told.split()]


def test_a_record_names_no_folder_of_its_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "sys.argv", ["thinpipe", "bench", "train", "--data-dir", str(tmp_path), "--set", f"model={tmp_path}"]
    )
    saved = record().save(tmp_path)
    assert Record.load(saved).command == "thinpipe bench train --data-dir DATA --set model=MODEL"
    assert str(tmp_path) not in saved.read_text()


def test_settings_name_an_encoder_without_the_folder_that_it_lies_in():
    settings = {"model": "/home/alice/roberta", "weights": "none", "batch": 32}
    assert without_folders(settings) == {"model": "roberta", "weights": "none", "batch": 32}


def test_a_page_says_that_a_record_was_made_from_changed_files():
    clean, dirty, unknown = (record(commit=commit) for commit in ("abc", "abc+", None))
    assert [run.partition(", on ")[0].partition("` ")[2] for run in runs_of([clean, dirty, unknown])] == [
        "at abc",
        "at abc with changes that no commit has",
        "at a commit that the record does not name",
    ]


def test_whoever_records_from_changed_files_is_told(tmp_path, capsys):
    kept(record(commit="abc"), output=tmp_path, tiny=False)
    assert capsys.readouterr().err == ""
    kept(replace(record(), commit="abc+"), output=tmp_path, tiny=False)
    assert "changes that no commit has; commit them and measure again" in " ".join(capsys.readouterr().err.split())
    kept(replace(record(), commit="abc+"), output=None, tiny=True)  # which is not recorded
    assert capsys.readouterr().err == ""


def test_a_record_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = record(commit="abc").save(tmp_path)
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("thinpipe.checkpoint.disk.flush", full)
    with pytest.raises(OSError, match="No space left"):
        record(commit="def").save(tmp_path)
    assert path.read_text() == before and [each.name for each in path.parent.iterdir()] == ["row.json"]
