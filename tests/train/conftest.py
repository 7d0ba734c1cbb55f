"""The folder of data sets that recipes find in tests."""

import pytest

from train.small import write_files


@pytest.fixture(scope="session")
def _files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    return folder


@pytest.fixture
def files(_files, monkeypatch, tmp_path_factory):
    """A folder with a few rows of everything, which is where recipes look."""
    monkeypatch.setenv("THINPIPE_DATA", str(_files))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return _files
