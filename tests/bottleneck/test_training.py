"""Models train with bottlenecks at their cuts as they would with the same modules on one device."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from bottleneck.models import TEXTS, batch, chained, cut, example, grads, images, loss_fn
from codec_support import SPECS
from support import Begin, End
from thinpipe import Pipe, codec, split
from thinpipe.bottleneck import BottleneckError, bottleneck_state, fit, insert, load_bottlenecks, without_bottlenecks
from thinpipe.codecs.catalogue import CATALOGUE
from thinpipe.data.digits import load_digits
from thinpipe.train.digits import network
from thinpipe.train.parts import example as row_of
from thinpipe.train.parts import stages_of
from train.small import small

EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize("rows", [6, 7, 1])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_gradients_are_those_of_the_uncut_model_with_the_same_modules(rows, checkpoint):
    """BatchNorm sees other batches in micro-batches, so this model has none."""
    stages = insert(cut(images(norm=False)), TEXTS, example=example())
    bare = copy.deepcopy(chained(stages))
    x, y = batch(rows)
    loss_fn(bare(x), y).backward()
    pipe = Pipe(stages, chunks=3, checkpoint=checkpoint)
    loss_fn(pipe(x), y).backward()
    ours, theirs = grads(pipe), grads(bare)
    assert {name.split(".", 1)[1] for name in theirs} == set(ours)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name.split(".", 1)[1]], grad, **EXACT)
    assert all(ours[name].abs().sum() > 0 for name in ours if name.startswith("bottleneck"))


def test_what_crosses_a_cut_is_the_small_tensor_both_ways():
    stages = insert(cut(images()), TEXTS, example=example())
    pipe = Pipe(stages, chunks=2)
    x, y = batch(6)
    loss_fn(pipe(x), y).backward()
    # 5 x 3 x 3 of 4 x 10 x 10, and 4 x 2 x 2 of 8 x 5 x 5, six rows of eight bytes.
    for (there, back), elements in zip(pipe.traffic(), (5 * 9, 4 * 4), strict=True):
        assert there.raw == back.raw == 6 * 8 * elements


def test_codecs_of_every_kind_are_among_those_that_are_tried():
    tried = {
        stage.split(":")[0].split(",")[0].removeprefix("ef(").rstrip(")") for spec in SPECS for stage in spec.split("|")
    }
    assert set(CATALOGUE) <= tried


@pytest.mark.parametrize("spec", SPECS)
def test_every_codec_packs_what_a_bottleneck_leaves(spec):
    stages = insert(cut(images(torch.float32)), TEXTS, example=example(torch.float32))
    pipe = Pipe(stages, chunks=2, codec=spec, grad_codec=spec)
    x, y = batch(5, torch.float32)
    loss_fn(pipe(x), y).backward()
    found = grads(pipe)
    assert all(grad is not None and grad.isfinite().all() for grad in found.values()), spec
    for there, back in pipe.traffic():
        assert there.packed > 0 and back.packed > 0
    if codec(spec).fixed_rate and not spec.startswith("ef"):
        small = [(3, 5, 3, 3), (2, 5, 3, 3)]
        assert pipe.traffic()[0][0].packed == sum(codec(spec).nbytes(shape) for shape in small)


def test_the_model_keeps_its_names_and_bottlenecks_have_their_own():
    model = images()
    own = set(model.state_dict())
    stages = insert(cut(model), TEXTS, example=example())
    state = Pipe(stages, chunks=2).state_dict()
    assert set(without_bottlenecks(state)) == own
    assert {name.split(".")[0] for name in set(state) - own} == {
        f"bottleneck{k}_{half}" for k in (0, 1) for half in ("sender", "receiver")
    }
    assert set(bottleneck_state(stages)) == set(state) - own
    assert stages.to_model() is model and set(model.state_dict()) == own


def test_what_ranks_trained_is_a_model_without_bottlenecks_again():
    stages = insert(cut(images()), TEXTS, example=example())
    states = [copy.deepcopy(stage.state_dict()) for stage in stages]
    states[0]["first.weight"] += 1
    model = stages.to_model(states)
    assert torch.equal(model.get_parameter("first.weight"), states[0]["first.weight"])


def test_weights_of_bottlenecks_are_saved_apart_and_each_side_takes_its_own():
    trained = insert(cut(images()), TEXTS, example=example(), seed=1)
    for parameter in trained[1].parameters():
        nn.init.normal_(parameter)
    state = bottleneck_state(trained)
    middle = insert(cut(images()), TEXTS, example=example())[1]
    load_bottlenecks([middle], state)
    for name, tensor in bottleneck_state([middle]).items():
        assert torch.equal(tensor, state[name])
    assert torch.equal(middle.get_parameter("wide.weight"), images().get_parameter("wide.weight"))
    with pytest.raises(BottleneckError, match=r"there is no 'bottleneck0_receiver\.0\.weight'"):
        load_bottlenecks([middle], bottleneck_state(trained[:1]))


def test_the_same_seed_gives_the_same_stages_and_nothing_else_is_drawn():
    before = torch.get_rng_state()
    x = example()
    first, again, other = (insert(cut(images()), "conv:3/conv:4", example=x, seed=seed) for seed in (5, 5, 6))
    torch.set_rng_state(before)
    states = [bottleneck_state(stages) for stages in (first, again, other)]
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])
    assert not torch.equal(states[0]["bottleneck0_sender.0.weight"], states[2]["bottleneck0_sender.0.weight"])


def test_stages_train_or_not_as_they_did_before():
    for training in (True, False):
        model = images().train(training)
        model.get_submodule("norm").eval()
        stages = insert(cut(model), TEXTS, example=example())
        assert [stage.training for stage in stages] == [training] * 3
        assert model.get_submodule("relu").training == training and not model.get_submodule("norm").training


def test_skips_go_around_a_bottleneck():
    torch.manual_seed(0)
    model = nn.Sequential(Begin(6), nn.Linear(6, 6), End(6)).double()
    stages = insert(split(model, at=["1", "2"]), "linear:3/linear:2", example=torch.zeros(1, 6).double())
    x = torch.randn(5, 6, dtype=torch.float64)
    expected = copy.deepcopy(chained(stages))(x)
    torch.testing.assert_close(Pipe(stages, chunks=2)(x), expected)


class Two(nn.Module):
    """A stage of somebody's own, of two inputs, that looks whether it trains."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x, mask):
        y = functional.dropout(self.linear(x) * self.scale, 0.5, training=self.training)
        return y * mask, mask


