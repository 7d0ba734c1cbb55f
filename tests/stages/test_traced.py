"""Models that are no sequences, cut at the names of their modules by tracing."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from support import InMicroBatches, assert_same, train_once
from thinpipe import Pipe, split
from thinpipe.errors import BatchError, SplitError

WIDTH = 6


class Block(nn.Module):
    """A residual block whose activation is one module called twice."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout(drop)

    def forward(self, x):
        return x + self.drop(self.act(self.outer(self.act(self.inner(x)))))


class Branched(nn.Module):
    """Uses what its first module computes again at the end, and has a parameter, a buffer and a constant of its own."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.embed = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(3))
        self.scale = nn.Parameter(torch.linspace(1, 2, WIDTH))
        self.register_buffer("shift", torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x, weight):
        early = self.embed(x)
        hidden = early
        for block in self.blocks:
            hidden = block(hidden)
        hidden = hidden * self.scale + self.shift * torch.tensor(3.0)
        return {"logits": self.head(hidden + early), "weighted": early * weight[:, None]}


def inputs(rows):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 4, generator=generator).double(), torch.rand(rows, generator=generator).double()


class Spread(nn.Module):
    """The bare model, called with a tuple as a pipe is."""

    def __init__(self, model):
        super().__init__()
        self._modules, self._parameters, self._buffers = model._modules, model._parameters, model._buffers
        self.body = [model]

    def forward(self, value):
        return self.body[0](*value)


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_model_with_a_branch_trains_as_itself_in_batches_of_any_size(checkpoint):
    model = Branched().double()
    bare = Spread(copy.deepcopy(model))
    parts = split(model, at=["blocks.1", "head"], example=inputs(4))
    assert parts.names == [["embed", "blocks.0"], ["blocks.1", "blocks.2"], ["head"]]
    pipe = Pipe(parts, chunks=3, checkpoint=checkpoint)
    assert set(pipe.state_dict()) == set(model.state_dict()) == set(bare.body[0].state_dict())
    for rows in (9, 7, 2):
        ours, theirs = train_once(pipe, inputs(rows)), train_once(bare, inputs(rows))
        ours.buffers = {name: tensor for name, tensor in ours.buffers.items() if name in theirs.buffers}
        assert_same(ours, theirs)
        pipe.zero_grad()
        bare.zero_grad()
    assert parts.to_model() is model


def test_the_model_is_left_as_it_was():
    """The front end marks modules by forwards of their own, and tracing goes through both modes."""
    model = Branched(drop=0.5).double()
    model.blocks[1].eval()
    torch.manual_seed(4)
    before = torch.default_generator.get_state()
    split(model, at=["blocks.1"], example=inputs(3))
    assert torch.equal(before, torch.default_generator.get_state())
    assert "forward" not in vars(model.blocks[1]) and "_orig_forward" not in vars(model.blocks[1])
    assert [block.training for block in model.blocks] == [True, False, True]


def test_dropout_layers_draw_as_in_the_model_and_rest_in_evaluation():
    model = Branched(drop=0.5).double()
    bare = copy.deepcopy(model)
    pipe = Pipe(split(model, at=["blocks.1"], example=inputs(4)), chunks=1)
    for training in (True, False, True):
        for module in (pipe.train(training), bare.train(training)):
            torch.manual_seed(3)
            module.found = module(inputs(4))["logits"] if module is pipe else module(*inputs(4))["logits"]
        assert torch.equal(pipe.found, bare.found)


class FunctionalDropout(nn.Module):
    """Its dropout is no module: a graph has its mode as a constant."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(functional.dropout(torch.tanh(self.a(x)), 0.5, self.training))


