"""The page is written from what commands recorded, and from nothing else."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from thinpipe.bench.catalogue_page import fill_catalogue
from thinpipe.bench.page import SECTIONS
from thinpipe.bench.published_sheet import memory_sheet, speed_sheet
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.rows import AMOEBANET_MEMORY, UNET_MEMORY, UNET_SPEED
from thinpipe.bench.svg import bar_chart, line_chart
from thinpipe.cli import app
from thinpipe.reproduce.two_machines.sheet import published_sheet

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def run(*words):
    result = CliRunner().invoke(app, ["bench", *map(str, words)])
    assert result.exit_code == 0, result.output


def test_the_page_shows_what_was_recorded(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    shared = ("--tiny", "--devices", "cpu:4", "--output", results)
    run("unet-speed", *shared, "--rows", "baseline,pipeline-1", "--steps", 1, "--epochs", 2)
    run("unet-memory", *shared, "--rows", "pipeline-1")
    run("unet-timeline", *shared, "--steps", 1, "--epochs", 2)
    run("page", "--results", results, "--docs", docs)
    page = (docs / "benchmarks.md").read_text()
    record = Record.load(results / "unet-speed" / "pipeline-1-tiny-2x1-cpu.json")
    assert f"{record.results['throughput']:.3f}" in page and "0.858x" in page
    assert page.count("No results are recorded") == len(SECTIONS) - 3
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", page):
        assert (docs / target).exists(), target
    pictures = sorted(picture.name for picture in (docs / "img").iterdir())
    assert pictures == ["unet-memory.svg", "unet-speed.svg", "unet-timeline.svg"]
    for picture in (docs / "img").iterdir():
        root = ElementTree.parse(picture).getroot()
        assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text


def test_what_records_do_not_tell_stands_under_their_table(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    run("unet-memory", "--tiny", "--devices", "cpu:4", "--output", results, "--rows", "pipeline-1")
    (results / "unet-memory" / "README.md").write_text("The machine\nwas busy.\n\nIt was hot.\n")
    run("page", "--results", results, "--docs", docs)
    page = (docs / "benchmarks.md").read_text()
    assert "- The machine was busy.\n- It was hot.\n" in page


def recorded(bench):
    return [Record.load(path) for path in sorted((ROOT / "results" / bench).glob("*.json"))]


def test_a_computation_that_took_longer_than_its_batch_is_called_mismeasured():
    records = recorded("two-machines")
    wrong = [each for each in records if each.results["total_s"] < each.results["computation_s"]]
    right = [each for each in records if each not in wrong]
    said = f"The computation of {len(wrong)} rows was mismeasured"
    assert wrong and any(said in note for note in published_sheet(records).notes)
    assert not any("mismeasured" in note for note in published_sheet(right).notes)


def test_memory_that_was_published_otherwise_than_it_was_measured_is_said():
    said = {
        table.bench: " ".join(memory_sheet(table, recorded(table.bench)).notes)
        for table in (UNET_MEMORY, AMOEBANET_MEMORY)
    }
    for notes in said.values():
        assert "-expandable-one-gpu: all stages on one device" in notes and "expandable segments" in notes
    table = memory_sheet(AMOEBANET_MEMORY, recorded("amoebanet-memory"))
    shown = {line[0]: dict(zip(table.heads, line, strict=True)) for line in table.lines}
    assert shown["pipeline-4"]["torchgpipe: activations"] == "6.91 GiB"
    assert shown["pipeline-8-expandable-one-gpu"]["Huang et al.: parameters, model, activations"].startswith(
        "1.8B, 24.62"
    )


def test_records_in_place_are_shown_as_such_and_beside_no_published_figure():
    for table, sheet in ((UNET_MEMORY, memory_sheet), (UNET_SPEED, speed_sheet)):
        shown = sheet(table, recorded(table.bench))
        published = shown.heads.index("published")
        for record in recorded(table.bench):
            assert record.settings["in_place"] == ("-in-place" in record.row), record.row
        of_ours = [line for line in shown.lines if "-in-place" in line[0]]
        assert of_ours and {line[published] for line in of_ours} == {"-"}
        assert any("each LeakyReLU overwrites its input" in note for note in shown.notes)


def test_published_rows_of_which_nothing_is_recorded_are_shown(tmp_path):
    run("page", "--results", tmp_path / "none", "--docs", tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    for row in (
        "| pipeline-2 | 24, 128 | 4.99B | 2 x 32 |",
        "| n8m32 | 18, 256 | - | 8 x 32 | 1280 |",
        "| 4K | 22.13±0.09 |",
    ):
        assert row in page
    assert "132.413 | 4.953x | 3.48x |" in page and "542M, 6.45GB, 8.11GB" in page


def test_a_page_without_results_says_so(tmp_path):
    run("page", "--results", tmp_path / "none", "--docs", tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.count("No results are recorded") == len(SECTIONS)


def test_the_page_in_the_documentation_is_current(tmp_path):
    run("page", "--results", ROOT / "results", "--docs", tmp_path)
    fresh = re.sub(r"\]\((?:\.\./)+(?:\S+/)?results/", "](../results/", (tmp_path / "benchmarks.md").read_text())
    assert fresh == (ROOT / "docs/benchmarks.md").read_text(), "run: make docs"
    for picture in (tmp_path / "img").iterdir():
        assert picture.read_text() == (ROOT / "docs/img" / picture.name).read_text(), "run: make docs"


def test_the_figures_in_the_catalogue_of_codecs_are_current(tmp_path):
    catalogue = ROOT / "docs/codecs.md"
    (tmp_path / "codecs.md").write_text(
        re.sub(r"(-->\n)\|.*?(<!-- end)", r"\1\2", catalogue.read_text(), flags=re.DOTALL)
    )
    run("page", "--results", ROOT / "results", "--docs", tmp_path)
    assert (tmp_path / "codecs.md").read_text() == catalogue.read_text(), "run: make docs"


def test_a_catalogue_that_asks_for_what_was_not_measured_is_refused():
    with pytest.raises(ValueError, match="'block:5', which"):
        fill_catalogue("<!-- measured block:5 -->\n<!-- end -->", ROOT / "results")


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    machine = Machine("cpu", 2, [], "3.11", {"torch": "2"})
    record = Record("a", {"x": 1.5, "y": None}, {"s": [0.1]}, {"batch": 4}, machine, "row", {"x": 2.0}, ["a note"])
    assert Record.load(record.save(tmp_path)) == record


def test_names_in_a_picture_are_escaped_and_missing_values_leave_a_place():
    text = bar_chart("a < b", "share", {"row & row": {"ours": 1.0, "theirs": None}, "none": {"ours": None}})
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}title").text == "a < b: share"
    assert "theirs none" in root.find(f"{SVG}desc").text
    assert len(root.findall(f"{SVG}rect")) == 2 + 1  # the legend, and the one value


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_curves_are_drawn_whatever_their_length(epochs):
    root = ElementTree.fromstring(line_chart("t", "error", {"a": [(0.5, 0.1)] * epochs, "b": [(0.4, 0.0)] * epochs}))
    assert len(root.findall(f"{SVG}polyline")) == 2
