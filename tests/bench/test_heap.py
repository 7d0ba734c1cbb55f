"""``thinpipe bench heap``: both processes take turns, and what they say is recorded."""

import json
import os
import platform

import pytest
from typer.testing import CliRunner

from thinpipe.bench.record import Record
from thinpipe.cli import app
from thinpipe.runtime.heap import ALLOCATOR

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")


def test_memory_kept_and_given_back_are_timed_in_turns(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(ALLOCATOR):
            monkeypatch.delenv(name)
    words = ["bench", "heap", "--tiny", "--rounds", "2", "--json", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    run = json.loads(result.output.strip().splitlines()[-1])
    assert [row["row"] for row in run["rows"]] == ["batch-2", "batch-2-had4"]
    for row in run["rows"]:
        assert {len(row["samples"][name]) for name in ("kept", "returned")} == {2}
        assert row["speedup"] > 0 and min(row["kept_peak_mib"], row["returned_peak_mib"]) > 100
        assert Record.load(tmp_path / "heap" / f"{row['row']}.json").results["speedup"] == row["speedup"]


def test_a_process_that_cannot_keep_its_memory_is_no_silent_hang(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "65536")
    result = CliRunner().invoke(app, ["bench", "heap", "--tiny", "--rounds", "1"])
    assert result.exit_code != 0 and "chose an allocator" in " ".join(result.output.split())
