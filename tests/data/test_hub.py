"""Hugging Face's data sets, as far as they can be had without a network."""

import sys
from types import SimpleNamespace

import pytest

from thinpipe.data.hub import load_hub_images, load_hub_texts
from thinpipe.data.locate import DamagedDataError, DataError


class Rows:
    """What ``datasets`` returns, as far as it is used: columns by name, rows in a loop."""

    def __init__(self, columns, names=None):
        self._columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace(names=names) if name == "label" else None for name in columns}

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(self._columns["label"])

    def __iter__(self):
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))


def serve(monkeypatch, give):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=give))


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets"):
        load_hub_texts("nyu-mll/glue", "cola", first="sentence")


@pytest.mark.parametrize("trouble", [ConnectionError("no route"), FileNotFoundError("none"), ValueError("bad split")])
def test_what_the_hub_does_not_give_is_said_with_its_name(monkeypatch, trouble):
    def give(*args, **options):
        raise trouble

    serve(monkeypatch, give)
    with pytest.raises(DataError, match=rf"nyu-mll/glue cola train \({trouble}\).*--data-dir"):
        load_hub_texts("nyu-mll/glue", "cola", first="sentence")


def test_texts_have_the_shapes_of_all_others(monkeypatch):
    def give(repository, config, *, split):
        assert (repository, config) == ("nyu-mll/glue", "rte")
        columns = {"sentence1": ["a", split], "sentence2": ["c", "d"], "label": [0, 1]}
        return Rows(columns, ["entailment", "not_entailment"])

    serve(monkeypatch, give)
    data = load_hub_texts("nyu-mll/glue", "rte", first="sentence1", second="sentence2")
    assert data.train.first == ["a", "train"] and data.test.first == ["a", "validation"]
    assert data.train.second == ["c", "d"] and data.train.labels.tolist() == [0, 1]
    assert data.classes == ("entailment", "not_entailment")


def test_columns_and_labels_that_are_not_there_are_named(monkeypatch):
    serve(monkeypatch, lambda *_, **__: Rows({"text": ["a"], "label": [-1]}))
    with pytest.raises(DamagedDataError, match="no column sentence; it has text, label"):
        load_hub_texts("some/texts", first="sentence")
    with pytest.raises(DamagedDataError, match="a class is a number from 0, got -1"):
        load_hub_texts("some/texts", first="text")


def test_a_row_without_a_text_or_with_a_class_that_has_no_name_is_refused(monkeypatch):
    serve(monkeypatch, lambda *_, **__: Rows({"text": ["a", None], "label": [0, 1]}))
    with pytest.raises(DamagedDataError, match="row 1 of train has no text in the column text"):
        load_hub_texts("some/texts", first="text")
    serve(monkeypatch, lambda *_, **__: Rows({"text": ["a", "b"], "label": [0, 2]}, ["no", "yes"]))
    with pytest.raises(DamagedDataError, match="a row has the class 2, and there are 2 with names"):
        load_hub_texts("some/texts", first="text")


def test_an_image_that_cannot_be_read_is_named(monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'thinpipe[data]'")
    photos = [image.new("RGB", (9, 6)), None]
    serve(monkeypatch, lambda *_, **__: Rows({"img": photos, "label": [0, 0]}))
    with pytest.raises(DamagedDataError, match="some/images, row 1 of train: its image cannot be read"):
        load_hub_images("some/images", image="img", decode_pixels=4)


def test_images_become_squares_of_bytes(monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'thinpipe[data]'")
    photos = [image.new("RGB", (9, 6), (1, 2, 3)), image.new("L", (4, 4), 7)]
    serve(monkeypatch, lambda *_, **__: Rows({"img": photos, "label": [2, 0]}))
    data = load_hub_images("uoft-cs/cifar10", image="img", decode_pixels=4)
    assert data.train_images.shape == (2, 3, 4, 4) and data.train_images[:, :, 0, 0].tolist() == [[1, 2, 3], [7, 7, 7]]
    assert data.test_labels.tolist() == [2, 0] and data.classes == ("0", "1", "2")


def test_the_real_package_reads_a_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("sentence,label\na cat,1\nb dog,0\n")
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "dev.csv")}
    data = load_hub_texts("csv", first="sentence", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert list(data.train.first) == ["a cat", "b dog"] and data.test.labels.tolist() == [1, 0]
    assert data.classes == ("0", "1")
