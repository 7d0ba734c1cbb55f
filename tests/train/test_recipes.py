"""Recipes: plain data, weights of their seed alone, samples of the step's number alone, cuts that cost nothing."""

import copy
import json
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinpipe.errors import SplitError
from thinpipe.train import RECIPES, Recipe, RecipeError, data, optimizer, parts, resolved
from thinpipe.train.data import Data, Samples
from thinpipe.train.parts import example, middle_example, whole
from thinpipe.train.weights import built

CUTS = [(name, cut) for name, subject in RECIPES.items() for cut in subject.cuts]


def small(name, **changes):
    """A recipe whose images are small enough for a test."""
    return resolved(name, {**({"pixels": 64} if name == "two-machines" else {}), **changes})


def test_a_recipe_survives_json():
    recipe = resolved("digits", {"lr": "0.05", "seed": 3})
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert recipe.lr == 0.05 and "lr=0.05" in repr(recipe)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": "fast"}, "lr is a number, got 'fast'"),
        ({"lr": float("nan")}, "lr is a number from 0"),
        ({"batch": 1.5}, "batch is a whole number, got 1.5"),
        ({"batch": True}, "batch is a whole number, got True"),
        ({"batch": 0}, "batch is a number from 1"),
        ({"pixels": 10**9}, "pixels is a number from 1 to 1024"),
        ({"pixels": 9}, "images of digits have 8 pixels a side, got 9"),
        ({"cut": "nowhere"}, "digits has no cut 'nowhere'; it has pooled, documents"),
        ({"colour": 1}, "no field 'colour'"),
        ({"name": "rte"}, "no field 'name'"),
    ],
)
def test_a_value_that_a_recipe_cannot_have_is_explained(change, words):
    with pytest.raises(RecipeError, match=words):
        resolved("digits", change)


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(RecipeError, match="did you mean digits"):
        resolved("digit")
    with pytest.raises(RecipeError, match="there are digits, two-machines"):
        resolved("imagenet")


@pytest.mark.parametrize("damage", [{"batch": None}, {"extra": 1}, [], None])
def test_what_is_no_recipe_is_not_read_as_one(damage):
    value = {**resolved("digits").to_json(), **damage} if isinstance(damage, dict) else damage
    with pytest.raises(RecipeError):
        Recipe.from_json(value)


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_three_parts_are_the_whole_under_the_same_names(name, cut):
    recipe = small(name, cut=cut)
    three = parts(recipe)
    states = [part.state_dict() for part in (three.first, three.middle, three.last)]
    assert all(states)
    together = {key: value for state in states for key, value in state.items()}
    torch.testing.assert_close(together, dict(whole(recipe).state_dict()), rtol=0, atol=0)


def test_weights_depend_on_the_seed_alone_and_leave_the_processs_dice_alone():
    before = torch.get_rng_state()
    one, other, third = (whole(resolved("digits", {"seed": seed})).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not torch.equal(one["wide.weight"], third["wide.weight"])


def test_weights_are_the_same_while_other_threads_draw():
    # A server builds the middle of one session while another one's dropout draws.
    recipe, done = resolved("digits"), threading.Event()

    def draw():
        while not done.is_set():
            torch.rand(100)

    expected = whole(recipe).state_dict()
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(5):
            torch.testing.assert_close(whole(recipe).state_dict(), expected, rtol=0, atol=0)
    finally:
        done.set()
        thread.join()


def test_a_layer_whose_weights_nobody_knows_how_to_draw_is_named():
    with pytest.raises(SplitError, match="0 is a PReLU"):
        built(lambda: nn.Sequential(nn.PReLU()), 0)


@pytest.mark.parametrize("name", RECIPES)
def test_cuts_give_the_same_outputs_and_gradients(name):
    found = {}
    inputs = torch.randn(4, *example(small(name)).shape[1:])
    for cut in RECIPES[name].cuts:
        three = parts(small(name, cut=cut))
        torch.manual_seed(7)  # of the dropout
        output = three.last(three.middle(three.first(inputs)))
        three.loss_fn(output, torch.arange(4)).backward()
        grads = {key: p.grad for part in (three.first, three.middle, three.last) for key, p in part.named_parameters()}
        found[cut] = {"output": output.detach(), **grads}
    torch.testing.assert_close(found["pooled"], found["documents"])


def test_at_224_pixels_the_pooled_cut_sends_49_times_fewer_numbers_and_the_first_is_as_documented():
    shapes = {}
    for cut in ("documents", "pooled"):
        recipe = resolved("two-machines", {"cut": cut})
        arriving = middle_example(recipe)
        assert arriving.shape == (1, 32, 112, 112)
        with torch.no_grad():
            shapes[cut] = parts(recipe).middle.eval()(arriving).shape
    assert shapes == {"documents": (1, 1280, 7, 7), "pooled": (1, 1280)}
    assert shapes["documents"].numel() == 49 * shapes["pooled"].numel()


def test_the_digits_are_learned_in_seconds():
    recipe = resolved("digits")
    model, samples = whole(recipe), data(recipe)
    made = optimizer(recipe)(model.parameters())
    for step in range(recipe.epochs * samples.steps_per_epoch):
        inputs, targets = samples.batch(step)
        made.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        made.step()
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in samples.evaluation())
    assert right / len(samples.test) > 0.95


@given(rows=st.integers(1, 50), batch=st.integers(1, 60), seed=st.integers(0, 2**62), epoch=st.integers(0, 5))
def test_an_epoch_has_every_sample_once_and_a_step_always_the_same_ones(rows, batch, seed, epoch):
    samples = Samples(torch.arange(float(rows)), torch.arange(rows))
    found = Data(samples, samples, batch, seed)
    steps = range(epoch * found.steps_per_epoch, (epoch + 1) * found.steps_per_epoch)
    seen = [found.batch(step) for step in steps]
    assert sorted(torch.cat([targets for _, targets in seen]).tolist()) == list(range(rows))
    assert all(len(targets) == batch for _, targets in seen[:-1])
    again = copy.copy(replace(found))
    for step in reversed(steps):  # in any order, from any process
        torch.testing.assert_close(again.batch(step), seen[step - steps.start], rtol=0, atol=0)
    assert {found.epoch(step) for step in steps} == {epoch}
    assert sum(len(targets) for _, targets in found.evaluation()) == rows


def test_epochs_have_orders_of_their_own():
    samples = data(resolved("digits"))
    first = torch.cat([samples.batch(step)[1] for step in range(samples.steps_per_epoch)])
    second = torch.cat([samples.batch(step + samples.steps_per_epoch)[1] for step in range(samples.steps_per_epoch)])
    assert not torch.equal(first, second)


def test_made_up_images_are_the_same_each_time_and_small_in_memory():
    one, other = (data(resolved("two-machines", {"pixels": 32})) for _ in range(2))
    assert one.train.inputs.dtype == torch.uint8
    torch.testing.assert_close(one.batch(3), other.batch(3), rtol=0, atol=0)
    inputs, targets = one.batch(0)
    assert inputs.shape == (64, 3, 32, 32) and inputs.dtype == torch.float32 and inputs.abs().max() <= 1
    assert targets.max() == 9
