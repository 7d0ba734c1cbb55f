"""Bad values for every option of the commands: exit status 2 and a line that says what is wrong, never a traceback."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from report.runs import write_run
from thinpipe.cli import app
from thinpipe.trace import write_chrome
from trace_support import simulated

INTEGER = ["", "x", "2.5", "nan", "-1"]
POSITIVE = [*INTEGER, "0"]
NUMBER = ["", "x", "nan", "inf", "-1", "1,5"]
LIST = ["", " ", ",", "x,y", "0,1", "-1,2", "2.5,1", "nan", "1,,2"]
CODECS = ["", " ", ",", "nonsense", "wave:4,", "block:0"]
KEY = ["", "{file}", "/nowhere/at/all"]
CODEC = ["", " ", "nonsense", "block:0", "block:nan"]
RATE = ["", "fast", "0", "-5mbit", "nan", "inf", "5 parsecs"]
DEVICE = ["", " ", "abacus", "cuda:x", "-1"]
DEVICES = [*DEVICE, ",", "cpu,", "cpu,abacus"]
MISSING = ["", "/nowhere/at/all"]
SHAPE = ["", " ", "x,y", "x", "2,", "2,-1", "0", "2,0", "2.5,3", "nan", ",", "16 32"]

TARGET = "{examples}/digits.py:small"
BAD = {
    ("demo",): {
        "--epochs": POSITIVE,
        "--bandwidth": RATE,
        "--codecs": CODECS,
        "--seed": INTEGER,
        "--output": ["", "{file}"],
    },
    ("check", TARGET): {
        "": ["", "digits", "nowhere.py:x", "{file}:x", ":x", "thinpipe:nothing", "no.such.module:x"],
        "--stages": [*POSITIVE, "99"],
        "--balance": [*LIST, "99", "1,1"],
        "--at": ["", " ", ",", "nonsense", "1,1", "2,1"],
        "--chunks": LIST,
        "--checkpoint": ["", ",", "nonsense", "always,", "2"],
        "--input": ["", " ", "x", "16x", "0x3", "-1x3", "16,3", "16x3:abacus", "16x3:int64", "2.5x3"],
        "--high": [*POSITIVE, "2.5"],
        "--devices": DEVICES,
        "--autocast": ["", "fp8", "float32"],
        "--dtype": ["", "float8", "int8"],
        "--tolerance": NUMBER,
        "--lr": NUMBER,
        "--seed": INTEGER,
    },
    ("codecs",): {
        "": ["", "nonsense", "block:0", "wave:4,"],
        "--shape": SHAPE,
        "--dtype": ["", "nonsense", "int64", "Tensor"],
    },
    ("probe", TARGET): {
        "--codecs": CODECS,
        "--stages": [*POSITIVE, "1", "99"],
        "--balance": [*LIST, "99", "1,1"],
        "--at": ["", " ", ",", "nonsense", "1,1"],
        "--input": ["", "x", "16x", "0x3", "16,3"],
        "--high": POSITIVE,
        "--devices": DEVICES,
        "--seed": INTEGER,
    },
    ("train", "digits", "--epochs", "1", "--no-tty"): {
        "": ["", "digit", "nowhere.toml"],
        "--stages": [*POSITIVE, "99"],
        "--chunks": POSITIVE,
        "--map": LIST,
        "--replicas": [*POSITIVE, "99"],
        "--device": DEVICE,
        "--connect": ["", " ", "host", "host:x", ":5555", "host:70000"],
        "--epochs": INTEGER,
        "--batch": POSITIVE,
        "--lr": ["", "x", "nan", "inf", "-1"],
        "--data-dir": ["{file}"],
        "--set": ["", "x", "=", "lr", "lr=", "lr=x", "lr=nan", "nonsense=1", "batch=2.5", "=1"],
        "--run": ["", " ", "{file}"],
        "--cut": ["", "nonsense"],
        "--cuts": ["", ",", "nonsense"],
        "--every": POSITIVE,
        "--bottleneck": ["", "nonsense", "/", "linear:0", "linear:1/linear:1/linear:1/linear:1"],
        "--seed": INTEGER,
        "--pixels": POSITIVE,
        "--file": ["", "{file}", "{folder}", "/nowhere/at/all"],
    },
    ("train", "digits", "--epochs", "1", "--no-tty", "--stages", "2"): {
        "--codec": CODEC,
        "--grad-codec": CODEC,
        "--schedule": ["", "nonsense"],
        "--devices": DEVICES,
    },
    ("train", "digits", "--epochs", "1", "--no-tty", "--connect", "127.0.0.1:9"): {
        "--give-up": ["", "x", "nan", "-1"],
        "--bandwidth": RATE,
        "--trace": ["", "{folder}"],
    },
    ("train", "digits", "--connect", "127.0.0.1:9", "--server", "{key}.pub"): {"--key": KEY},
    ("train", "digits", "--connect", "127.0.0.1:9", "--key", "{key}.key"): {"--server": KEY},
    ("serve", "--listen", "127.0.0.1:0"): {
        "--listen": ["", " ", "host", "host:x", ":5555", "127.0.0.1:70000", "0.0.0.0:0"],
        "--key": KEY,
        "--clients": KEY,
        "--recipe": ["", "digit"],
        "--offer": ["", "x", "=", "x=", "x=y", "=a.py:b", "x={file}:y"],
        "--file": ["/nowhere/at/all"],
        "--folder": ["", " ", "{file}"],
        "--device": DEVICE,
        "--max-clients": POSITIVE,
        "--idle": ["", "x", "nan", "-1", "0"],
        "--metrics": [*INTEGER, "70000"],
    },
    ("keygen", "alice"): {
        "": ["", " ", "../up", "a/b", "."],
        "--folder": ["", "{file}"],
    },
    ("report", "{run}"): {
        "": ["", "/nowhere/at/all", "{file}"],
        "--output": ["", "{folder}"],
    },
    ("schedule", "show", "1f1b"): {
        "": ["", "nonsense"],
        "--stages": POSITIVE,
        "--chunks": POSITIVE,
        "--map": ["", " ", ",", "x,y", "0", "0,9,0,0", "0,1,0,-1", "0,1,0,0.5"],
        "--skips": ["", ",", "x", "0", "0-9", "2-1", "0-0", "-1-2"],
        "--ahead": INTEGER,
        "--forward": NUMBER,
        "--backward": NUMBER,
        "--encode": NUMBER,
        "--wire": NUMBER,
        "--decode": NUMBER,
        "--svg": ["", "{folder}"],
    },
    ("trace", "show", "{trace}"): {
        "": ["", "{file}", "{folder}", "/nowhere/at/all"],
        "--svg": ["", "{folder}"],
        "--steps": POSITIVE,
        "--from": NUMBER,
        "--to": [value for value in NUMBER if value != "inf"],
    },
}


CASES = [
    pytest.param(command, option, value, id=f"{' '.join(command)} {option}={value}")
    for command, options in BAD.items()
    for option, values in options.items()
    for value in values
]


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """What the command lines name: a file, a folder, keys, a run, a trace and the examples."""
    pytest.importorskip("zmq")
    from thinpipe.links.net import make_keys

    place = tmp_path_factory.mktemp("things")
    (place / "file").write_text("nothing of use")
    (place / "folder").mkdir()
    make_keys(place, "key")
    write_run(place / "run")
    write_chrome(place / "trace.json", simulated()[0])
    found = {name: str(place / name) for name in ("file", "folder", "key", "run")}
    return found | {"trace": f"{place}/trace.json", "examples": str(Path(__file__).parents[1] / "examples")}


@pytest.fixture(autouse=True)
def _stopped(monkeypatch):
    """Nothing is begun: an option that gets as far as that was not checked."""
    accepted = lambda *_, **__: pytest.fail("it was accepted")  # noqa: E731
    for place in ("train.loop.Loop.run", "remote.serve_command._watch", "demo.compare.Demo.run"):
        monkeypatch.setattr(f"thinpipe.{place}", accepted)


@pytest.mark.parametrize(("command", "option", "value"), CASES)
def test_a_bad_value_of_an_option_is_explained(command, option, value, things, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, value = [word.format(**things) for word in command], value.format(**things)
    if option:
        words.append(f"{option}={value}")
    else:
        at = 2 if words[0] in ("schedule", "trace") else 1
        words[at : at + 1] = [value]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, f"{result.output}\n{result.exception!r}"
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.output
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "something was written"
