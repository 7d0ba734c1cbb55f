"""A text may name a codec for each cut."""

import pytest

from thinpipe.errors import SpecError
from thinpipe.train import data, resolved
from thinpipe.train.per_cut import codecs_in, per_cut
from thinpipe.train.recipe import RecipeError
from thinpipe.train.settings import Settings
from thinpipe.train.ways import trainer_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("had:4", ["had:4"]),
        ("block:4/32", ["block:4/32"]),
        ("power:3/power:7", ["power:3", "power:7"]),
        ("power:3/3/power:7/3", ["power:3/3", "power:7/3"]),
        ("block:4/32/had:2/64", ["block:4/32", "had:2/64"]),
        ("topk:0.1|uniform:8/none/ef(block:4,sr)", ["topk:0.1|uniform:8", "none", "ef(block:4,sr)"]),
    ],
)
def test_a_slash_before_a_letter_is_between_cuts(text, words):
    assert codecs_in(text) == words


def test_one_codec_is_for_all_cuts_and_several_are_one_for_each():
    assert per_cut(None, 2) is None and per_cut("had:4", 2) == "had:4"
    assert per_cut("power:3/had:4", 2) == {0: "power:3", 1: "had:4"}
    with pytest.raises(RecipeError, match="has 2 codecs, and there is one cut"):
        per_cut("power:3/power:7", 1)
    with pytest.raises(SpecError):
        Settings(stages=3, codec="power:3/nonsense").verify()


def test_each_cut_of_a_run_packs_by_its_own(tmp_path):
    recipe = resolved("digits", {"cut": "unpooled"})
    settings = Settings(stages=3, codec="uniform:8/uniform:4", grad_codec="none/uniform:8").verify()
    trainer = trainer_of(recipe, settings, data=None, folder=tmp_path, stop=None, here=None, trace=None)
    trainer.step(*data(recipe).batch(0))
    ratios = [[flow.ratio for flow in cut] for cut in trainer.traffic()]
    assert ratios[0] == pytest.approx([8 / 32, 1], rel=0.01) and ratios[1] == pytest.approx([4 / 32, 8 / 32], rel=0.01)
    assert all(flow.raw == 4 * flow.elements for cut in trainer.traffic() for flow in cut)
