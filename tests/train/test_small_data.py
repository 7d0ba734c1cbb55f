"""Each recipe trains end to end on a few rows of real files."""

import math

import pytest
import torch

from thinpipe.data.locate import DataError
from thinpipe.train import RECIPES, RecipeError, data, optimizer, resolved
from thinpipe.train.local import Local
from thinpipe.train.log import EvaluationLine, Origin, RunFolder, StepLine
from thinpipe.train.loop import Loop
from thinpipe.train.parts import loss
from thinpipe.train.settings import Settings
from train.small import TEXTS, small


class Nobody:
    """Looks on, and says nothing."""

    def stepped(self, line):
        pass

    def evaluating(self, epoch):
        pass

    def evaluated(self, line):
        pass


def run(recipe, path, trainer=None):
    """Trains a recipe to its end; returns the lines of its log."""
    folder = RunFolder(path)
    folder.begin(Origin.now(recipe, Settings()))
    trainer = trainer or Local(recipe, folder=folder.states, every=50, device="cpu")
    loop = Loop(
        recipe=recipe,
        data=data(recipe),
        loss_fn=loss,
        log=folder.log(trainer.committed),
        watcher=Nobody(),
        stopped=lambda: False,
    )
    assert loop.run(trainer)
    lines = list(folder.lines())
    steps = [line for line in lines if isinstance(line, StepLine)]
    return steps, [line for line in lines if isinstance(line, EvaluationLine)]


def where(name, files):
    return {"data_dir": str(files / "own")} if name == "imagefolder" else {}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("digits", "two-machines")])
def test_a_recipe_trains_end_to_end(name, files, tmp_path):
    # Two images alone in a last batch would have no variance in maps of a pixel, and gradients without bound.
    batch = {} if name in TEXTS else {"batch": 5}
    recipe = small(name, **where(name, files), **batch)
    samples = data(recipe)
    steps, tests = run(recipe, tmp_path)
    assert len(steps) == 2 * samples.steps_per_epoch and all(math.isfinite(line.loss) for line in steps)
    assert [line.epoch for line in tests] == [1, 2] and tests[0].rows == len(samples.test)
    assert steps[0].lr == pytest.approx(recipe.lr) or steps[0].lr < steps[1].lr  # there may be room for a warm-up
    assert 0 < steps[-1].lr <= recipe.lr
    assert all((line.mcc is not None) == (name in TEXTS) for line in tests)


def test_the_texts_of_a_whole_set_are_learned_by_heart(files, tmp_path):
    recipe = small("rte", epochs=30, lr=3e-3, dropout=0, limit=12, lr_schedule="constant")
    steps, _ = run(recipe, tmp_path)
    assert steps[-1].loss < 0.1 < steps[0].loss


def test_bfloat16_is_entered_for_whoever_trains(files, tmp_path):
    exact, _ = run(small("cifar10-finetune", dropout=0, batch=5), tmp_path / "exact")
    rough, _ = run(small("cifar10-finetune", dropout=0, batch=5, precision="bfloat16"), tmp_path / "rough")
    assert rough[0].loss != exact[0].loss and rough[0].loss == pytest.approx(exact[0].loss, rel=0.2)


def test_gradients_are_clipped_and_rates_are_those_of_the_schedule(files, tmp_path):
    recipe = small("cola", clip=1e-9, optimizer="sgd", dropout=0, epochs=3, limit=4, batch=4)
    steps, _ = run(recipe, tmp_path)
    assert steps[-1].loss == pytest.approx(steps[0].loss, abs=1e-6)  # nothing moves
    assert [line.lr / recipe.lr for line in steps] == pytest.approx([1, 2 / 3, 1 / 3])


def test_lora_trains_the_small_matrices_and_the_classifier_alone(files, tmp_path):
    recipe = small("cola-lora", lr=0.1, epochs=1)
    local = Local(recipe, folder=tmp_path / "states", every=50, device="cpu")
    before = {name: value.clone() for name, value in local._model.state_dict().items()}
    run(recipe, tmp_path / "run", local)
    moved = {name for name, value in local._model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name or name.startswith("classifier") for name in moved)
    assert any("lora_B" in name for name in moved)


def test_a_batch_is_a_function_of_its_step_and_a_test_is_never_augmented(files):
    one, other = (data(small("cifar10-finetune")) for _ in range(2))
    torch.testing.assert_close(one.batch(4), other.batch(4), rtol=0, atol=0)
    tests = [torch.cat([inputs for inputs, _ in each.evaluation()]) for each in (one, one)]
    assert torch.equal(*tests) and tests[0].is_contiguous(memory_format=torch.channels_last)
    seen = {int(target): inputs for inputs, target in zip(*one.batch(0), strict=True)}
    again = {int(target): inputs for inputs, target in zip(*one.batch(3), strict=True)}
    assert all(not torch.equal(seen[key], again[key]) for key in seen.keys() & again.keys())


