"""The project's default codec is one that its own tables speak for."""

import math
from pathlib import Path
from statistics import fmean

import pytest

from thinpipe.codecs import DEFAULT
from thinpipe.reproduce.page.compare import Difference
from thinpipe.reproduce.page.write import recorded
from thinpipe.reproduce.training.short import PAGE

RESULTS = Path(__file__).parents[2] / "results"
ALLOWED = 0.003
"""Of accuracy: 0.3 points, below no codec at all."""
LOSS = 0.01
"""Of the last epoch's loss in training, which scatters less than a correlation over a thousand sentences does."""


def trained(codec):
    """What the codec has more than none, by data set, where everything was packed with it; and both rows."""
    for _, rows in recorded(RESULTS, PAGE):
        for each in rows:
            row = each.row
            plain = row.elsewhere is None and row.learned is None and row.gradients is None
            if row.work.label != "CIFAR-10 from scratch" and row.codec == codec and plain:
                yield row.work, Difference.of(each, rows), each, rows[0]


def test_the_default_lost_no_more_than_is_allowed_on_any_data_set():
    found = list(trained(DEFAULT))
    assert {work.label for work, *_ in found} == {"CIFAR-10", "CIFAR-100", "Food-101", "CoLA"}
    for work, difference, _, none in found:
        # A correlation over so many sentences is off by so much anyway.
        noise = 1 / math.sqrt(none.records[0].results["test_rows"])
        assert difference.spread.mean >= -(ALLOWED if work.measure == "accuracy" else noise), work.label
        assert difference.seeds >= (1 if work.label == "Food-101" else 3), work.label


def test_the_default_learns_as_much_of_sentences_as_no_codec():
    ours, none = next((each, none) for work, _, each, none in trained(DEFAULT) if work.label == "CoLA")
    last = [fmean(record.samples["train_loss"][-1] for record in row.records) for row in (ours, none)]
    assert last[0] <= last[1] + LOSS


@pytest.mark.parametrize(("codec", "label", "points"), [("had:4", "CIFAR-100", -1.3), ("block:4", "CIFAR-10", -1.6)])
def test_others_of_four_bits_lost_what_the_catalogue_says(codec, label, points):
    difference = next(found for work, found, *_ in trained(codec) if work.label == label)
    assert round(100 * difference.spread.mean, 1) == points
