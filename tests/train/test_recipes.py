"""Recipes: plain data, weights of their seed alone, samples of the step's number alone, cuts that cost nothing."""

import copy
import json
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils._pytree import tree_map

from thinpipe.errors import SplitError
from thinpipe.models import mobilenet_v2_cifar
from thinpipe.train import RECIPES, Recipe, RecipeError, data, optimizer, parts, resolved
from thinpipe.train.data import Data, Samples
from thinpipe.train.networks import NETWORKS
from thinpipe.train.parts import example, middle_example, stages_of, whole
from thinpipe.train.toml_file import from_toml, to_toml
from thinpipe.train.weights import built
from train.small import WEIGHTS, cuts, small


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json_and_toml(name, tmp_path):
    recipe = resolved(name, {"lr": "0.05", "seed": 3, "adam_betas": "0.8,0.9"})
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert recipe.lr == 0.05 and "lr=0.05" in repr(recipe) and recipe.adam_betas == (0.8, 0.9)
    (tmp_path / "my.toml").write_text(to_toml(recipe))
    assert resolved(name, from_toml(tmp_path / "my.toml", name)) == recipe
    assert from_toml(tmp_path / "my.toml")["name"] == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = ", "cannot be read as a recipe: Invalid value"),
        ("learning_rate = 1.0", "no field 'learning_rate'"),
        ("epoch = 1", "did you mean epochs"),
        ('name = "rte"', "is about the recipe 'rte', not about digits"),
    ],
)
def test_a_file_that_is_no_recipe_is_explained(text, words, tmp_path):
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(RecipeError, match=words):
        from_toml(tmp_path / "my.toml", "digits")


def test_a_file_that_is_not_there_or_about_nothing_is_explained(tmp_path):
    with pytest.raises(RecipeError, match="No such file"):
        from_toml(tmp_path / "absent.toml", "digits")
    (tmp_path / "my.toml").write_text("epochs = 1")
    with pytest.raises(RecipeError, match='add a line as: name = "digits"'):
        from_toml(tmp_path / "my.toml")


def test_a_run_of_the_first_version_is_still_read():
    # Its recipes had these fields and no others.
    old = ("name", "cut", "batch", "epochs", "lr", "momentum", "weight_decay", "seed", "chunks", "pixels")
    value = resolved("digits").to_json()
    assert Recipe.from_json({field: value[field] for field in old}) == resolved("digits")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": "fast"}, "lr is a number, got 'fast'"),
        ({"lr": float("nan")}, "lr is a number from 0"),
        ({"batch": 1.5}, "batch is a whole number, got 1.5"),
        ({"batch": True}, "batch is a whole number, got True"),
        ({"batch": 0}, "batch is a number from 1"),
        ({"pixels": 10**9}, "pixels is a number from 0 to 1024"),
        ({"pixels": 9}, "images of digits have 8 pixels a side, got 9"),
        ({"cut": "nowhere"}, "digits has no cut 'nowhere'; there are pooled, unpooled"),
        ({"cut": "unpool"}, "digits has no cut 'unpool'; did you mean unpooled"),
        ({"colour": 1}, "no field 'colour'"),
        ({"momentun": 1}, "no field 'momentun'; did you mean momentum"),
        ({"optimizer": "adamx"}, "optimizer cannot be 'adamx'; did you mean adam"),
        ({"warmup": 0.1, "warmup_steps": 5}, "how long is the warm-up. warmup says 0.1 and warmup_steps 5; set one"),
        ({"lr_schedule": "step"}, "lr_schedule cannot be 'step'; there are constant, cosine, polynomial"),
        ({"adam_betas": "0.9"}, "adam_betas is two numbers, as 0.9,0.98, got '0.9'"),
        ({"adam_betas": [0.9, 2]}, "adam_betas is a number from 0 to 1, got 2"),
        ({"max_length": 64}, "digits has no use for max_length; leave it at 0"),
        ({"name": "rte"}, "no field 'name'"),
    ],
)
def test_a_value_that_a_recipe_cannot_have_is_explained(change, words):
    with pytest.raises(RecipeError, match=words):
        resolved("digits", change)


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(RecipeError, match="did you mean digits"):
        resolved("digit")
    with pytest.raises(RecipeError, match="did you mean cifar10-finetune"):
        resolved("cifar10-fine")
    with pytest.raises(RecipeError, match="there are digits, two-machines"):
        resolved("zzz")
    with pytest.raises(RecipeError, match="has no model 'mobilenet'; did you mean mobilenet_v2"):
        resolved("cifar10-finetune", {"model": "mobilenet"})
    with pytest.raises(RecipeError, match="has no dataset 'cifar'; did you mean cifar10"):
        resolved("cifar10-finetune", {"dataset": "cifar"})


@pytest.mark.parametrize("damage", [{"batch": None}, {"extra": 1}, [], None])
def test_what_is_no_recipe_is_not_read_as_one(damage):
    value = {**resolved("digits").to_json(), **damage} if isinstance(damage, dict) else damage
    with pytest.raises(RecipeError):
        Recipe.from_json(value)


