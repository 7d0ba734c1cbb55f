"""``thinpipe report``: a run read from its folder, in a terminal, as markdown and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.remote.cost import StepCost
from thinpipe.report.figures import Figures
from thinpipe.report.plot import plot
from thinpipe.report.run import Run
from thinpipe.train import resolved
from thinpipe.train.log import EvaluationLine, Origin, RunFolder, StepLine
from thinpipe.train.settings import Settings


def cost(number):
    times = {"seconds": 0.5, "computed": 0.1, "server_computed": 0.1, "encode": 0.01, "decode": 0.02}
    times |= {"server_encode": 0.03, "server_decode": 0.04, "stalled": 0.3, "server_stalled": 0.2}
    sizes = {"sent": 600_000, "received": 400_000, "raw_sent": 3_000_000, "raw_received": 1_000_000}
    peaks = {"peak_sent": 1e6 + number, "peak_received": 2e6, "server_peak_sent": 3e6, "server_peak_received": 4e6}
    return StepCost(step=number, rows=64, **times, **sizes, **peaks).to_json()


@pytest.fixture
def path(tmp_path):
    folder = RunFolder(tmp_path / "run")
    settings = Settings(connect="10.0.0.7:5555", codec="had:4", grad_codec="block:4", device="cuda")
    folder.begin(Origin.now(resolved("digits", {"epochs": 3}), settings))
    log = folder.log(0)
    for number in range(46):
        rows = 30 if number % 23 == 22 else 64
        line = StepLine(
            step=number, epoch=number // 23, rows=rows, loss=2 / (1 + number), seconds=0.5, cost=cost(number)
        )
        log.add(line)
        if number % 23 == 22:
            epoch = number // 23 + 1
            log.add(EvaluationLine(step=number + 1, epoch=epoch, rows=359, loss=0.5, accuracy=0.4 * epoch, seconds=1))
    return folder.path


def run(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_a_run_of_another_machine_that_is_not_finished_is_shown(path):
    result = run(path)
    assert result.exit_code == 0, result.output
    assert "accuracy 80.00% after 2 of 3 epochs, not finished" in result.output
    assert "10.0.0.7:5555, codecs had:4 and block:4" in result.output
    assert "data over computation time" in result.output and "40.00 Mbit/s" in result.output
    assert "data over wall time" in result.output and "16.00 Mbit/s" in result.output
    assert "25.00%" in result.output  # a million bytes of four
    assert "training loss, steps 0 to 45" in result.output and "⠀" in result.output


def test_markdown_is_a_page_with_the_command(path):
    result = run(path, "--markdown")
    assert result.output.startswith("# digits with 10.0.0.7:5555")
    assert "| ratio | 25.00% |" in result.output and result.output.count("```") == 6


def test_the_last_line_of_json_has_the_figures_and_the_curves(path):
    said = json.loads(run(path, "--json").output.splitlines()[-1])
    assert said["accuracy"] == 0.8 and said["best_accuracy"] == 0.8 and not said["finished"]
    assert said["network"]["bandwidth_over_computation"] == pytest.approx(5e6)
    assert len(said["curves"]["loss"]) == 46 and said["curves"]["accuracy"] == [[1, 0.4], [2, 0.8]]
    assert said["recipe"]["name"] == "digits" and said["settings"]["codec"] == "had:4"


def test_figures_leave_out_the_first_batch_and_those_that_are_not_full(path):
    figures = Figures.of(Run.read(path))
    assert figures.network["batches"] == 43 and figures.network["peak_sent"] == 1e6 + 44
    assert figures.seconds == 0.5 and figures.steps == 46


def test_a_run_that_has_only_begun_is_shown(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(Origin.now(resolved("digits"), Settings()))
    result = run(folder.path)
    assert result.exit_code == 0 and "not tested yet" in result.output


def test_a_folder_without_a_run_is_refused(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 2 and "has no run" in result.output


def test_a_curve_spans_its_values_and_has_no_holes():
    lines = plot([0.0, 1.0], width=10, height=3)
    assert lines[0].startswith("1 ┤") and lines[-1].startswith("0 ┤")
    assert all(any(character != "⠀" for character in line[3:]) for line in lines)
    assert plot([]) == [] and plot([float("nan")]) == []
    assert len(plot([3.0] * 1000)) == 6 and len(plot([3.0])) == 6
