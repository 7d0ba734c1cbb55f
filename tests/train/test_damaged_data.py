"""Samples that are damaged or missing: told everywhere, and refused where a result would mean something else."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.data.locate import DamagedDataError
from thinpipe.train import data
from train.small import paint, small, write_glue

QUICK = ["--set", "pixels=32", "--set", "weights=none", "--set", "batch=8", "--set", "precision=float32"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Two classes with four images to train on and four to test with."""
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'thinpipe[data]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = np.random.default_rng(0)
    for part in ("train", "test"):
        for label, name in enumerate(("left", "right")):
            paint(tmp_path / "own" / part / name, 4, label, source, "png")
    return tmp_path / "own"


def damage(own):
    for name in ("train/left/1.png", "train/right/2.png"):
        (own / name).write_bytes(b"not an image")


def train(own, *words):
    command = ["train", "imagefolder", "--data-dir", own, *QUICK, "--epochs", 1, *words]
    return CliRunner().invoke(app, list(map(str, command)))


def test_a_training_on_a_part_of_its_images_is_refused(own, tmp_path):
    damage(own)
    result = train(own, "--run", tmp_path / "run")
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "2 of 8 images to train on cannot be read" in result.output and "left/1.png" in result.output
    assert "25.0%" in result.output and "--set max_damaged=0.25" in result.output
    assert not (tmp_path / "run").exists()


def test_images_that_may_be_damaged_are_told_in_terminal_log_and_report(own, tmp_path):
    damage(own)
    allowed = ["--set", "max_damaged=0.25"]
    told = "2 of 8 images to train on cannot be read"
    planned = train(own, *allowed, "--dry-run")
    assert planned.exit_code == 0 and f"warning: {told}" in planned.output
    result = train(own, *allowed, "--run", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert f"warning: {told}" in result.output
    result = train(own, "--epochs", 2, "--run", tmp_path / "run", "--resume")  # from the cache, and told again
    assert result.exit_code == 0, result.output
    assert f"warning: {told}" in result.output
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    notes = [line["text"] for line in lines if line["kind"] == "note"]
    assert len(notes) == 1 and told in notes[0] and "left/1.png" in notes[0] and lines[0]["kind"] == "note"
    assert [line["epoch"] for line in lines if line["kind"] == "evaluation"] == [1, 2]
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert told in shown.output and told in (tmp_path / "run" / "report.html").read_text()
    assert told in CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--markdown"]).output


def emptied(own, name):
    for file in (own / name).iterdir():
        file.unlink()


def test_a_class_that_is_tested_and_not_trained_on_is_refused_unless_it_is_allowed(own):
    emptied(own, "train/right")
    recipe = small("imagefolder", data_dir=str(own), limit=0)
    with pytest.raises(DamagedDataError) as refused:
        data(recipe)
    assert "1 of 2 classes have samples to test with and none to train on: right" in str(refused.value)
    assert "--set untrained_classes=allow" in str(refused.value)
    (note,) = data(recipe.changed({"untrained_classes": "allow"})).notes
    assert "none to train on: right" in note
    assert "none to train on: right" in data(recipe.changed({"limit": 10})).notes[0]


def test_a_class_whose_images_are_all_damaged_is_one_without_images(own):
    for file in (own / "train/right").iterdir():
        file.write_bytes(b"?")
    with pytest.raises(DamagedDataError, match="none to train on: right"):
        data(small("imagefolder", data_dir=str(own), limit=0, max_damaged=0.5))


def test_a_class_that_is_trained_and_not_tested_is_told(own):
    emptied(own, "test/left")
    (own / "train" / "nothing").mkdir()
    notes = data(small("imagefolder", data_dir=str(own), limit=0)).notes
    assert any("train on and none to test with: left" in note for note in notes)
    assert any("1 of 3 classes have no samples: nothing" in note for note in notes)


def test_more_classes_than_the_model_is_told_of_are_refused(own):
    with pytest.raises(ValueError, match="the images have 2 classes, and the model is told of 1"):
        data(small("imagefolder", data_dir=str(own), classes=1))


def test_texts_of_one_class_alone_are_refused(tmp_path):
    write_glue(tmp_path / "glue")
    path = tmp_path / "glue" / "RTE" / "train.tsv"
    path.write_text(path.read_text().replace("not_entailment", "entailment"))
    with pytest.raises(DamagedDataError, match="none to train on: not_entailment"):
        data(small("rte", data_dir=str(tmp_path), limit=0))


def test_a_set_that_is_not_as_published_is_told(files):
    assert any("are not food101 as it is published" in note for note in data(small("food101-finetune", limit=0)).notes)
    assert any("8,551" in note for note in data(small("cola", limit=0)).notes)