def test_texts_are_as_long_as_the_longest_of_their_batch_unless_they_are_wanted_in_full(files):
    short, full = (data(small("cola", padding=padding, max_length=40)) for padding in ("batch", "full"))
    trimmed, padded = (each.batch(0)[0] for each in (short, full))
    assert trimmed["input_ids"].shape == (4, 16) and padded["input_ids"].shape == (4, 40)
    for key in trimmed:
        assert torch.equal(trimmed[key], padded[key][:, :16])
    assert not padded["attention_mask"][:, 16:].any()


def test_padding_changes_no_number(files, tmp_path):
    short, full = (
        run(small("cola", padding=padding, dropout=0), tmp_path / padding)[0] for padding in ("batch", "full")
    )
    assert [line.loss for line in short] == pytest.approx([line.loss for line in full], rel=1e-5)


def test_a_limit_takes_the_first_rows_and_without_one_all_must_be_there(files):
    assert len(data(small("cifar10-finetune", limit=7)).train) == 7
    with pytest.raises(DataError, match="lacks data_batch_2"):
        data(small("cifar10-finetune", limit=0))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("imagefolder", {}, "say where they are, --data-dir DIR"),
        ("cola", {"model": "nowhere"}, "there is no encoder 'nowhere'"),
    ],
)
def test_what_a_model_lacks_is_explained(name, changes, words, files, tmp_path):
    with pytest.raises(RecipeError, match=words):
        Local(small(name, **changes), folder=tmp_path, every=1, device="cpu")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("cola", {"max_length": 4000}, "texts of tiny have 8 to 258 tokens, got max_length=4000"),
        ("cifar10-scratch", {"pixels": 40}, "these have 32 pixels; use pixels=32, or crop"),
    ],
)
def test_data_that_does_not_fit_is_explained(name, changes, words, files):
    with pytest.raises(RecipeError, match=words):
        data(small(name, **changes))


def test_the_recipes_are_the_documents():
    found = {name: resolved(name) for name in RECIPES}
    tuned, scratch = found["cifar10-finetune"], found["cifar10-scratch"]
    assert (tuned.epochs, tuned.batch, tuned.chunks, tuned.pixels) == (40, 256, 8, 224)
    # Epipe's gradients are sums over micro-batches, at a rate of 0.01; ours are means.
    assert (tuned.lr, tuned.momentum, tuned.weight_decay) == (8 * 0.01, 0, 0)
    assert (tuned.cut, tuned.pool, tuned.precision, tuned.last_batch) == ("after-relu", "corner", "float32", "drop")
    assert (scratch.epochs, scratch.batch, scratch.lr, scratch.weight_decay, scratch.warmup) == (
        200,
        1024,
        0.4,
        1e-4,
        20,
    )
    assert (scratch.chunks, scratch.momentum, scratch.dropout, scratch.precision) == (4, 0.9, 0, "float32")
    assert (scratch.model, scratch.cut, scratch.last_batch) == ("mobilenet_v2_cifar", "before-norm", "drop")
    for name, said in {
        "rte": ("adamw", 20, 2e-5, 0.0, 1e-8, "float32", 4),
        "rte-data-parallel": ("adamw", 20, 2e-5, 0.01, 1e-8, "float32", 1),
        "cola": ("adam", 20, 2e-5, 1e-4, 1e-6, "bfloat16", 4),
        "cola-simulated": ("adamw", 40, 2e-5, 0.01, 1e-8, "float32", 4),
    }.items():
        recipe = found[name]
        values = (recipe.optimizer, recipe.epochs, recipe.lr, recipe.weight_decay, recipe.adam_eps, recipe.precision)
        assert (*values, recipe.chunks) == said and recipe.lr_schedule == "polynomial"
        assert (recipe.batch, recipe.max_length, recipe.padding, recipe.last_batch) == (32, 128, "full", "drop")
        assert recipe.cut == ("condition-4" if name == "cola-simulated" else "condition-1")
    fairseq = found["cola-fairseq"]
    assert (fairseq.optimizer, fairseq.batch, fairseq.lr, fairseq.weight_decay) == ("adamw", 16, 1e-5, 0.1)
    assert (fairseq.epochs, fairseq.adam_eps, fairseq.precision) == (10, 1e-6, "bfloat16")
    assert found["cola-lora"].epochs == 80 and found["cola-lora"].lora == 8


def test_the_weight_decay_of_adam_is_part_of_the_gradient_and_that_of_adamw_is_not():
    """A weight without a gradient: Adam takes a whole step for any decay, AdamW a share of the weight."""
    for name, left in {"adam": 2.0 - 0.01, "adamw": 2.0 * (1 - 0.01 * 1e-4)}.items():
        weight = torch.nn.Parameter(torch.tensor([2.0]))
        weight.grad = torch.zeros(1)
        optimizer(resolved("cola", {"optimizer": name, "lr": 0.01}))([weight]).step()
        assert weight.item() == pytest.approx(left, abs=1e-4 if name == "adam" else 1e-6)
