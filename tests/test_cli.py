"""The command line: help that teaches, a demo that compares, a bench whose last line is JSON."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import thinpipe
from thinpipe.bench.measure import in_turns
from thinpipe.cli import app

COLUMNS, LINES = 100, 45
"""A screen."""

ROOT = get_command(app)
EXAMPLE = re.compile(r"\[bold\]((?:thinpipe|torchrun) .+?)\[/")


def run(*words):
    return CliRunner(env={"COLUMNS": str(COLUMNS)}).invoke(app, list(words))


def said(result):
    """What was printed, as if there were neither boxes nor ends of lines."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def tree(command, words=()):
    yield pytest.param(words, command, id=" ".join(("thinpipe", *words)))
    for name, each in getattr(command, "commands", {}).items():
        yield from tree(each, (*words, name))


def parse(words):
    """Reads the words of a command line as their command would before it does anything; gives the command."""
    command = ROOT
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or words[0].startswith("--"), f"{words} is no command"
    command.make_context("thinpipe", words)
    return command


@pytest.mark.parametrize(("words", "command"), list(tree(ROOT)))
def test_help_fits_a_screen_and_has_an_example_that_parses(words, command, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    result = run(*words, "--help")
    lines = result.output.rstrip("\n").splitlines()
    assert result.exit_code == 0 and max(map(len, lines)) <= COLUMNS
    assert len(lines) <= LINES, f"give options that are seldom used the panel MORE of thinpipe.help:\n{result.output}"
    examples = EXAMPLE.findall(command.help)
    assert examples and all(" ".join(example.split()) in said(result) for example in examples)
    spoken = [shlex.split(example) for example in examples]
    found = [parse(each[each.index("thinpipe") + 1 :]) for each in spoken]
    assert hasattr(command, "commands") or any(
        one.callback.__wrapped__ is command.callback.__wrapped__ for one in found
    )


@pytest.mark.parametrize("words", [("train",), ("check",)], ids=" ".join)
def test_what_help_leaves_out_help_all_and_the_page_of_commands_have(words):
    brief, full = run(*words, "--help").output, run(*words, "--help-all").output
    page = (Path(__file__).parent.parent / "docs/cli.md").read_text()
    options = [option.opts[-1] for option in ROOT.commands[words[0]].params if option.opts[-1].startswith("--")]
    left_out = [option for option in options if not re.search(rf"{option}\b(?!-)", brief)]
    assert left_out and "--help-all" in brief
    assert all(re.search(rf"{option}\b", full) and f"`{option}" in page.replace(", ", "`") for option in left_out)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("trian digits", "'train'"),
        ("bench unet-sped", "'unet-speed'"),
        ("bench unet-speed --rows basline", "did you mean baseline?"),
        ("bench link --variants codd", "did you mean coded?"),
        ("bench pipeline-vs-dp --models mobilenet", "did you mean mobilenetv2?"),
        ("reproduce two-machine", "'two-machines'"),
        ("schedule show gpip", "did you mean gpipe?"),
        ("codecs blok:4", "did you mean block:B/G?"),
        ("train digit", "did you mean digits?"),
        ("train digits --epoch 3", "--epochs"),
        ("train digits --set momentm=0.8", "did you mean momentum?"),
        ("train digits --stages 2 --codec hda:4", "did you mean had:B/G?"),
        ("train digits --stages 2 --schedule gpip", "did you mean gpipe?"),
        ("train digits --cuts widr,head", "did you mean wide?"),
    ],
)
def test_a_name_that_nothing_has_is_answered_with_the_nearest(words, nearest):
    result = run(*words.split())
    assert result.exit_code == 2 and nearest in said(result)


def test_a_codec_like_no_other_is_answered_with_all_there_are():
    assert "there are none, fp16" in said(run("codecs", "qqq:4"))


def test_the_version_is_that_of_the_package():
    assert run("--version").output.strip() == thinpipe.__version__


def test_the_console_script_is_installed():
    done = subprocess.run([sys.executable, "-m", "thinpipe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == thinpipe.__version__


def test_codecs_are_listed_and_their_bytes_computed():
    listed = run("codecs")
    assert all(name in listed.output for name in thinpipe.codecs.CATALOGUE)
    result = run("codecs", "block:4", "sort:8|zstd", "--shape", "32,128,768", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    size = thinpipe.codec("block:4").nbytes([32, 128, 768], torch.bfloat16)
    assert f"{size:,}" in result.output and "at most" in result.output and "6,291,456 bytes" in result.output


@pytest.mark.parametrize(
    "words", [("block:99",), ("block:4", "--shape", "3,x"), ("block:4", "--dtype", "int8")], ids=" ".join
)
def test_codecs_that_cannot_be_computed_are_explained(words):
    result = run("codecs", *words)
    assert result.exit_code == 2
    assert "from 1 to 16" in result.output or "a shape is written as" in result.output


def test_the_bench_ends_with_one_json_object_and_records_it(tmp_path):
    path = tmp_path / "deep" / "record.json"
    result = run("bench", "pipe", "--tiny", "--rounds", "2", "--json", "--output", str(path))
    assert result.exit_code == 0, result.output
    record = json.loads(result.output.splitlines()[-1])
    assert json.loads(path.read_text()) == record
    assert record["overhead_1x1"] > 0 and record["speedup_2"] > 0
    assert record["ideal_speedup_2"] == pytest.approx(16 / 9, abs=1e-4)
    assert len(record["samples"]["bare"]) == 2 and len(record["samples"]["bare small"]) == 10
    assert record["machine"]["versions"]["thinpipe"] == thinpipe.__version__
    assert record["settings"]["devices"] == ["cpu", "cpu"]


def test_the_bench_measures_torchgpipe_where_it_is_installed():
    pytest.importorskip("torchgpipe")
    record = json.loads(run("bench", "pipe", "--tiny", "--rounds", "1", "--json").output.splitlines()[-1])
    assert record["torchgpipe_speedup_2"] > 0 and record["over_torchgpipe"] > 0


def test_the_bench_refuses_a_wrong_number_of_devices():
    result = run("bench", "pipe", "--devices", "cpu")
    assert result.exit_code == 2 and "two devices" in result.output


def test_turns_begin_with_another_variant_each_round():
    order = []
    variants = {name: lambda name=name: order.append(name) for name in "abc"}
    samples = in_turns(variants, rounds=3, warm_up=0)
    assert "".join(order) == "abcbcacab"
    assert all(len(seconds) == 3 for seconds in samples.seconds.values())
