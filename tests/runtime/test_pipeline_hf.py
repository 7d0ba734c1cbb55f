"""transformers models over real processes compute what one device does, masks and dropout included."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")

from hf_support import batch, make
from thinpipe import split

FAMILIES = ["bert", "roberta", "distilbert", "mpnet", "vit", "gpt2"]
SHAPES = [(2, [0, 1]), (3, [0, 1, 2]), (2, [0, 1, 0])]
"""Two stages, three, and a U: one rank has the first stage and the last."""
EXACT = 1e-12


@pytest.mark.parametrize(("world", "workers"), SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_loss_and_gradients_equal_those_of_the_uncut_model(pool, family, world, workers):
    """Rows of different lengths, in micro-batches of three rows, of uneven ones, and one row alone."""
    found = pool.run("hf_training", world, family=family, workers=workers, rows=[9, 7, 1])
    assert max(each["difference"] for each in found) < EXACT, found
    names = {name for each in found for name in each["names"]}
    assert names == set(found[0]["all"]), "the ranks have the model's names, and together all of them"


@pytest.mark.parametrize("schedule", ["gpipe", "zb"])
def test_other_schedules_and_another_attention_are_no_different(pool, schedule):
    for family in ("bert", "gpt2"):
        options = {"workers": [0, 1], "rows": [7], "attention": "eager", "schedule": schedule}
        assert max(each["difference"] for each in pool.run("hf_training", 2, family=family, **options)) < EXACT


@pytest.mark.parametrize(("world", "workers"), SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_equals_that_of_the_uncut_model_which_draws_the_same(pool, family, world, workers):
    for checkpoint in ("never", "always"):
        found = pool.run("hf_dropout", world, family=family, workers=workers, checkpoint=checkpoint)
        assert max(found) < EXACT, found


@pytest.mark.parametrize("family", ["bert", "mpnet", "gpt2"])
def test_ranks_that_trained_a_part_each_make_a_model_that_transformers_saves(pool, family, tmp_path):
    *_, logits = pool.run("hf_saving", 3, family=family, workers=[0, 1, 2], path=str(tmp_path))
    parts = split(make(family), stages=3)
    model = parts.to_model(torch.load(tmp_path / f"{rank}.pt") for rank in range(3)).eval()
    model.save_pretrained(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved", dtype=torch.float64).eval()
    inputs, _ = batch(family, 6)
    torch.testing.assert_close(loaded(**inputs).logits, torch.tensor(logits, dtype=torch.float64))


@pytest.mark.parametrize(
    ("world", "workers", "at"), [(3, [0, 1, 2], ["inner.1", "last"]), (2, [0, 1, 0], ["inner.0", "last"])]
)
def test_a_traced_model_trains_as_itself_over_ranks(pool, world, workers, at):
    found = pool.run("traced_training", world, workers=workers, at=at)
    assert max(each["difference"] for each in found) < EXACT, found
    assert {name for each in found for name in each["names"]} == set(found[0]["all"])


@pytest.mark.parametrize(
    ("world", "workers", "at"),
    [(2, [0, 1], ["last"]), (3, [0, 1, 2], ["inner.1", "last"]), (2, [0, 1, 0], ["inner.0", "last"])],
)
def test_parameters_of_a_model_itself_are_trained_by_whichever_ranks_need_them(pool, world, workers, at):
    """Ranks used to refuse them, for want of a module that has them."""
    found = pool.run("loose_parameters", world, workers=workers, at=at)
    assert max(each["difference"] for each in found) < EXACT, found
    assert {name for each in found for name in each["names"]} == set(found[0]["all"])