def test_a_module_that_is_no_sequence_keeps_its_names_its_mode_and_its_arguments():
    first, second = Two(), Two()
    own = list(first.state_dict())
    x = (torch.randn(4, 6), torch.ones(4, 6))
    stages = insert([first, second], {0: "linear:6"}, example=x)
    assert list(first.state_dict()) == own and own == list(without_bottlenecks(stages[0].state_dict()))
    assert [name for name in stages[1].state_dict() if name in own] == own
    evaluated = [stage.eval() for stage in stages]
    expected = second.eval()(*first.eval()(*x))
    torch.testing.assert_close(evaluated[1](evaluated[0](x)), expected)
    stages[0].train()
    assert (stages[0](x)[0] == 0).any(), "dropout drops"
    fit(stages, [x])
    assert first.training and stages[0].training and not second.training


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("conv:3", "for 1 cuts, and there are 2; write one for each"),
        ({2: "conv:3"}, "there is no cut 2: 3 stages have the cuts 0 to 1"),
        ({0: "linear:3"}, "got 4 x 10 x 10; use conv"),
    ],
)
def test_texts_that_do_not_fit_the_cuts_are_refused(texts, says):
    with pytest.raises(BottleneckError, match=says):
        insert(cut(images()), texts, example=example())


def test_bottlenecks_are_inserted_once():
    stages = insert(cut(images()), TEXTS, example=example())
    with pytest.raises(BottleneckError, match="has a bottleneck0_sender already"):
        insert(stages, {0: "conv:5k2s2"}, example=example())


