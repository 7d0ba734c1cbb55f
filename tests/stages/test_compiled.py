"""Stages that are compiled compute what they computed before, each as one graph, skips and all."""

import copy

import pytest
import torch
from torch import nn

from support import Begin, End, assert_same, train_once
from thinpipe import Pipe, bottleneck, split
from thinpipe.stages.compiled import compiled
from thinpipe.train import resolved
from thinpipe.train.in_process import InProcess
from thinpipe.train.local import Local
from thinpipe.train.parts import stages_of, whole


@pytest.fixture
def graphs():
    """A backend that runs what it is given, and the graphs that it was given."""
    torch._dynamo.reset()
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph

    yield seen, backend
    torch._dynamo.reset()


def skipping():
    torch.manual_seed(0)
    return nn.Sequential(Begin(16), nn.Tanh(), End(16), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()


def test_a_sequence_with_skips_is_one_graph_and_computes_the_same(graphs):
    seen, backend = graphs
    model, x = skipping(), torch.rand(6, 16, dtype=torch.float64, requires_grad=True)
    twin = copy.deepcopy(model)
    run = compiled(twin, backend=backend)
    plain, fast = x.detach().requires_grad_(), x.detach().requires_grad_()
    model(plain).square().sum().backward()
    run(fast).square().sum().backward()
    assert len(seen) == 1
    assert torch.equal(plain.grad, fast.grad)
    for (name, mine), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad), name
    assert torch.equal(twin[3].running_mean, model[3].running_mean)


def test_every_residual_block_of_mobilenet_is_in_the_graph(graphs):
    seen, backend = graphs
    recipe = resolved("cifar10-finetune", {"weights": "none", "pixels": 32, "pool": "mean", "dropout": 0.0})
    model, x = whole(recipe).train(), torch.rand(2, 3, 64, 64)
    expected = copy.deepcopy(model)(x)
    assert torch.equal(compiled(model, backend=backend)(x), expected)
    assert len(seen) == 1


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("balance", [[5], [3, 2], [1, 4]], ids=str)
def test_a_compiled_pipe_trains_like_one_device(graphs, balance, chunks):
    _, backend = graphs
    model, x = skipping()[:3], torch.rand(6, 16, dtype=torch.float64, requires_grad=True)
    model = nn.Sequential(*model, nn.Linear(16, 8), nn.Linear(8, 4)).double()
    pipe = Pipe(copy.deepcopy(model), balance, chunks=chunks, checkpoint="never")
    pipe.compile(backend=backend)
    names = list(pipe.state_dict())
    assert_same(train_once(pipe, x), train_once(model, x))
    assert names == list(model.state_dict()), "compiling changes no name"


def test_a_stage_of_one_micro_batch_is_one_graph_and_stays_compiled_when_it_is_cut_again(graphs):
    seen, backend = graphs
    pipe = Pipe(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), [2, 2], checkpoint="never")
    pipe.compile(backend=backend)
    pipe(torch.rand(4, 8))
    assert len(seen) == 2
    setattr(pipe, "0", nn.Linear(8, 8))
    pipe(torch.rand(4, 8))
    assert len(seen) > 2


def test_micro_batches_are_compiled_once_a_step_has_shown_that_no_stage_draws(graphs):
    seen, backend = graphs
    pipe = Pipe(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), [2, 2], chunks=4, checkpoint="never")
    pipe.compile(backend=backend)
    for expected in (0, 2, 2):
        pipe(torch.rand(8, 8)).sum().backward()
        assert len(seen) == expected


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_shape_is_compiled_unless_all_are_asked_for(graphs, dynamic):
    seen, backend = graphs
    pipe = Pipe(nn.Sequential(nn.Linear(8, 8), nn.Dropout()), [2], checkpoint="never")
    pipe.compile(backend=backend, dynamic=dynamic)
    pipe(torch.rand(4, 8))
    assert len(seen) == 1
    pipe(torch.rand(3, 8))
    pipe.eval()(torch.rand(4, 8))
    pipe.train()(torch.rand(4, 8))
    assert (len(seen) == 1) is not dynamic


def test_a_bottleneck_is_compiled_with_its_stage(graphs):
    seen, backend = graphs
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten())
    x = torch.rand(4, 3, 12, 12)
    pipe = Pipe(bottleneck.insert(split(model, ["2"]), "conv:3k2s2", example=x), checkpoint="never")
    expected = pipe(x)
    pipe.compile(backend=backend)
    assert torch.equal(pipe(x), expected)
    assert len(seen) == 2


def test_a_skip_that_leaves_its_stage_is_left_to_the_pipe(graphs):
    _, backend = graphs
    model, x = skipping(), torch.rand(6, 16, dtype=torch.float64, requires_grad=True)
    pipe = Pipe(copy.deepcopy(model), [2, 3], checkpoint="never")
    pipe.compile(backend=backend)
    assert_same(train_once(pipe, x), train_once(model, x))


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_recipe_trains_compiled_as_it_does_otherwise(tmp_path, monkeypatch, graphs, chunks):
    _, backend = graphs
    recipe = resolved("digits", {"batch": 16, "chunks": chunks})
    whole_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: whole_compile(model, backend=backend, **options))
    x, y = torch.rand(16, 1, 8, 8), torch.arange(16) % 10

    def losses(make):
        trainer = make()
        return [float(trainer.step(x, y, lr=0.1)) for _ in range(3)], trainer.evaluate(x)

    def in_process(place, *, compile):
        return InProcess(
            recipe, stages_of(recipe), folder=tmp_path / place, every=9, devices=["cpu"] * 3, compile=compile
        )

    for plain, fast in (
        (
            lambda: Local(recipe, folder=tmp_path / "a", every=9, device="cpu"),
            lambda: Local(recipe, folder=tmp_path / "b", every=9, device="cpu", compile=True),
        ),
        (lambda: in_process("c", compile=False), lambda: in_process("d", compile=True)),
    ):
        (expected, outputs), (found, again) = losses(plain), losses(fast)
        assert found == expected
        assert torch.equal(outputs, again)


def test_counting_what_a_bottleneck_spares_compiles_nothing_again(tmp_path, monkeypatch, graphs):
    seen, backend = graphs
    recipe = resolved("digits", {"batch": 16})
    whole_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: whole_compile(model, backend=backend, **options))
    x, y = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    stages = bottleneck.insert(stages_of(recipe), {0: "conv:2k2s2"}, example=x)

    def traffic(place, *, compile):
        trainer = InProcess(recipe, stages, folder=tmp_path / place, every=9, devices=["cpu"] * 3, compile=compile)
        for _ in range(3):
            trainer.step(x, y, lr=0.1)
        trainer.evaluate(x[:5])
        return trainer.traffic()

    expected = traffic("plain", compile=False)
    assert not seen
    assert traffic("compiled", compile=True) == expected
    assert len(seen) == 3
