"""Matthews' correlation, against scikit-learn's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import matthews_corrcoef

from thinpipe.train.metrics import accuracy, matthews


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_matthews_is_scikit_learns_for_any_number_of_classes(rows):
    answers, targets = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert matthews(answers, targets) == pytest.approx(matthews_corrcoef(targets, answers), abs=1e-12)


def test_whoever_always_says_the_same_has_a_good_accuracy_and_no_correlation():
    targets = torch.tensor([1] * 69 + [0] * 31)
    assert accuracy(torch.ones(100, dtype=torch.int64), targets) == pytest.approx(0.69)
    assert matthews(torch.ones(100, dtype=torch.int64), targets) == 0
    assert matthews(targets, targets) == 1 and matthews(1 - targets, targets) == -1