def test_a_mode_that_is_written_into_the_graph_has_a_graph_for_each():
    model = FunctionalDropout()
    bare = copy.deepcopy(model)
    pipe = Pipe(split(model, at=["b"], example=torch.randn(3, 4)), chunks=1)
    x = torch.randn(3, 4)
    for training in (True, False, True):
        for module in (pipe, bare):
            module.train(training).zero_grad()
            torch.manual_seed(3)
            module(x).sum().backward()
        grads = [{name: p.grad for name, p in module.named_parameters()} for module in (pipe, bare)]
        torch.testing.assert_close(*grads, rtol=0, atol=0)
    doubled = {name: tensor * 2 for name, tensor in bare.state_dict().items()}
    for module in (pipe, bare):
        module.load_state_dict(doubled)
    assert torch.equal(pipe.eval()(x), bare.eval()(x)), "both graphs have the same weights"


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.norm(self.a(x)) + x)


def test_batch_norm_goes_on_as_the_layer_it_is():
    model = Normed().double()
    x = torch.randn(8, 4).double()
    bare = InMicroBatches(copy.deepcopy(model), 2)
    pipe = Pipe(split(model, at=["norm"], example=x[:2]), chunks=4, checkpoint="always")
    assert_same(train_once(pipe, x), train_once(bare, x))
    deferred = Pipe(split(Normed().double(), at=["norm"], example=x[:2]), chunks=4, deferred_batch_norm=True)
    deferred(x)
    assert deferred.norm.num_batches_tracked == 1


class CountsRows(nn.Module):
    """Uses the number of rows: nothing would fail with another one, and the mean would be wrong."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x)) / x.shape[0]


def test_a_model_that_counts_its_rows_takes_no_others():
    model = CountsRows()
    pipe = Pipe(split(model, at=["b"], example=torch.randn(4, 4)), chunks=2)
    x = torch.randn(8, 4)
    torch.testing.assert_close(pipe(x), model.b(model.a(x)) / 4)
    with pytest.raises(BatchError, match=r"traced with 4 rows, and got 3: .* batches of chunks x 4 rows"):
        pipe(torch.randn(6, 4))


def test_inputs_of_another_kind_than_the_example_are_refused():
    pipe = Pipe(split(Branched().double(), at=["head"], example=inputs(4)), chunks=2)
    x, weight = inputs(4)
    for wrong in ((x[:, :3], weight), (x.float(), weight), x, {"x": x, "weight": weight}):
        with pytest.raises(BatchError, match="traced with inputs"):
            pipe(wrong)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mid, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.mid(self.table(ids))))


def test_a_weight_that_two_stages_share_gets_the_gradients_of_both():
    model = Tied().double()
    bare, ids = copy.deepcopy(model), torch.randint(9, (6, 3))
    pipe = Pipe(split(model, at=["mid", "out"], example=ids[:2]), chunks=3)
    for _ in range(3):
        assert_same(train_once(pipe, ids), train_once(bare, ids))


def test_copies_compute_the_same():
    pipe = Pipe(split(Tied(), at=["out"], example=torch.zeros(2, 3, dtype=torch.int64)), chunks=2)
    ids = torch.randint(9, (6, 3))
    other = copy.deepcopy(pipe)
    torch.testing.assert_close(other(ids), pipe(ids))
    assert other.out.weight is other.table.weight is not pipe.out.weight


class Undecided(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x)) if x.sum() > 0 else self.a(x)


def test_what_cannot_be_traced_or_cut_is_told_why():
    x = torch.randn(3, 4)
    with pytest.raises(SplitError, match=r"Undecided cannot be traced: .* nn.Sequential, or as a list of stages"):
        split(Undecided(), at=["b"], example=x)
    with pytest.raises(SplitError, match=r"no module 'c'; there are a, norm, b"):
        split(Normed(), at=["c"], example=x)
    with pytest.raises(SplitError, match="something must run before the first"):
        split(Normed(), at=["a"], example=x)
    with pytest.raises(SplitError, match="not in the order in which they run"):
        split(Normed(), at=["b", "norm"], example=x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.b(self.a(x)))


def test_a_module_with_weights_that_runs_twice_is_refused():
    with pytest.raises(SplitError, match="give every call a module of its own"):
        split(Twice(), at=["b"], example=torch.randn(3, 4))
