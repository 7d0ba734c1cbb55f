"""Digests of targets: the same for the same rows, wherever they lie in memory, and others for other rows."""

import pytest
import torch

from thinpipe.runtime.batch_digest import BatchDigest

TYPES = [torch.int64, torch.uint8, torch.bool, torch.float64, torch.float32, torch.bfloat16, torch.float16]


def digest(targets):
    return BatchDigest.of(None, targets, alone=False).targets


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (12,), (12, 3), (1, 1, 1), (2000, 30), (9, 500, 7, 11)], ids=str)
def test_it_is_of_the_values_and_not_of_where_they_lie(dtype, shape):
    values = torch.randint(0, 2, shape).to(dtype)
    apart = torch.stack([values, values], dim=-1)[..., 0]
    assert digest(values) == digest(apart) == digest(apart.clone()) is not None
    if values.numel() == 1:
        assert digest(values) == digest(values.expand(shape).as_strided(shape, [0] * len(shape)))


@pytest.mark.parametrize("shape", [(12,), (12, 3), (64, 3, 100, 100)], ids=str)
def test_other_rows_have_another(shape):
    values = torch.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
    for rows in (torch.arange(shape[0]).flip(0), torch.arange(shape[0]).roll(1)):
        ours, theirs = digest(values), digest(values[rows])
        assert ours[0] == theirs[0] and ours[1] != theirs[1]


def test_nestings_with_numbers_and_texts_are_compared_and_strangers_are_not():
    tree = {"class": torch.arange(3), "weight": 0.5, "beside": ["a", (1, True)]}
    assert digest(tree) == digest({**tree, "class": torch.arange(3)})
    assert digest(tree)[1] != digest({**tree, "weight": 0.25})[1]
    assert digest({**tree, "class": torch.arange(4)})[0] != digest(tree)[0], "not of a shape to be compared"
    for strange in (None, object(), {"no": object()}, torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        assert digest(strange) is None


def test_rows_may_be_indices_numbers_and_texts():
    def said(rows):
        return BatchDigest.of(rows, None, alone=True).rows

    assert said(torch.arange(3)) == said([0, 1, 2]) == said(range(3)) == "[0, 1, 2]"
    assert said(7) == "7" and said((1, 7)) == "[1, 7]" and said("batch 7") == '"batch 7"'
    assert said(torch.arange(1000)) == said(range(1000)) != said(range(1, 1001))
    assert len(said(torch.arange(100_000))) < 100
