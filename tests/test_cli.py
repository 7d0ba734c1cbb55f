"""The command line: help that teaches, a demo that compares, a bench whose last line is JSON."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import thinpipe
from thinpipe.bench.measure import in_turns
from thinpipe.cli import app


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_help_lists_every_command():
    result = run("--help")
    assert result.exit_code == 0
    assert all(word in result.output for word in ("demo", "check", "bench"))


@pytest.mark.parametrize("words", [("demo",), ("check",), ("bench",), ("bench", "pipe")], ids=" ".join)
def test_every_command_explains_itself(words):
    result = run(*words, "--help")
    assert result.exit_code == 0 and len(result.output) > 200


def test_the_version_is_that_of_the_package():
    assert run("--version").output.strip() == thinpipe.__version__


def test_the_console_script_is_installed():
    done = subprocess.run([sys.executable, "-m", "thinpipe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == thinpipe.__version__


def test_the_demo_trains_the_same_network_cut_and_uncut_and_shows_what_codecs_send():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    result = run("demo", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "the same network" in result.output and "NOT" not in result.output
    shares = [float(line.split("│")[3].strip(" %")) for line in result.output.splitlines() if "MB" in line]
    assert shares == sorted(shares, reverse=True) and shares[0] == 100.0 and shares[-1] < 5.0


def test_codecs_are_listed_and_their_bytes_computed():
    listed = run("codecs")
    assert all(name in listed.output for name in thinpipe.codecs.CATALOGUE)
    result = run("codecs", "block:4", "sort:8|zstd", "--shape", "32,128,768", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    size = thinpipe.codec("block:4").nbytes([32, 128, 768], torch.bfloat16)
    assert f"{size:,}" in result.output and "at most" in result.output and "6,291,456 bytes" in result.output


@pytest.mark.parametrize(
    "words", [("block:99",), ("block:4", "--shape", "3,x"), ("block:4", "--dtype", "int8")], ids=" ".join
)
def test_codecs_that_cannot_be_computed_are_explained(words):
    result = run("codecs", *words)
    assert result.exit_code == 2
    assert "from 1 to 16" in result.output or "a shape is written as" in result.output


def test_the_bench_ends_with_one_json_object_and_records_it(tmp_path):
    path = tmp_path / "deep" / "record.json"
    result = run("bench", "pipe", "--tiny", "--rounds", "2", "--json", "--output", str(path))
    assert result.exit_code == 0, result.output
    record = json.loads(result.output.splitlines()[-1])
    assert json.loads(path.read_text()) == record
    assert record["overhead_1x1"] > 0 and record["speedup_2"] > 0
    assert record["ideal_speedup_2"] == pytest.approx(16 / 9, abs=1e-4)
    assert len(record["samples"]["bare"]) == 2 and len(record["samples"]["bare small"]) == 10
    assert record["machine"]["versions"]["thinpipe"] == thinpipe.__version__
    assert record["settings"]["devices"] == ["cpu", "cpu"]


def test_the_bench_measures_torchgpipe_where_it_is_installed():
    pytest.importorskip("torchgpipe")
    record = json.loads(run("bench", "pipe", "--tiny", "--rounds", "1", "--json").output.splitlines()[-1])
    assert record["torchgpipe_speedup_2"] > 0 and record["over_torchgpipe"] > 0


def test_the_bench_refuses_a_wrong_number_of_devices():
    result = run("bench", "pipe", "--devices", "cpu")
    assert result.exit_code == 2 and "two devices" in result.output


def test_turns_begin_with_another_variant_each_round():
    order = []
    variants = {name: lambda name=name: order.append(name) for name in "abc"}
    samples = in_turns(variants, rounds=3, warm_up=0)
    assert "".join(order) == "abcbcacab"
    assert all(len(seconds) == 3 for seconds in samples.seconds.values())
