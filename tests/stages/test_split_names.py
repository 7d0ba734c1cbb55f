"""Sequences cut at the names of their layers, and what a ``Split`` is whatever it was made of."""

import copy
import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

import thinpipe
from support import Begin, End, assert_same, train_once
from thinpipe import Pipe, Split, split
from thinpipe.balance import balance_by_time
from thinpipe.errors import SplitError
from thinpipe.stages.part import grafted
from thinpipe.torchgpipe import GPipe


def sequence():
    layers = [("embed", nn.Linear(5, 6)), ("act", nn.Tanh()), ("mid", nn.Linear(6, 6)), ("head", nn.Linear(6, 3))]
    return nn.Sequential(OrderedDict(layers)).double()


def test_every_name_begins_a_stage():
    model = sequence()
    parts = split(model, at=["mid", "head"])
    assert isinstance(parts, Split) and len(parts) == 3
    assert parts.names == [["embed", "act"], ["mid"], ["head"]]
    assert [name for part in parts for name in part.state_dict()] == list(model.state_dict())
    assert parts[1][0] is model.mid and [*parts][2] is parts[-1]
    assert repr(parts) == "Split(Sequential: embed to act | mid | head)"


def test_a_split_sequence_trains_as_the_sequence_does():
    model = sequence()
    bare, x = copy.deepcopy(model), torch.randn(7, 5, dtype=torch.float64)
    pipe = Pipe(split(model, at=["mid"]), chunks=3)
    assert list(pipe.state_dict()) == list(model.state_dict())
    assert_same(train_once(pipe, x), train_once(bare, x))


def test_parts_may_be_put_together_by_a_balance():
    pipe = Pipe(split(sequence(), at=["act", "mid", "head"]), [3, 1], chunks=2)
    assert len(pipe.partitions) == 2
    assert pipe(torch.ones(4, 5, dtype=torch.float64)).shape == (4, 3)


def test_numbers_of_stages_spread_the_parameters():
    heavy = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 100), nn.Linear(100, 2))
    assert split(heavy, stages=2).at == ("3",)
    assert split(heavy, stages=4).at == ("1", "2", "3")
    with pytest.raises(ValueError, match="at most 4"):
        split(heavy, stages=5)


def test_skips_reach_over_named_cuts():
    model = nn.Sequential(Begin(4), nn.Linear(4, 4), End(4)).double()
    bare, x = copy.deepcopy(model), torch.randn(6, 4, dtype=torch.float64)
    assert_same(train_once(Pipe(split(model, at=["1", "2"]), chunks=2), x), train_once(bare, x))


def test_names_that_are_not_there_are_answered_with_those_there_are():
    with pytest.raises(SplitError, match=r"begin at 'middle'; the model can be cut at act, mid, head"):
        split(sequence(), at=["middle"])
    with pytest.raises(SplitError, match="begin at 'embed'"):
        split(sequence(), at=["embed"])
    with pytest.raises(SplitError, match="head, mid are not in the order in which they run"):
        split(sequence(), at=["head", "mid"])


def test_a_question_that_is_not_clear_is_refused():
    for arguments in ({}, {"at": ["mid"], "stages": 2}):
        with pytest.raises(SplitError, match="either names"):
            split(sequence(), **arguments)
    with pytest.raises(SplitError, match=r"write at=\['mid'\]"):
        split(sequence(), at="mid")
    with pytest.raises(SplitError, match="pass example="):
        split(nn.Bilinear(2, 2, 2), at=["weight"])
    with pytest.raises(SplitError, match="cut at the names of its modules; instead of stages=2 pass at="):
        split(nn.Bilinear(2, 2, 2), stages=2)


class Net(nn.Module):
    """A model whose forward is a program of its own."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.features(x).tanh())


def balanced(model):
    balance_by_time(2, model, torch.randn(4, 5))


@pytest.mark.parametrize(
    "take", [Pipe, lambda model: Pipe(model, [1, 1]), lambda model: GPipe(model, [1, 1], devices=["cpu"] * 2), balanced]
)
def test_a_model_that_is_no_sequence_is_answered_with_a_split_that_works(take):
    model, inputs = Net(), torch.randn(4, 5)
    with pytest.raises(SplitError, match=r"got Net; cut it at the names of its modules: thinpipe\.Pipe") as told:
        take(model)
    advice = re.search(r"thinpipe\.Pipe\(.*\)\)", str(told.value))[0]
    pipe = eval(advice, {"thinpipe": thinpipe, "model": model, "inputs": inputs})
    assert len(pipe.partitions) == 2
    torch.testing.assert_close(pipe(inputs), model(inputs))


@pytest.mark.parametrize("model", [None, [nn.Linear(2, 2)], "model", Net], ids=["None", "list", "text", "class"])
def test_what_is_no_model_at_all_is_told_so(model):
    with pytest.raises(SplitError, match=r"pass nn\.Sequential\(\*layers\)"):
        Pipe(model)
    with pytest.raises(SplitError, match=r"split takes a model, an nn\.Module, got"):
        split(model, at=["head"])


def test_the_model_comes_back_with_the_states_of_those_who_trained_it():
    model, other = sequence(), sequence()
    parts = split(model, at=["mid"])
    assert parts.to_model() is model
    states = [part.state_dict() for part in split(other, at=["mid"])]
    parts.to_model(states)
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))
    with pytest.raises(SplitError, match=r"have 'tail' that the model has not"):
        parts.to_model([*states, {"tail": torch.ones(1)}])


def tree(**children):
    """Nests modules: a module is itself, a dictionary a container."""
    made = nn.Module()
    for name, child in children.items():
        made.add_module(name, tree(**child) if isinstance(child, dict) else child)
    return made


def test_trees_are_joined_where_they_meet_and_kept_where_they_do_not():
    a, b, c = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    whole = grafted([tree(base={"first": a, "inner": {"0": b}}), tree(base={"inner": {"1": c}}, head=a)])
    assert [name for name, _ in whole.named_parameters(remove_duplicate=False)] == [
        f"{name}.{kind}"
        for name in ("base.first", "base.inner.0", "base.inner.1", "head")
        for kind in ("weight", "bias")
    ]
    assert whole.base.inner.get_submodule("1") is c
    whole.eval()
    assert not (a.training or b.training or c.training)
