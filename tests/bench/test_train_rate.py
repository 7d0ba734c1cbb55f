"""``thinpipe bench train`` trains what ``thinpipe train`` does, and tells how fast."""

import io
import json
import os
import re
import signal
import statistics
import threading
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from thinpipe.bench.page import write_page
from thinpipe.bench.record import Record
from thinpipe.bench.train_rate import Plan, Row, rows_named
from thinpipe.bench.train_rate_run import record_of, train_row
from thinpipe.bench.train_rate_sheet import train_rate_sheet
from thinpipe.cli import app
from thinpipe.reproduce.training.figures import Ran
from thinpipe.train import resolved
from thinpipe.train.parts import data as data_of
from thinpipe.train.recipe import RecipeError
from thinpipe.train.stop import Stop

CURVES = ("accuracy", "train_loss", "test_loss")


def bench(*words, status=0):
    result = CliRunner().invoke(app, ["bench", "train", *map(str, words)])
    assert result.exit_code == status, result.output
    return result


def said(result):
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def last_line(folder):
    # Named in another order: one device is first all the same.
    result = bench("--tiny", "--rows", "cut-had:4,one-device", "--seed", 3, "--json", "--output", folder)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def records(last_line, folder):
    found = {name: Record.load(folder / "train" / f"digits-{name}.json") for name in ("one-device", "cut-had4")}
    assert [record.entries() for record in found.values()] == last_line["rows"]
    return found


@pytest.mark.parametrize(
    ("row", "words"),
    [("one-device", ()), ("cut-had4", ("--stages", 3, "--codec", "had:4", "--grad-codec", "had:4"))],
)
def test_a_row_has_the_numbers_of_the_run_that_train_makes(row, words, records, tmp_path):
    run = ["train", "digits", "--epochs", 2, "--seed", 3, *words, "--run", tmp_path / "run"]
    assert CliRunner().invoke(app, list(map(str, run))).exit_code == 0
    trained, record = Ran.read(tmp_path / "run"), records[row]
    assert {name: record.samples[name] for name in CURVES} == {name: trained.samples()[name] for name in CURVES}
    for name in ("accuracy", "best_accuracy", "bytes_per_sample", "epochs", "train_rows", "test_rows"):
        assert record.results[name] == trained.results()[name]


def test_rates_are_rows_over_seconds_and_a_cut_is_compared_with_one_device(records):
    for record in records.values():
        results, seconds = record.results, record.samples["seconds"]
        rows = results["train_rows"]
        assert record.samples["rate"] == pytest.approx([rows / each for each in seconds])
        assert results["samples_per_second"] == pytest.approx(2 * rows / sum(seconds))
        assert results["samples_per_second_steady"] == pytest.approx(rows / seconds[1])
        assert results["samples_per_second_with_tests"] == pytest.approx(2 * rows / results["wall_seconds"])
        assert results["wall_seconds"] > results["seconds"] > sum(seconds)
        assert results["allocated_gib"] is results["reserved_gib"] is None
    alone, cut = records["one-device"].results, records["cut-had4"].results
    assert alone["of_one_device"] == alone["of_one_device_steady"] == 1
    assert cut["of_one_device"] == cut["samples_per_second"] / alone["samples_per_second"]
    assert cut["of_one_device_steady"] == cut["samples_per_second_steady"] / alone["samples_per_second_steady"]


def test_what_crosses_is_packed_and_one_device_sends_nothing(records):
    alone, cut = records["one-device"], records["cut-had4"]
    assert alone.results["ratio"] is None and alone.results["bytes_per_sample"] == 0
    assert 4.25 / 32 <= cut.results["ratio"] == cut.results["float32_ratio"] < 1.1 * 4.25 / 32
    assert (alone.settings["way"], cut.settings["way"]) == ("one device", "in process")
    assert cut.settings["settings"]["grad_codec"] == cut.settings["codec"] == "had:4"
    assert cut.settings["recipe"]["seed"] == 3 and "data_dir" not in cut.settings["recipe"]


def test_the_table_says_what_is_recorded(last_line, records):
    assert [(line["way"], line["codec"]) for line in last_line["table"]] == [
        ("one device", "none"),
        ("3 stages", "had:4"),
    ]
    cut, line = records["cut-had4"].results, last_line["table"][1]
    assert line["of one device"] == f"{cut['of_one_device']:.3f} ({cut['of_one_device_steady']:.3f})"
    assert line["accuracy"] == f"{cut['accuracy']:.2%}" and line["ratio"] == f"{cut['ratio']:.4f}"
    assert line["samples/s"] == f"{cut['samples_per_second']:,.0f}" and line["peak memory"] == "-"


def test_correlation_and_memory_are_shown_where_they_were_measured(records):
    record = records["one-device"]
    extra = {"mcc": 0.5678, "allocated_gib": 1.5, "reserved_gib": 2.25}
    sheet = train_rate_sheet([replace(record, results=record.results | extra), records["cut-had4"]])
    columns = dict(zip(sheet.heads, zip(*sheet.lines, strict=True), strict=True))
    assert columns["MCC x 100"] == ("56.78", "-") and columns["peak memory"] == ("1.50 GiB (2.25 GiB)", "-")
    assert not any("not measurable" in note for note in sheet.notes)


