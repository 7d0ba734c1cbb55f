"""Data sets are found where the user said, and a missing one's error is a recipe for getting it."""

from pathlib import Path

import pytest

from thinpipe.data.locate import SOURCES, DataError, cache_folder, find, places
from thinpipe.errors import ThinpipeError


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch, tmp_path):
    monkeypatch.delenv("THINPIPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(place, name="cifar-10-batches-bin/data_batch_1.bin"):
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path.parent


def test_a_named_folder_is_the_only_one(tmp_path, monkeypatch):
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path / "other"))
    put(tmp_path / "other")
    assert places(tmp_path / "mine") == (tmp_path / "mine",)
    with pytest.raises(DataError):
        find("cifar10", tmp_path / "mine")
    mine = put(tmp_path / "mine")
    assert find("cifar10", tmp_path / "mine") == mine


def test_the_variable_comes_before_the_cache(tmp_path, monkeypatch):
    cached = put(cache_folder() / "data")
    assert find("cifar10") == cached
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path / "named"))
    assert find("cifar10") == cached
    named = put(tmp_path / "named")
    assert find("cifar10") == named


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache" / "thinpipe"
    for not_absolute in ("", "here"):
        monkeypatch.setenv("XDG_CACHE_HOME", not_absolute)
        assert cache_folder() == Path.home() / ".cache" / "thinpipe"


def test_the_data_sets_own_folder_is_an_answer_too(tmp_path):
    folder = put(tmp_path)
    assert find("cifar10", folder) == folder
    glue = put(tmp_path, "glue/RTE/train.tsv")
    assert find("rte", glue) == find("rte", tmp_path) == find("rte", tmp_path / "glue") == glue


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_data_set_says_what_to_put_where(name, tmp_path, monkeypatch):
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as caught:
        find(name)
    text, source = str(caught.value), SOURCES[name]
    assert isinstance(caught.value, ThinpipeError) and isinstance(caught.value, FileNotFoundError)
    assert str(tmp_path / "named" / source.layouts[0].folder) in text.splitlines()[1]
    assert source.layouts[0].holds in text and source.page in text and source.download in text
    for place in places():
        for layout in source.layouts:
            assert str(place / layout.folder / layout.sign) in text
    assert "THINPIPE_DATA" in text and "--data-dir" in text


def test_pickles_are_named_and_not_read(tmp_path):
    put(tmp_path, "cifar-10-batches-py/data_batch_1")
    with pytest.raises(DataError, match=r"cifar-10-batches-py is there and is not used: .* pickles"):
        find("cifar10", tmp_path)


def test_an_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(DataError, match="did you mean cifar100"):
        find("cifar-100", tmp_path)
    with pytest.raises(DataError, match="there are cifar10"):
        find("x", tmp_path)