@pytest.mark.parametrize(("name", "cut"), cuts())
def test_three_parts_are_the_whole_under_the_same_names(name, cut, files):
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


def like(each):
    """Four rows as an example's, with something in them."""
    shape = (4, *each.shape[1:])
    if each.is_floating_point():
        return torch.randn(shape)
    return torch.randint(3, 90, shape) if each.max() > 1 else torch.ones(shape, dtype=torch.int64)


@pytest.mark.parametrize("name", ["digits", "two-machines", "cifar10-finetune", "cifar10-scratch", "cola", "cola-lora"])
def test_cuts_give_the_same_outputs_and_gradients(name, files):
    found = {}
    torch.manual_seed(3)
    inputs = tree_map(like, example(small(name)))
    for cut in RECIPES[name].cuts:
        three = parts(small(name, cut=cut, **({"dropout": 0} if "dropout" in RECIPES[name].uses else {})))
        torch.manual_seed(7)  # of the dropout that two-machines has
        output = three.last(three.middle(three.first(inputs)))
        three.loss_fn(output, torch.arange(4) % output.shape[1]).backward()
        grads = {key: p.grad for part in (three.first, three.middle, three.last) for key, p in part.named_parameters()}
        found[cut] = {"output": output.detach()}
        found[cut] |= {key.replace("_rest", ""): grad for key, grad in grads.items() if grad is not None}
    for cut in found:
        torch.testing.assert_close(found[cut], found["pooled"])


@pytest.mark.parametrize(
    ("cut", "there", "back"),
    [
        ("two-and-two", 24, 24),
        ("condition-1", 24, 24),
        ("condition-2", 24, 24),
        ("condition-3", 24, 24),
        ("condition-3-pooled", 24, 1),
        ("condition-4", 24, 24),
        ("pooled", 24, 1),
    ],
)
def test_texts_cross_a_cut_with_all_tokens_or_with_the_one_that_the_head_reads(cut, there, back):
    recipe = small("cola", cut=cut)
    arriving = middle_example(recipe)
    assert arriving["hidden_states"].shape == (1, there, 32)
    with torch.no_grad():
        assert parts(recipe).middle.eval()(arriving)["hidden_states"].shape == (1, back, 32)


def test_the_conditions_are_those_of_the_documents():
    found = {cut: stages_of(small("cola", cut=cut)).names for cut in RECIPES["cola"].cuts if cut != "even"}
    layers = {
        cut: [[name.rpartition("layer.")[2] for name in names] for names in stages] for cut, stages in found.items()
    }
    first, second, rest = ["embeddings", "0"], ["1", "2", "3", "4"], "0_rest"
    first[0] = "roberta.embeddings"
    assert layers["condition-1"] == [first, second, ["5", "classifier"]]
    assert layers["condition-2"] == [first, [rest, *second], ["5", "classifier"]]
    assert layers["condition-3"] == [first, [rest, *second, "5"], ["classifier"]]
    assert layers["condition-4"] == layers["pooled"] == [first, [*second, "5"], ["classifier"]]
    assert layers["two-and-two"] == [[*first, "1"], ["2", "3"], ["4", "5", "classifier"]]


def test_from_scratch_at_32_pixels_the_last_map_is_of_4_by_4():
    recipe = small("cifar10-scratch")
    arriving = middle_example(recipe)
    assert arriving.shape == (1, 32, 32, 32)
    with torch.no_grad():
        assert parts(recipe).middle.eval()(arriving).shape == (1, 1280, 4, 4)


def test_a_network_begins_with_the_weights_of_its_file_but_for_the_head(files):
    given = load_file(files / "weights" / WEIGHTS)
    found = whole(small("cifar10-finetune", seed=3)).state_dict()
    drawn = whole(small("cifar10-finetune", seed=3, weights="none")).state_dict()
    for key, value in found.items():
        assert torch.equal(value, (drawn if key.startswith("classifier") else given)[key])
    assert found["classifier_1.weight"].shape == (10, 1280)


def test_weights_that_are_not_there_or_not_the_networks_are_explained(files, tmp_path):
    with pytest.raises(
        RecipeError, match=r"no file 'absent'; put it at .*weights/absent, or say where it is: --set weights"
    ):
        whole(small("cifar10-finetune", weights="absent"))
    with pytest.raises(RecipeError, match="of another network"):
        whole(small("cifar10-finetune", model="resnet18"))
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RecipeError, match="cannot be read as safetensors"):
        whole(small("cifar10-finetune", weights=str(tmp_path / "bad.safetensors")))


@pytest.mark.parametrize(
    ("model", "cut"),
    [(name, cut) for name in ("resnet18", "mobilenet_v2_32px", "mobilenet_v2_cifar") for cut in NETWORKS[name].cuts],
)
def test_every_network_can_be_cut_where_it_says(model, cut):
    three = parts(small("cifar10-scratch", model=model, cut=cut))
    assert all(list(part.children()) for part in (three.first, three.middle, three.last))


