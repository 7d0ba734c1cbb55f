"""What is not needed is not imported: help comes at once, and names are found when they are asked for."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import thinpipe
from thinpipe.cli import app
from thinpipe.help import flowing

PROGRAM = """
import json, sys
{code}
ours = [name for name in sys.modules if name.split(".")[0] == "thinpipe"]
print(json.dumps({{"torch": "torch" in sys.modules, "ours": len(ours)}}))
"""
INVOKE = "from typer.testing import CliRunner; from thinpipe.cli import app; CliRunner().invoke(app, {words})"


def imported(code):
    """Tells what a program of its own has imported in the end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    ["import thinpipe", "import thinpipe.cli", *(INVOKE.format(words=[word]) for word in ("--help", "--version"))],
    ids=["import", "import the command line", "help", "version"],
)
def test_neither_torch_nor_a_command_is_imported_for_what_needs_none(code):
    found = imported(code)
    assert not found["torch"] and found["ours"] <= 6


@pytest.mark.parametrize("command", ["demo", "keygen", "report", "schedule", "serve", "trace"])
def test_the_help_of_a_command_needs_no_torch_if_its_options_do_not(command):
    found = imported(INVOKE.format(words=[command, "--help"]))
    assert not found["torch"] and found["ours"] <= 30


def test_a_command_is_listed_with_the_first_paragraph_of_its_help():
    for name, later in app.later.items():
        assert flowing(later.load(name).help).split("\n\n")[0] == later.summary, name


def test_completion_lists_commands_that_nobody_has_imported():
    group = get_command(app)
    found = group.shell_complete(group.make_context("thinpipe", [], resilient_parsing=True), "re")
    assert [each.value for each in found] == ["report", "reproduce"]
    assert found[0].help.startswith("Shows training runs")
    assert group.commands.listed("report").callback is None


def test_every_name_and_every_part_is_found_when_it_is_asked_for():
    assert {*thinpipe.__all__} <= {*dir(thinpipe)} and all(getattr(thinpipe, name) for name in thinpipe.__all__)
    assert thinpipe.checkpoint.save and thinpipe.codecs.CATALOGUE
    with pytest.raises(AttributeError, match="'thinpipe' has no attribute 'Pip'"):
        _ = thinpipe.Pip


def test_train_without_a_recipe_lists_them_all():
    result = CliRunner().invoke(app, ["train"])
    assert result.exit_code == 2
    lines = {line.split()[0]: line for line in result.output.splitlines()[2:] if line}
    assert lines.keys() == thinpipe.train.RECIPES.keys()
    assert all(subject.about in lines[name] for name, subject in thinpipe.train.RECIPES.items())
