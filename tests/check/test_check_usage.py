"""What ``thinpipe check`` says when there is nothing it could check: exit status 2, and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from thinpipe.check.command import check_command

FACTORIES = Path(__file__).with_name("factories.py")


def refused(target, *options):
    """Runs a check that must be refused; returns what it said, without the frame around it."""
    app = typer.Typer()
    app.command()(check_command)
    result = CliRunner().invoke(app, [str(target), *options])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("absent", "has no 'absent'; it has"),
        ("not_a_factory", "name a function that returns the model"),
        ("not_sequential", "module must be nn.Sequential"),
        ("doubled", "has a forward of its own"),
        ("number", "must return model, (model, inputs) or (model, inputs, loss_fn)"),
        ("with_arguments", "cannot be called without arguments"),
        ("broken", "the weights are not there"),
        ("model_alone", "no inputs; return (model, inputs), or give a shape"),
        ("wrong_inputs", "cannot be multiplied"),
        ("infinite", "the loss on one device is"),
        ("vector_loss", "must return a scalar tensor, got (3,)"),
    ],
)
def test_a_factory_that_cannot_be_used_is_told_why(factory, words):
    options = ["--balance", "1,1"] if factory in {"wrong_inputs", "infinite"} else []
    assert words in refused(f"{FACTORIES}:{factory}", *options)


def test_a_missing_factory_is_answered_with_those_there_are():
    assert "classifier" in refused(f"{FACTORIES}:absent")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--balance", "2,2"], "sum of balance: 4"),
        (["--balance", "2,x"], "positive integers with commas"),
        (["--balance", "5,0"], "positive integers with commas"),
        (["--stages", "9"], "ask for at most 5"),
        (["--chunks", "0"], "--chunks takes positive integers"),
        (["--checkpoint", "sometimes"], "choose among always, except_last, never"),
        (["--devices", "cpu", "--balance", "2,3"], "too few devices"),
        (["--devices", "abacus"], "--devices takes devices"),
        (["--input", "16by3"], "is no shape"),
        (["--input", "16x5:int63"], "is no shape"),
        (["--input", "16x5:int64"], "needs --high N"),
        (["--autocast", "bf16", "--dtype", "float64"], "autocast leaves float64 alone"),
    ],
)
def test_an_option_that_cannot_be_used_is_told_why(options, words):
    assert words in refused(f"{FACTORIES}:plain", *options)


def test_a_model_that_is_no_sequence_is_cut_at_names_only():
    assert "as for thinpipe.split: --at last" in refused(f"{FACTORIES}:bridged")
    assert "there is no module 'middle'; there are first, drop, last" in refused(
        f"{FACTORIES}:bridged", "--at", "middle"
    )
    assert "there is no module '9'; there are 0, 1, 2, 3, 4" in refused(f"{FACTORIES}:plain", "--at", "9")


def test_a_transformers_model_has_no_balance():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")
    assert "use --at or --stages" in refused(f"{FACTORIES}:bert", "--balance", "2,2")


def test_a_target_without_a_factory_is_refused():
    assert "write package.module:factory" in refused("package.module")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "there is no file" in refused(f"{tmp_path}/models.py:make")


def test_a_module_that_is_not_there_is_refused():
    assert "there is no module 'no_such_package'" in refused("no_such_package.models:make")


def test_a_module_that_cannot_be_imported_is_refused_with_its_own_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("needs_what_is_missing.py").write_text("import no_such_dependency\n")
    said = refused("needs_what_is_missing:make")
    assert "importing needs_what_is_missing failed" in said
    assert "no_such_dependency" in said


def test_a_parameter_shared_by_two_stages_is_refused(tmp_path):
    source = "from torch import nn, randn\nlayer = nn.Linear(3, 3)\n"
    (tmp_path / "tied.py").write_text(
        source + "def make(): return nn.Sequential(layer, nn.Tanh(), layer), randn(4, 3)\n"
    )
    assert "is the same tensor as" in refused(f"{tmp_path}/tied.py:make", "--balance", "2,1")


def test_a_package_in_the_current_directory_is_found_by_its_dotted_name(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("from torch import nn\ndef head(): return nn.Linear(4, 2)\n")
    (package / "models.py").write_text(
        "import torch\nfrom torch import nn\nfrom mine.parts import head\n"
        "def small(): return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), head()), torch.randn(4, 3)\n"
    )
    program = "import typer; from thinpipe.check.command import check_command; typer.run(check_command)"
    ran = subprocess.run(
        [sys.executable, "-c", program, "mine.models:small", "--balance", "1,2", "--chunks", "2"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert "equal to one device in 3 cases" in ran.stdout
