"""A core installation: what is missing is named all at once, in a line, by every command."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from thinpipe.errors import MissingPackageError, ThinpipeError
from thinpipe.extras import _PACKAGES
from thinpipe.train.beginning import begin

OPTIONAL = ("PIL", "peft", "prometheus_client", "safetensors", "sklearn", "transformers", "zmq", "zstandard")


COMMANDS = {
    "demo": ({"pyzmq", "safetensors", "scikit-learn"}, {"net", "data"}),
    "demo --codecs none,block:4|zstd": (
        {"pyzmq", "safetensors", "scikit-learn", "zstandard"},
        {"net", "data", "zstd"},
    ),
    "train digits": ({"safetensors", "scikit-learn"}, {"data"}),
    "train digits --connect localhost:5555": ({"safetensors", "scikit-learn", "pyzmq"}, {"data", "net"}),
    "train two-machines --connect localhost:5555": ({"safetensors", "pyzmq"}, {"net"}),
    "train digits --stages 2 --codec block:4|zstd": ({"safetensors", "scikit-learn", "zstandard"}, {"data", "zstd"}),
    "train imagefolder": ({"safetensors", "Pillow"}, {"data"}),
    "train rte --set model=tiny": ({"safetensors", "transformers"}, {"hf", "data"}),
    "train cola-lora --set model=tiny": ({"safetensors", "transformers", "peft"}, {"lora", "data"}),
    "train cola-lora --set model=tiny --dry-run": ({"transformers", "peft"}, {"lora"}),
    "serve": ({"pyzmq"}, {"net"}),
    "keygen alice": ({"pyzmq"}, {"net"}),
    "reproduce two-machines --tiny": ({"pyzmq"}, {"net"}),
}
"""What is missing for a command in a core installation, and the extras that install it."""

FREE = ("codecs", "codecs sort:8|zstd", "schedule show 1f1b", "train digits --dry-run", "report .")

PROGRAM = f"""
import json, sys
for name in {OPTIONAL}:
    sys.modules[name] = None
import thinpipe
from thinpipe.cli import app
from typer.testing import CliRunner

found = {{}}
for words in sys.argv[1:]:
    result = CliRunner().invoke(app, words.split())
    found[words] = [result.exit_code, result.output]
for name in ("Client", "Server"):
    try:
        getattr(thinpipe, name)
    except ImportError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """What an installation without any extra says, and whether it leaves anything behind."""
    folder = tmp_path_factory.mktemp("core")
    command = [sys.executable, "-c", PROGRAM, *COMMANDS, *FREE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_names_all_that_is_missing_in_one_line(words, core):
    status, output = core[words]
    packages, extras = COMMANDS[words]
    said = re.fullmatch(r"(.+?) (?:is|are) not installed, .+; run: pip install 'thinpipe\[(.+)\]'\n", output)
    assert status == 1 and said, output
    assert set(re.split(", | and ", said[1])) == packages and set(said[2].split(",")) == extras


@pytest.mark.parametrize("name", ["Client", "Server"])
def test_a_name_that_needs_the_network_says_so(name, core):
    assert re.search(r"pyzmq is not installed, .*'thinpipe\[net\]'", core[name])


def test_what_needs_no_extra_works_without_them(core):
    assert [core[words][0] for words in FREE] == [0, 0, 0, 0, 2]
    assert "has no run" in core["report ."][1]


def test_an_extra_that_somebody_has_already_is_not_named():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'thinpipe[data]'")
    with pytest.raises(MissingPackageError) as caught, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "zmq", None)
        begin("digits", {}, {"connect": "localhost:5555"}, None)
    assert "'thinpipe[net]'" in str(caught.value) and "scikit-learn" not in str(caught.value)
    assert isinstance(caught.value, ThinpipeError) and isinstance(caught.value, ImportError)


def test_every_extra_that_is_named_installs_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = {
        name: {re.match(r"[\w-]+", each)[0].lower() for each in needed}
        | set(re.findall(r"thinpipe\[(\w+)\]", str(needed)))
        for name, needed in project["optional-dependencies"].items()
    }
    for package in _PACKAGES.values():
        for extra in package.extras:
            installed = extras[extra].union(*(extras.get(each, set()) for each in extras[extra]))
            assert package.name.lower() in installed, (package, extra)