def test_the_page_has_a_section_for_a_recipe_that_is_recorded_and_for_no_other(records, folder, tmp_path):
    page = write_page(folder, tmp_path).read_text()
    assert "## Training digits, end to end" in page and "## Training cola" not in page
    assert f"| 3 stages | had:4 | {records['cut-had4'].results['samples_per_second']:,.0f} |" in page
    for name in ("train-digits", "train-digits-accuracy"):
        assert f"(img/{name}.svg)" in page
        drawn = ElementTree.parse(tmp_path / "img" / f"{name}.svg").getroot()
        assert "cut-had:4" in drawn.find("{http://www.w3.org/2000/svg}desc").text


def test_the_rate_is_that_of_the_log_and_without_one_device_there_is_nothing_to_compare_with(tmp_path):
    recipe = resolved("digits", {"epochs": 3, "batch": 512})
    row = Row("cut-none")
    plan = Plan(recipe=recipe, rows=(row,), stages=2, device="cpu", compile=False, tiny=True).verify()
    timed = train_row(plan, row, data_of(recipe), tmp_path, Stop(), Console(file=io.StringIO()))
    steps = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in steps if line["kind"] == "step"]
    rates = [
        sum(line["rows"] for line in steps if line["epoch"] == epoch)
        / sum(line["seconds"] for line in steps if line["epoch"] == epoch)
        for epoch in range(3)
    ]
    record = record_of(plan, row, timed, None)
    assert record.samples["rate"] == pytest.approx(rates)
    assert record.results["samples_per_second_steady"] == pytest.approx(statistics.median(rates[1:]))
    assert record.results["seconds_per_batch"] == statistics.median(line["seconds"] for line in steps)
    assert record.results["of_one_device"] is record.results["of_one_device_steady"] is None
    assert record.results["ratio"] == pytest.approx(1, abs=0.01) and record.settings["settings"]["stages"] == 2


def test_a_part_of_a_published_set_is_not_taken_for_it(records, tmp_path):
    assert not records["one-device"].notes
    recipe = resolved("digits", {"epochs": 1, "batch": 512})
    row = Row("one-device")
    plan = Plan(recipe=recipe, rows=(row,), stages=3, device="cpu", compile=False, tiny=False)
    timed = train_row(plan, row, data_of(recipe), tmp_path, Stop(), Console(file=io.StringIO()))
    # The same figures under the name of a recipe whose data set has a published size.
    of_cifar = Plan(recipe=resolved("cifar10-finetune"), rows=(row,), stages=3, device="cpu", compile=False, tiny=False)
    (note,) = record_of(of_cifar, row, timed, None).notes
    assert note.startswith("1,438 samples to train on and 359 to test with, where the published set has 50,000 and")


def test_what_was_measured_before_an_error_is_recorded(tmp_path):
    (tmp_path / "train" / "digits-cut-none.json").mkdir(parents=True)  # where the second record cannot be written
    result = bench("--tiny", "--set", "epochs=1", "--codecs", "none", "--json", "--output", tmp_path, status=1)
    assert "digits-cut-none.json" in result.stderr and "Traceback" not in result.output
    (entries,) = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert Record.load(tmp_path / "train" / "digits-one-device.json").entries() == entries
    assert entries["epochs"] == 1 and entries["samples_per_second_steady"] is None


def test_whoever_interrupts_it_keeps_the_rows_that_are_done(tmp_path):
    first = tmp_path / "train" / "digits-one-device.json"

    def interrupt():
        while not first.exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = bench("--tiny", "--output", tmp_path, status=128 + signal.SIGINT)
    assert "stopped; cut-had:4 is not measured" in result.stderr and f"recorded in {first}" in said(result)
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_names_of_rows_are_read_and_written():
    rows = rows_named(["cut-power:3/power:7", "cut-none", "one-device"])
    assert [row.file for row in rows] == ["one-device", "cut-power3-power7", "cut-none"]
    assert [row.codec for row in rows] == [None, "power:3/power:7", None]
    with pytest.raises(RecipeError, match="no row is called 'one-devise'; did you mean one-device"):
        rows_named(["one-devise"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--recipe cifar10-finetun", "did you mean cifar10-finetune?"),
        ("--tiny --codecs hda:4", "did you mean had:B/G?"),
        ("--tiny --rows one-device,cut-hda:4", "did you mean had:B/G?"),
        ("--tiny --rows cat-had:4", "did you mean cut-had:4?"),
        ("--tiny --rows cut-none --codecs had:4", "leave out --codecs"),
        ("--tiny --codecs power:3/power:7/power:9", "has 3 codecs, and there are 2 cuts"),
        ("--tiny --stages 99", "99"),
        ("--tiny --cut pold", "did you mean pooled?"),
        ("--tiny --chunks 0", "chunks is a number from 1"),
        ("--tiny --device abacus", "there is no device 'abacus'"),
        ("--tiny --set momentm=0.8", "did you mean momentum?"),
        ("--tiny --set epochs=0", "no step in 0 epochs"),
        ("--tiny --recipe cola", "--tiny trains digits"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(words, why):
    result = bench(*words.split(), status=2)
    assert why in said(result) and "1 of" not in result.output


def test_samples_that_are_not_there_are_asked_for(tmp_path):
    result = bench("--recipe", "cifar10-scratch", "--data-dir", tmp_path, "--output", tmp_path / "out", status=1)
    assert "cifar-10-batches-bin" in result.stderr and not (tmp_path / "out").exists()
