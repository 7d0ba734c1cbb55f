"""``thinpipe trace show`` tells where the time went, and draws it."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.errors import TraceError
from thinpipe.schedule import draw as schedule
from thinpipe.trace import Span, Trace, as_svg, draw, write_chrome
from trace_support import recorded, simulated

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def show(*words):
    return CliRunner().invoke(app, ["trace", "show", *map(str, words)])


def boxes(svg):
    return ElementTree.fromstring(svg).findall(f"{SVG}rect")


@pytest.mark.parametrize("trace", [simulated("zb")[0], recorded()], ids=["simulated", "recorded"])
def test_a_box_for_each_span_and_words_for_those_who_hear_it(trace):
    svg = as_svg(trace, "a <step> & more")
    root = ElementTree.fromstring(svg)
    assert len(boxes(svg)) == len(trace.spans)
    assert root.find(f"{SVG}title").text == "a <step> & more"
    assert "rank 1 computes" in root.find(f"{SVG}desc").text
    assert "prefers-color-scheme: dark" in svg
    right = max(float(box.get("x")) + float(box.get("width")) for box in boxes(svg))
    assert right <= 880 < float(root.get("viewBox").split()[2])


def test_a_window_draws_what_is_inside_as_far_as_it_is():
    spans = [Span(0, "compute", f"F0.{i}", float(i), i + 1.0) for i in range(10)]
    trace = Trace.of(spans)
    assert len(boxes(as_svg(trace, "all"))) == 10
    cut = boxes(as_svg(trace, "some", (2.5, 4.5)))
    assert [box.find(f"{SVG}title").text for box in cut] == [f"F0.{i}: 1e+03 ms" for i in (2, 3, 4)]
    assert float(cut[1].get("width")) == pytest.approx(2 * float(cut[0].get("width")) + 1, abs=0.2)
    with pytest.raises(TraceError, match="nothing to draw"):
        as_svg(trace, "none", (3.0, 3.0))


def test_names_that_are_no_actions_are_drawn_too():
    spans = [Span(0, "compute", "opt\x00<imizer>", 0.0, 1.0), Span(0, "encode", "x", 0.0, 1.0, {"action": "B0.0"})]
    first, second = boxes(as_svg(Trace.of(spans), "odd"))
    assert first.get("fill") not in draw.COLOURS.values() and first.find(f"{SVG}title").text.startswith("opt?<imizer>")
    assert second.get("fill") == draw.COLOURS[draw.Kind.BACKWARD]


def test_the_colours_are_those_of_a_schedule():
    assert draw.COLOURS == schedule._COLOURS


def test_the_command_prints_shares_and_links_and_draws(tmp_path):
    path, picture = write_chrome(tmp_path / "run.json", recorded(3)), tmp_path / "run.svg"
    result = show(path, "--svg", picture, "--json")
    assert result.exit_code == 0, result.output
    assert "wire under compute" in result.stdout and "0 → 1" in result.stdout and "3 steps" in result.stdout
    data = json.loads(result.stdout.splitlines()[-1])
    assert [one["rank"] for one in data["ranks"]] == [0, 1]
    assert data["links"][0]["bytes"] == 3000 and data["links"][0]["messages"] == 3
    assert f"{data['ranks'][0]['compute']:.1%}" in result.stdout
    assert len(boxes(picture.read_text())) == 3 * 4
    last = show(path, "--steps", 1, "--svg", picture, "--json")
    assert json.loads(last.stdout.splitlines()[-1])["links"][0]["bytes"] == 1000
    assert len(boxes(picture.read_text())) == 3, "the optimizer comes after the step"


def test_a_window_by_its_times(tmp_path):
    path = write_chrome(tmp_path / "run.json", simulated()[0])
    data = json.loads(show(path, "--from", 2, "--to", 900, "--json").stdout.splitlines()[-1])
    assert (data["from"], data["to"]) == (0.002, 0.026)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", 1, "--from", 2], "use one of them"),
        (["--from", 50], "goes from 0 to 26 ms"),
        (["--from", "nan"], "--from"),
        (["--to", "nan"], "--to"),
        (["--steps", 0], "--steps"),
    ],
    ids=str,
)
def test_a_window_that_makes_no_sense_is_explained(words, message, tmp_path):
    result = show(write_chrome(tmp_path / "run.json", simulated()[0]), *words)
    assert result.exit_code == 2
    assert message in re.sub(r"[\s│]+", " ", result.output)


def test_steps_need_spans_that_name_them(tmp_path):
    path = write_chrome(tmp_path / "run.json", Trace.of([Span(0, "compute", "F0.0", 0.0, 1.0)]))
    result = show(path, "--steps", 1)
    assert result.exit_code == 2 and "names its step" in re.sub(r"[\s│]+", " ", result.output)
    assert show(path).exit_code == 0


def test_a_file_that_is_no_trace_is_explained(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("{")
    result = show(path)
    assert result.exit_code == 2 and "cut off" in re.sub(r"[\s│]+", " ", result.output)
    assert show(tmp_path / "none.json").exit_code == 2


def test_the_example_is_what_the_page_writes(tmp_path):
    page = (ROOT / "docs/pipelines.md").read_text()
    code = re.search(r"^## Look at a trace.*?^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    written = tmp_path / "simulated.json"
    exec(compile(code.replace("runs/simulated.json", str(written)), "guide", "exec"), {})
    assert written.read_bytes() == (ROOT / "examples/simulated.json").read_bytes()
