"""``thinpipe probe``: what codecs do to one step of a model of the user's own."""

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe import codec
from thinpipe.check.probe import Probe
from thinpipe.check.subject import Subject, squared_distance
from thinpipe.check.target import UsageError
from thinpipe.cli import app

SMALL = str(Path(__file__).parents[2] / "examples" / "digits.py") + ":small"


def probe(*words):
    return CliRunner().invoke(app, ["probe", *map(str, words)])


def found(*words):
    result = probe(*words, "--json")
    assert result.exit_code == 0, result.output
    return {each["codec"]: each for each in json.loads(result.stdout.splitlines()[-1])["codecs"]}


def subject(model, inputs):
    devices = (torch.device("cpu"),) * 3
    return Subject(model, inputs, squared_distance, devices, lr=0.0, seed=0, autocast=None)


def test_fewer_bits_err_more_and_what_is_not_packed_does_not_err():
    codecs = found(SMALL, "--balance", "2,4", "--codecs", "none,block:8,block:4,block:2")
    assert codecs["none"]["bits"] == pytest.approx(32, rel=0.02)
    assert codecs["none"]["outputs"] == codecs["none"]["gradients"] == codecs["none"]["back"][0] == 0
    for name in ("outputs", "gradients"):
        errors = [codecs[spec][name] for spec in ("none", "block:8", "block:4", "block:2")]
        assert errors == sorted(errors) and errors[1] > 0
    back = [codecs[spec]["back"] for spec in ("none", "block:8", "block:4", "block:2")]
    assert [first for first, _ in back] == sorted(first for first, _ in back)
    assert {last for _, last in back} == {0.0}, "no gradient reaches the last stage over a cut"


def test_the_errors_are_those_of_the_step_that_a_codec_makes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4))
    x = torch.randn(16, 20)
    got = Probe(subject(model, x), (2, 1)).run("uniform:4")
    a = codec("uniform:4")
    hidden = model[:2](x)
    right, wrong = model[2](hidden), model[2](a.decode(a.encode(hidden.detach())))
    assert got.outputs == pytest.approx(((wrong - right).norm() / right.norm()).item(), rel=1e-5)
    hidden.retain_grad()
    squared_distance(right).backward(retain_graph=True)
    true = [p.grad.clone() for p in model[0].parameters()]
    model.zero_grad()
    hidden.backward(a.decode(a.encode(hidden.grad)))
    off = [p.grad - b for p, b in zip(model[0].parameters(), true, strict=True)]
    length = sum(float(b.square().sum()) for b in true) ** 0.5
    assert got.back[0] == pytest.approx(sum(float(b.square().sum()) for b in off) ** 0.5 / length, rel=1e-5)


def test_every_stage_before_a_cut_has_its_own_error():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    first, second, last = Probe(subject(model, torch.randn(12, 8)), (1, 4, 1)).run("block:2").back
    assert first > 0 and second > 0 and last == 0
    assert Probe(subject(model, torch.randn(12, 8)), (2, 1, 3)).run("block:2").back[1] is None, "it has no parameters"


def test_the_table_says_what_the_numbers_mean():
    result = probe(SMALL, "--stages", 2, "--codecs", "had:4")
    assert result.exit_code == 0
    assert "had:4" in result.output and "worse than that" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--codecs", "block4"), "did you mean block:B/G"),
        (("--balance", "2,4", "--stages", "2"), "three ways to say where to cut"),
        (("--stages", "1"), "one stage has no cut"),
        (("--balance", "2,2"), "cut as 2,2"),
    ],
)
def test_what_makes_no_sense_is_refused(words, why):
    result = probe(SMALL, *words)
    assert result.exit_code == 2
    assert why in " ".join(result.output.replace("│", " ").split())


def test_dropout_stays_on_and_drops_the_same_in_every_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    inputs = torch.randn(12, 8)
    dropped, kept = (Probe(subject(each, inputs), (2, 3)) for each in (model, copy.deepcopy(model).eval()))
    assert dropped.run("none").outputs == dropped.run("none").gradients == 0
    assert dropped.run("block:4").outputs != kept.run("block:4").outputs


def test_a_model_that_cannot_be_repeated_is_refused():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + random.random()  # which are not torch's

    class Lost(nn.Module):
        def forward(self, x):
            return x / 0 * 0

    with pytest.raises(UsageError, match="not finite"):
        Probe(subject(nn.Sequential(nn.Linear(4, 4), Lost()), torch.randn(3, 4)), (1, 1))
    with pytest.raises(UsageError, match="the same twice"):
        Probe(subject(nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Linear(4, 2)), torch.randn(3, 4)), (2, 1))
