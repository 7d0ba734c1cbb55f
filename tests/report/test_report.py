"""``thinpipe report``: runs read from their folders, in a terminal, as markdown and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from report.runs import CONNECTED, DATA_PARALLEL, IN_PROCESS, ONE_DEVICE, RANKS, cost, untimed, write_run
from thinpipe.cli import app
from thinpipe.report.figures import Figures
from thinpipe.report.plot import plot
from thinpipe.report.run import Run
from thinpipe.train import resolved
from thinpipe.train.log import Origin, RunFolder
from thinpipe.train.settings import Settings


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path / "run")


def run(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_run_of_another_machine_that_is_not_finished_is_shown(path):
    result = run(path)
    assert result.exit_code == 0, result.output
    assert "accuracy 80.00% after 2 of 3 epochs, not finished" in result.output
    assert "10.0.0.7:5555, codecs had:4 and block:4" in result.output
    assert "data over computation time" in result.output and "40.00 Mbit/s" in result.output
    assert "data over wall time" in result.output and "16.00 Mbit/s" in result.output
    assert "25.00%" in result.output  # a million bytes of four
    assert "training loss, steps 0 to 45" in result.output and "⠀" in result.output


def test_the_command_of_ranks_begins_with_who_starts_them(tmp_path):
    result = run(write_run(tmp_path / "run", RANKS))
    assert "torchrun --nproc-per-node 3 -m thinpipe" in result.output


def test_the_page_is_in_the_folder_of_the_run_and_its_path_is_said(path):
    result = run(path)
    assert f"the page is {path / 'report.html'}" in result.output.splitlines()[-1]
    assert (path / "report.html").read_text().startswith("<!doctype html>")


def test_markdown_is_a_page_with_the_command(path, tmp_path):
    result = run(path, "--markdown")
    assert result.output.startswith("# digits with 10.0.0.7:5555")
    assert "| ratio | 25.00% |" in result.output and result.output.count("```") == 6
    assert not (path / "report.html").exists()
    assert run(path, "--markdown", "--output", tmp_path / "page.md").exit_code == 0
    assert (tmp_path / "page.md").read_text().strip() == result.output.strip()


def test_the_last_line_of_json_has_the_figures_and_the_curves(path):
    said = json.loads(run(path, "--json").output.splitlines()[-1])
    assert said["accuracy"] == 0.8 and said["best_accuracy"] == 0.8 and not said["finished"]
    assert said["network"]["bandwidth_over_computation"] == pytest.approx(5e6)
    assert len(said["curves"]["loss"]) == 46 and said["curves"]["accuracy"] == [[1, 0.4], [2, 0.8]]
    assert said["recipe"]["name"] == "digits" and said["settings"]["codec"] == "had:4"
    assert said["page"] == str(path / "report.html")


def test_figures_leave_out_the_first_batch_and_those_that_are_not_full(path):
    figures = Figures.of(Run.read(path))
    assert figures.network["batches"] == 43 and figures.network["peak_sent"] == 1e6 + 44
    assert figures.seconds == 0.5 and figures.steps == 46


def test_a_run_that_has_only_begun_is_shown(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(Origin.now(resolved("digits"), Settings()))
    result = run(folder.path)
    assert result.exit_code == 0 and "not tested yet" in result.output
    assert "digits has no steps yet." in (folder.path / "report.html").read_text()


# -- the names of the sides: it said client and server of every way ----------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "costs", "said", "unsaid"),
    [
        (CONNECTED, cost, ["client to server", "of a batch: client, server", "peak, server"], ["rank"]),
        (RANKS, cost, ["to higher ranks", "rank 0, other ranks", "peak, other ranks"], ["client", "server"]),
        (IN_PROCESS, untimed, ["to later stages, to earlier stages"], ["client", "stall", "peak", "computation"]),
        (DATA_PARALLEL, untimed, ["sent by rank 0"], ["client", "stall", "peak", "computation"]),
        (ONE_DEVICE, None, ["time per batch"], ["client", "stall", "peak", "bytes"]),
    ],
    ids=["connected", "ranks", "in process", "data parallel", "one device"],
)
def test_each_way_of_training_has_its_own_sides_and_only_what_was_measured(tmp_path, settings, costs, said, unsaid):
    result = run(write_run(tmp_path / "run", settings, costs=costs))
    table = result.output[result.output.index("┏") : result.output.index("└")]
    assert result.exit_code == 0
    for word in said:
        assert word in table, word
    for word in unsaid:
        assert word not in table, word


# -- several runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    found = []
    for codec, scale in (("none", 4.0), ("sort:6+2", 1.0), ("had:4", 0.5)):
        settings = Settings(connect="10.0.0.7:5555", codec=codec, grad_codec=codec, bandwidth="20mbit")
        made = write_run(
            tmp_path / codec.replace(":", "-"),
            settings,
            epochs=3,
            accuracy=0.3,
            seconds=scale,
            costs=lambda number, scale=scale: cost(number, scale=scale, seconds=scale),
        )
        found.append(made)
    return found


def test_several_runs_are_compared_in_one_table(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*three)
    assert result.exit_code == 0, result.output
    assert "had:4 sends 8.0 times fewer bytes than none and is 8.0 times faster over 20 Mbit/s" in result.output
    assert "at the same accuracy, 90.00%" in result.output
    line = next(line for line in result.output.splitlines() if "client to server" in line)
    assert [cell.strip() for cell in line.split("│")][2:-1] == ["kB", "2,400.0", "600.0", "300.0"]
    assert (tmp_path / "report.html").exists()


def test_several_runs_are_a_page_of_markdown_and_a_list_in_json(three, tmp_path):
    result = run(*three, "--markdown")
    assert "|  | none | sort:6+2 | had:4 | meaning |" in result.output and "## sort:6+2" in result.output
    assert all(len(line.split(" | ")) == 5 for line in result.output.splitlines() if line.startswith("| "))
    said = json.loads(run(*three, "--json", "--output", tmp_path / "p.html").output.splitlines()[-1])
    assert [each["settings"]["codec"] for each in said["runs"]] == ["none", "sort:6+2", "had:4"]


# -- what cannot be shown ----------------------------------------------------------------------------------------------


def test_a_folder_without_a_run_is_refused(tmp_path, path):
    for words in ((tmp_path,), (path, tmp_path)):
        result = run(*words)
        # The path may be long, and the sentence in several lines of a box.
        assert result.exit_code == 2 and "has no run" in " ".join(result.output.replace("│", " ").split())


def test_a_log_with_a_text_for_a_number_is_refused(path):
    lines = (path / "log.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace('"seconds": 0.5, "lr"', '"seconds": "<b>", "lr"')
    (path / "log.jsonl").write_text("\n".join([*lines, ""]))
    result = run(path)
    assert result.exit_code == 2 and "seconds of step 3 is '<b>'" in result.output.replace("\n", "")


def test_a_page_that_cannot_be_written_is_said(path, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(path, "--output", tmp_path / "file" / "page.html")
    assert result.exit_code == 2 and "--output FILE" in result.output


def test_a_curve_spans_its_values_and_has_no_holes():
    lines = plot([0.0, 1.0], width=10, height=3)
    assert lines[0].startswith("1 ┤") and lines[-1].startswith("0 ┤")
    assert all(any(character != "⠀" for character in line[3:]) for line in lines)
    assert plot([]) == [] and plot([float("nan")]) == []
    assert len(plot([3.0] * 1000)) == 6 and len(plot([3.0])) == 6