@pytest.mark.parametrize("texts", ["none", "none/none", {}])
def test_without_any_the_stages_are_what_they_were(texts):
    model = images()
    before = cut(model)
    assert [list(stage) for stage in insert(before, texts, example=example())] == [list(stage) for stage in before]


def test_digits_are_learned_through_a_bottleneck_and_four_bits_nearly_as_well_as_without():
    digits = load_digits()

    def accuracy(texts, packer):
        torch.manual_seed(0)
        stages = insert(split(network(), at=["wide", "pool"]), texts, example=digits.train_images[:1])
        if texts != "none":
            fit(stages, [digits.train_images[:200]])
        pipe = Pipe(stages, chunks=2, checkpoint="never", codec=packer, grad_codec=packer)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, total_iters=4)
        for _ in range(4):
            for picked in torch.randperm(len(digits.train_labels)).split(64):
                optimizer.zero_grad()
                functional.cross_entropy(pipe(digits.train_images[picked]), digits.train_labels[picked]).backward()
                optimizer.step()
            schedule.step()
        with torch.no_grad():
            right = pipe.eval()(digits.test_images).argmax(1) == digits.test_labels
        sent, raw = (sum(getattr(there, what) for there, _ in pipe.traffic()) for what in ("packed", "raw"))
        return right.double().mean().item(), sent, raw

    plain, _, raw = accuracy("none", None)
    small, sent, _ = accuracy("conv:12k2s2/conv:16", "had:4")
    assert plain > 0.94 and small > plain - 0.04, (plain, small)
    assert sent < 0.05 * raw


class Residual(nn.Module):
    """No sequence: it is cut by tracing it."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        x = self.norm(self.embed(x))
        return self.head(torch.tanh(x + self.inner(x)))


def test_a_traced_model_trains_with_a_bottleneck():
    torch.manual_seed(0)
    model = Residual().double()
    x = torch.randn(9, 4, dtype=torch.float64)
    stages = insert(split(model, at=["inner"], example=x[:3]), {0: "linear:2"}, example=x[:3])
    bare = copy.deepcopy(list(stages))
    pipe = Pipe(stages, chunks=1, checkpoint="always")
    pipe(x).square().mean().backward()
    bare[1](bare[0](x)).square().mean().backward()
    theirs = {name: weight.grad for stage in bare for name, weight in stage.named_parameters()}
    ours = grads(pipe)
    assert set(without_bottlenecks(ours)) == {name for name, _ in model.named_parameters()}
    torch.testing.assert_close(ours, {name: theirs[name] for name in ours})
    evaluated = pipe.eval()(x)
    assert not torch.allclose(evaluated, pipe.train()(x)), "BatchNorm knows whether it trains"


@pytest.mark.parametrize(
    ("name", "changes", "texts"),
    [
        ("digits", {}, "conv:12k2s2/linear:16"),
        ("digits", {"cut": "unpooled"}, "conv:12k2s2/conv:16"),
        ("cola", {"cut": "condition-2"}, "linear:20/linear:s8"),
        ("cola", {"cut": "pooled"}, "linear:20/linear:10"),
        ("cola-lora", {}, "none/linear:20"),
    ],
)
def test_the_stages_of_recipes_take_bottlenecks(name, changes, texts):
    pytest.importorskip("transformers")
    recipe = small(name, padding="full", **changes) if name != "digits" else small(name, **changes)
    row = row_of(recipe)
    first, middle, last = insert(stages_of(recipe), texts, example=row, seed=recipe.seed)
    assert last(middle(first(row))).shape[0] == 1
    with_them = {key.split(".")[0] for key in bottleneck_state([first, middle, last])}
    assert len(with_them) == 2 * sum(text != "none" for text in texts.split("/"))
