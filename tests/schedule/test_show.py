"""``thinpipe schedule show`` draws what would happen."""

import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.schedule import SCHEDULES


def show(*words):
    return CliRunner().invoke(app, ["schedule", "show", *map(str, words)])


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_drawn(name, tmp_path):
    picture = tmp_path / "picture.svg"
    result = show(name, "--stages", 4, "--chunks", 4, "--wire", 0.5, "--svg", picture, "--lists", "--json")
    assert result.exit_code == 0, result.output
    drawn = json.loads(result.stdout.splitlines()[-1])
    assert result.stdout.count("worker ") == len(drawn["lists"]) == max(drawn["workers"]) + 1
    assert f"{drawn['bubble']:.1%}" in result.stdout and "F0.0" in result.stdout
    root = ElementTree.parse(picture).getroot()
    assert "idle" in root.find("{http://www.w3.org/2000/svg}desc").text
    boxes = root.findall("{http://www.w3.org/2000/svg}rect")
    assert len(boxes) > sum(map(len, drawn["lists"])), "actions, and messages on links"


def test_one_forward_one_backward_looks_as_everybody_draws_it():
    lines = show("1f1b", "--stages", 2, "--chunks", 3).stdout.splitlines()
    assert lines[0].rstrip() == "worker 0   F0 F1 ······B0    F2 B1    ···B2"
    assert lines[1].rstrip() == "worker 1   ···F0 B0    F1 B1    F2 B2"


@pytest.mark.parametrize(
    "words", [("2f2b",), ("gpipe", "--map", "0,1"), ("gpipe", "--skips", "2-1"), ("gpipe", "--skips", "a-b")], ids=str
)
def test_what_cannot_be_drawn_is_explained(words):
    result = show(*words)
    assert result.exit_code == 2
    assert "got" in result.output or "there are" in result.output
