"""The first minute: what ``make demo`` prints and writes is true."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from thinpipe.bench.link_processes import RankError
from thinpipe.bench.record import Record
from thinpipe.cli import app
from thinpipe.codecs import DEFAULT, codec
from thinpipe.demo.server import served

for package in ("zmq", "safetensors", "sklearn"):
    pytest.importorskip(package, reason="the demo needs thinpipe[net,data]")

FULL_BATCH, CHUNKS = 64, 4


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo as ``make demo`` runs it."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    words = ["--output", str(folder), "--record", str(folder.parent / "results")]
    result = CliRunner().invoke(app, ["demo", *words, "--json"])
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(result.stdout.splitlines()[-1]), folder


def test_make_has_the_demo_that_is_looked_at_here():
    assert "\n\t$(BIN)/thinpipe demo\n" in (Path(__file__).parents[1] / "Makefile").read_text()


def promised(spec):
    """The bytes of all packets of a batch: both cuts, forward and backward, four micro-batches."""
    rows = FULL_BATCH // CHUNKS
    shapes = [(rows, 16, 8, 8), (rows, 64)]
    return 2 * CHUNKS * sum(codec(spec).nbytes(shape, torch.float32) for shape in shapes)


def test_codecs_cost_no_accuracy(demo):
    accuracies = {name: run["accuracy"] for name, run in demo[1]["runs"].items()}
    assert list(accuracies) == ["none", "sort:6+2", "had:4", DEFAULT]
    assert accuracies["none"] > 0.97
    assert all(abs(accuracy - accuracies["none"]) <= 0.01 for accuracy in accuracies.values()), accuracies


@pytest.mark.parametrize("spec", ["none", "sort:6+2", "had:4", DEFAULT])
def test_bytes_are_what_the_codec_promises_and_a_little_for_words(demo, spec):
    network = demo[1]["runs"][spec]["network"]
    sent = network["sent"] + network["received"]
    # Eight packets each way have heads of their own, and a step has some words.
    assert promised(spec) < sent < promised(spec) + 12_000, (promised(spec), sent)


def test_codecs_are_faster_over_a_slow_link(demo):
    seconds = {name: run["seconds"] for name, run in demo[1]["runs"].items()}
    assert seconds["none"] > seconds["sort:6+2"] > 0 and seconds["none"] > 1.5 * seconds[DEFAULT]


def test_the_link_is_as_slow_as_it_was_asked_to_be(demo):
    network = demo[1]["runs"]["none"]["network"]
    for way in ("sent", "received"):
        assert 8 * network[way] / network["seconds"] < 1.1 * 20e6


def test_the_table_has_the_same_numbers(demo):
    printed, said, _ = demo
    for name, run in said["runs"].items():
        row = next(line for line in printed.splitlines() if line.startswith(f"│ {name} "))
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        assert cells[1] == f"{run['accuracy']:.2%}"
        assert cells[2] == f"{(run['network']['sent'] + run['network']['received']) / 1e3:,.1f}"
        assert cells[6] == f"{1e3 * run['seconds']:,.1f}"
    sent = {name: run["network"]["sent"] + run["network"]["received"] for name, run in said["runs"].items()}
    assert f"{DEFAULT}: {sent['none'] / sent[DEFAULT]:.1f} times fewer bytes" in printed


def test_what_was_asked_to_be_recorded_has_the_same_numbers_with_all_it_takes_to_repeat_them(demo):
    _, said, folder = demo
    records = {}
    for path in (folder.parent / "results/demo").glob("*.json"):
        each = Record.load(path)
        records[each.settings["codec"]] = each
    assert records.keys() == said["runs"].keys()
    for name, run in said["runs"].items():
        found, network = records[name].results, run["network"]
        assert (found["accuracy"], found["seconds_per_batch"]) == (run["accuracy"], run["seconds"])
        assert found["bytes_per_batch"] == network["sent"] + network["received"]
        assert found["over_none"] == said["runs"]["none"]["seconds"] / run["seconds"]
        assert records[name].settings["bandwidth"] == "20mbit" and records[name].machine.versions["torch"]


def test_the_report_shows_all_runs_and_a_timeline(demo):
    printed, said, folder = demo
    page = (folder / "report.html").read_text()
    assert f"report: {folder / 'report.html'}" in printed and said["report"] == str(folder / "report.html")
    for name, run in said["runs"].items():
        assert name in page and f"{run['accuracy']:.2%}" in page
    assert "One step" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--codecs", "none,sorted:6"], "sort"), (["--bandwidth", "fast"], "fast"), (["--output", "."], "choose")],
)
def test_what_cannot_be_shown_is_said_before_anything_starts(words, why):
    result = CliRunner().invoke(app, ["demo", *words])
    assert result.exit_code == 2 and why in result.output and "Traceback" not in result.output


def test_a_server_that_does_not_start_is_told_with_its_reason():
    with pytest.raises(RankError, match="nonsense"), served("nonsense", threads=1):
        pass


def test_the_readmes_table_is_what_the_demo_prints(demo):
    rows = re.findall(
        r"^\| \**([a-z]+[:\d+]*)\** \| [\d.]+% \| ([\d.]+) \| ([\d.]+)% \|",
        (Path(__file__).parents[1] / "README.md").read_text(),
        re.MULTILINE,
    )
    assert [name for name, *_ in rows] == list(demo[1]["runs"])
    for name, size, share in rows:
        run = demo[1]["runs"][name]
        sent = run["network"]["sent"] + run["network"]["received"]
        assert float(size) == pytest.approx(sent / 1e3, rel=0.02)
        assert float(share) == pytest.approx(100 * run["network"]["ratio"], rel=0.02)
