"""Every public name of torchgpipe is found at the same path under thinpipe.torchgpipe, and takes the same arguments."""

import importlib
import inspect

import pytest

import thinpipe
import thinpipe.torchgpipe as torchgpipe

PUBLIC = [
    ("", "GPipe"),
    ("", "is_checkpointing"),
    ("", "is_recomputing"),
    (".gpipe", "GPipe"),
    (".checkpoint", "is_checkpointing"),
    (".checkpoint", "is_recomputing"),
    (".batchnorm", "DeferredBatchNorm"),
    (".balance", "balance_by_time"),
    (".balance", "balance_by_size"),
    (".skip", "skippable"),
    (".skip", "stash"),
    (".skip", "pop"),
    (".skip", "verify_skippables"),
    (".skip", "Namespace"),
    (".skip.namespace", "Namespace"),
    (".skip.skippable", "skippable"),
    (".skip.skippable", "stash"),
    (".skip.skippable", "pop"),
    (".skip.skippable", "verify_skippables"),
]


def public(package, path, name):
    return getattr(importlib.import_module(package + path), name)


@pytest.mark.parametrize(("path", "name"), PUBLIC)
def test_a_public_name_is_at_its_old_path_and_is_ours(path, name):
    assert public("thinpipe.torchgpipe", path, name).__module__.startswith("thinpipe.")


@pytest.mark.parametrize(("path", "name"), PUBLIC)
def test_a_public_name_takes_the_arguments_it_took_in_torchgpipe(path, name):
    pytest.importorskip("torchgpipe")
    ours = inspect.signature(public("thinpipe.torchgpipe", path, name)).parameters
    theirs = inspect.signature(public("torchgpipe", path, name)).parameters
    assert [(p.name, p.kind) for p in ours.values()][: len(theirs)] == [(p.name, p.kind) for p in theirs.values()]
    for p in list(ours.values())[len(theirs) :]:
        assert p.default is not inspect.Parameter.empty


def test_all_that_torchgpipe_exports_is_exported_here():
    theirs = pytest.importorskip("torchgpipe")
    for path in ["", ".balance", ".skip", ".batchnorm", ".checkpoint", ".gpipe"]:
        here = importlib.import_module("thinpipe.torchgpipe" + path)
        there = importlib.import_module("torchgpipe" + path)
        assert set(there.__all__) <= set(here.__all__)
    assert isinstance(theirs.__version__, str) and torchgpipe.__version__ == thinpipe.__version__


def test_the_names_are_those_of_the_library_and_no_second_implementation():
    from thinpipe.torchgpipe.skip import skippable

    assert issubclass(torchgpipe.GPipe, thinpipe.Pipe)
    assert torchgpipe.is_recomputing is thinpipe.is_recomputing
    assert skippable is thinpipe.skip.skippable