def test_a_cut_that_a_network_lacks_is_answered_with_those_that_it_has():
    with pytest.raises(
        RecipeError,
        match="mobilenet_v2_cifar has no cut 'after-relu'; there are before-norm, pooled, two-and-two, even",
    ):
        resolved("cifar10-scratch", {"cut": "after-relu"})
    with pytest.raises(RecipeError, match="mobilenet_v2_32px has no cut 'before-norm'; "):
        resolved("cifar10-scratch", {"model": "mobilenet_v2_32px"})
    assert resolved("cifar10-scratch", {"model": "mobilenet_v2_32px", "cut": "after-relu"}).cut == "after-relu"


def test_from_scratch_no_activation_is_beside_a_cut_and_a_norm_is_behind_it():
    three = parts(small("cifar10-scratch"))
    kinds = [
        [type(layer) for layer in part.modules() if not list(layer.children())]
        for part in (three.first, three.middle, three.last)
    ]
    assert kinds[0] == [nn.Conv2d, nn.BatchNorm2d]
    assert kinds[1][1:3] == [nn.Conv2d, nn.BatchNorm2d] and kinds[1][-1] == nn.Conv2d
    assert kinds[2][:2] == [nn.BatchNorm2d, nn.ReLU]


def test_from_scratch_weights_are_those_that_pytorch_would_draw():
    torch.manual_seed(3)
    drawn = mobilenet_v2_cifar().state_dict()
    torch.testing.assert_close(whole(small("cifar10-scratch", seed=3)).state_dict(), drawn)
    assert drawn["linear.bias"].any()


def test_at_224_pixels_the_pooled_cut_sends_49_times_fewer_numbers_and_the_first_is_as_documented():
    shapes = {}
    for cut in ("before-relu", "pooled"):
        recipe = resolved("two-machines", {"cut": cut})
        arriving = middle_example(recipe)
        assert arriving.shape == (1, 32, 112, 112)
        with torch.no_grad():
            shapes[cut] = parts(recipe).middle.eval()(arriving).shape
    assert shapes == {"before-relu": (1, 1280, 7, 7), "pooled": (1, 1280)}
    assert shapes["before-relu"].numel() == 49 * shapes["pooled"].numel()


@pytest.mark.parametrize(("name", "unpooled"), [("digits", "unpooled"), ("two-machines", "before-relu")])
def test_a_cut_after_the_pooling_computes_what_one_before_it_does(name, unpooled):
    given = (
        torch.randn(2, *middle_example(resolved("digits")).shape[1:])
        if name == "digits"
        else torch.randn(2, 32, 32, 32)
    )
    found = []
    for cut in (unpooled, "pooled"):
        three = parts(resolved(name, {"cut": cut, "seed": 3}))
        torch.manual_seed(0)
        found.append(three.last.eval()(three.middle.eval()(given)))
    torch.testing.assert_close(found[0], found[1])


def test_epipes_pooling_looks_at_one_corner_of_the_last_map_and_at_what_is_above_zero():
    last = parts(resolved("cifar10-finetune", {"weights": "none", "dropout": 0.0})).last
    arriving = torch.randn(2, 1280, 7, 7, requires_grad=True)
    corner = arriving.detach().clamp(min=0)[:, :, :4, :4].mean((2, 3))
    torch.testing.assert_close(last(arriving), nn.functional.linear(corner, *last.parameters()))
    last(arriving).sum().backward()
    reached = arriving.grad.abs().sum((0, 1)) > 0
    assert reached[:4, :4].all() and reached.sum() == 16, "33 of 49 places get no gradient"


@pytest.mark.parametrize("changes", [{"pixels": 64}, {"pixels": 256}, {"model": "resnet18"}], ids=str)
def test_epipes_pooling_is_refused_where_the_last_map_has_another_size(changes):
    with pytest.raises(RecipeError, match=r"images of 97 to 224 pixels, got .*; use pool=mean"):
        whole(resolved("cifar10-finetune", {"weights": "none", **changes}))


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


def test_a_last_batch_that_is_not_full_can_be_dropped():
    recipe = resolved("digits", {"batch": 4, "last_batch": "drop"})
    samples = Samples(torch.arange(10.0), torch.arange(10))
    found = Data.of(recipe, samples, samples)
    assert found.steps_per_epoch == 2
    for epoch in range(3):
        seen = torch.cat([found.batch(2 * epoch + k)[1] for k in range(2)])
        assert len(seen) == len(set(seen.tolist())) == 8 and found.epoch(2 * epoch + 1) == epoch
    assert sum(len(targets) for _, targets in found.evaluation()) == 10, "a test leaves nothing out"
    with pytest.raises(RecipeError, match="leaves nothing to train on: a batch is 4 samples, and there are 3"):
        Data.of(recipe, samples.first(3), samples)


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
