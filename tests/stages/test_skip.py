"""Skips: declared names that pair up, in a plain nn.Sequential and across stages."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, assert_trains_like_one_device
from thinpipe import Pipe
from thinpipe.errors import SkipError, SkipUseError
from thinpipe.skip import Namespace, pop, skippable, stash, verify_skippables
from thinpipe.stages.split import split


@skippable(stash=["x"])
class Stash(nn.Module):
    def forward(self, x):
        yield stash("x", x)
        return x * 2


@skippable(pop=["x"])
class Pop(nn.Module):
    def forward(self, x):
        skip = yield pop("x")
        return x + skip


class Middle(nn.Module):
    def forward(self, x):
        return x * 3


def test_skips_work_without_a_pipe():
    model = nn.Sequential(Stash(), Middle(), Pop())
    assert torch.equal(model(torch.ones(1)), torch.full((1,), 7.0))
    assert torch.equal(model(torch.ones(1)), torch.full((1,), 7.0)), "nothing is left over from the first time"


def test_default_and_isolated_names_may_be_mixed():
    ns = Namespace()
    model = nn.Sequential(Stash(), Stash().isolate(ns), Middle(), Pop().isolate(ns), Pop())
    verify_skippables(model)
    for balance in ([5], [1, 4], [2, 3], [1, 1, 1, 1, 1]):
        x = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
        assert_trains_like_one_device(model, x, balance, chunks=2)


def test_a_part_of_the_names_can_be_isolated():
    @skippable(stash=["a", "b"])
    class Two(nn.Module):
        def forward(self, x):
            yield stash("a", x)
            yield stash("b", x * 2)
            return x

    @skippable(pop=["a", "b"])
    class Both(nn.Module):
        def forward(self, x):
            b = yield pop("b")
            a = yield pop("a")
            return a - b

    ns = Namespace()
    model = nn.Sequential(Two().isolate(ns, only=["a"]), Both().isolate(ns, only=["a"]))
    verify_skippables(model)
    assert torch.equal(model(torch.ones(2)), -torch.ones(2))
    with pytest.raises(SkipUseError, match="'c' not declared"):
        Two().isolate(ns, only=["c"])


def test_skips_travel_straight_from_stash_to_pop():
    model = nn.Sequential(Stash(), Middle(), Middle(), Pop())
    stages = split(model, [1, 1, 1, 1], [torch.device("cpu")] * 4)
    assert [stage.stashes for stage in stages] == [{(None, "x"): 3}, {}, {}, {}]
    assert [stage.pops for stage in stages] == [{}, {}, {}, {(None, "x"): 0}]


def test_a_skip_inside_a_layer_of_layers_is_found():
    model = nn.Sequential(nn.Sequential(Stash(), Middle()), nn.Sequential(Middle(), Pop()))
    x = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)
    for checkpoint in CHECKPOINT_MODES:
        assert_trains_like_one_device(model, x, [1, 1], chunks=2, checkpoint=checkpoint)


def test_nothing_may_be_stashed_as_a_skip():
    @skippable(stash=["x"])
    class Nothing(nn.Module):
        def forward(self, x):
            yield stash("x", None)
            return x

    @skippable(pop=["x"])
    class Expect(nn.Module):
        def forward(self, x):
            assert (yield pop("x")) is None
            return x

    assert Pipe(nn.Sequential(Nothing(), Expect()), [1, 1], devices=["cpu"] * 2, chunks=2)(torch.rand(4)).shape == (4,)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_skip_is_freed_once_it_was_popped(checkpoint):
    """After the forward of a checkpointed or evaluated batch nobody may hold the stashed tensor but who must."""
    refs = []

    @skippable(stash=["x"])
    class Watched(nn.Module):
        def forward(self, x):
            skip = x * 2
            refs.append(weakref.ref(skip))
            yield stash("x", skip)
            return x

    pipe = Pipe(
        nn.Sequential(Watched(), Middle(), Pop()), [1, 1, 1], devices=["cpu"] * 3, chunks=2, checkpoint=checkpoint
    )
    x = torch.rand(4, 2, requires_grad=True)
    with torch.no_grad():
        pipe(x)
    gc.collect()
    assert refs and all(ref() is None for ref in refs)
    pipe(x).sum().backward()
    gc.collect()
    assert all(ref() is None for ref in refs)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Stash, Middle], "no module declared 'x' as poppable but stashed"),
        ([Middle, Pop], "'1' declared 'x' as poppable but it was not stashed"),
        ([Stash, Stash, Pop], "'1' redeclared 'x' as stashable"),
        ([Stash, Pop, Pop], "'2' redeclared 'x' as poppable"),
        ([Pop, Stash], "'0' declared 'x' as poppable but it was not stashed"),
    ],
)
def test_skips_that_do_not_pair_up_are_named(layers, message):
    with pytest.raises(SkipError, match=message):
        verify_skippables(nn.Sequential(*[layer() for layer in layers]))


def test_a_name_cannot_be_stashed_and_popped_by_one_layer():
    both = skippable(stash=["x"], pop=["x"])(Middle)
    with pytest.raises(SkipError, match="both as stashable and as poppable"):
        verify_skippables(nn.Sequential(both()))


def misbehaving(commands, **declared):
    @skippable(**declared)
    class Layer(nn.Module):
        def forward(self, x):
            for command in commands:  # noqa: UP028 - `yield from` a list cannot be answered
                yield command
            return x

    return Layer()


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        (misbehaving([stash("y", None)], stash=["x"]), SkipUseError, "'y' has not been declared as stashable"),
        (misbehaving([pop("y")], stash=["x"]), SkipUseError, "'y' has not been declared as poppable"),
        (misbehaving([], stash=["x"]), SkipUseError, "'x' must be stashed but have not"),
        (misbehaving(["what"], stash=["x"]), SkipError, "is not a command"),
        (misbehaving([pop("x")], pop=["x"]), SkipUseError, "'x' has not been stashed"),
    ],
    ids=["stash", "pop", "missing", "alien", "early"],
)
def test_a_layer_that_does_not_do_what_it_declared_is_told(layer, error, message):
    with pytest.raises(error, match=message):
        layer(torch.ones(1))


def test_a_layer_must_pop_what_it_declared_once():
    for commands, message in (([], "must be popped"), ([pop("x"), pop("x")], "popped twice")):
        model = nn.Sequential(Stash(), misbehaving(commands, pop=["x"]))
        with pytest.raises(SkipUseError, match=message):
            Pipe(model, [1, 1], devices=["cpu"] * 2)(torch.ones(2))


def test_a_layer_that_returns_without_yielding_is_an_ordinary_layer():
    plain = skippable()(Middle)
    assert torch.equal(plain()(torch.ones(1)), torch.full((1,), 3.0))
    assert "Middle()" in repr(plain())


def test_a_layer_can_be_pickled_and_so_can_a_pipe_of_it():
    model = nn.Sequential(Stash(), Middle(), Pop())
    again = pickle.loads(pickle.dumps(Pipe(model, [1, 2], devices=["cpu"] * 2, chunks=2)))
    assert torch.equal(again(torch.ones(2, 1)), torch.full((2, 1), 7.0))


def test_a_copied_model_keeps_its_namespaces_apart():
    ns = Namespace()
    model = copy.deepcopy(nn.Sequential(Stash(), Stash().isolate(ns), Pop().isolate(ns), Pop()))
    verify_skippables(model)
    assert model[1].namespaces["x"] == ns
