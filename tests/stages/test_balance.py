"""Balance: an exact min-max partition of measured costs."""

import copy
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinpipe.balance import balance_by_size, balance_by_time, balance_cost, profile_sizes, profile_times
from thinpipe.errors import BalanceError, SplitError
from thinpipe.skip import pop, skippable, stash


def blocks(costs, balance):
    ends = [sum(balance[: k + 1]) for k in range(len(balance))]
    return [sum(costs[end - size : end]) for size, end in zip(balance, ends, strict=True)]


def every_balance(n, partitions):
    for cuts in combinations(range(1, n), partitions - 1):
        ends = [*cuts, n]
        yield [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]


@given(costs=st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=9), partitions=st.integers(1, 9))
def test_no_other_partition_has_a_cheaper_slowest_block(costs, partitions):
    partitions = min(partitions, len(costs))
    balance = balance_cost(costs, partitions)
    assert len(balance) == partitions and sum(balance) == len(costs) and min(balance) >= 1
    best = min(max(blocks(costs, other)) for other in every_balance(len(costs), partitions))
    assert max(blocks(costs, balance)) <= best * (1 + 1e-9)


def test_among_equals_the_most_even_one_is_taken():
    assert balance_cost([10, 1, 1, 1, 1], 3) == [1, 2, 2]
    assert balance_cost([1] * 8, 4) == [2, 2, 2, 2]
    assert balance_cost([0, 0, 0], 2) in ([1, 2], [2, 1])


def test_two_thousand_layers_are_no_problem():
    balance = balance_cost([1.0 + (k % 7) for k in range(2133)], 8)
    assert sum(balance) == 2133


@pytest.mark.parametrize(
    ("costs", "partitions", "message"),
    [
        ([1, 2], 3, "at most 2"),
        ([1, 2], 0, "at least 1"),
        ([], 1, "at most 0"),
        ([1, -1], 1, "not negative"),
        ([float("nan")], 1, "finite"),
        ([float("inf")], 1, "finite"),
    ],
)
def test_costs_that_cannot_be_balanced_are_refused(costs, partitions, message):
    with pytest.raises(BalanceError, match=message):
        balance_cost(costs, partitions)


class Busy(nn.Module):
    """Takes a known share of time, forward and backward."""

    def __init__(self, turns):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(128))
        self.turns = turns

    def forward(self, x):
        for _ in range(self.turns):
            x = x @ self.weight
        return x


def test_by_time_finds_the_layer_that_takes_it():
    model = nn.Sequential(Busy(1), Busy(1), Busy(1), Busy(60))
    assert balance_by_time(2, model, torch.rand(64, 128), timeout=0.2) == [3, 1]
    times = profile_times(model, torch.rand(64, 128), timeout=0.1)
    assert times[3] == max(times) > 5 * times[0]


def test_by_size_counts_what_autograd_keeps_and_the_parameters():
    model = nn.Sequential(nn.Linear(10, 100, bias=False), nn.ReLU(), nn.Linear(100, 10, bias=False))
    sizes = profile_sizes(model, torch.rand(8, 10), param_scale=2.0)
    assert sizes == [8 * 10 * 4 + 2 * 4000, 8 * 100 * 4, 8 * 100 * 4 + 2 * 4000]
    halved = profile_sizes(model, torch.rand(8, 10), chunks=2, param_scale=0)
    assert halved == [4 * 10 * 4, 4 * 100 * 4, 4 * 100 * 4]


def test_by_size_puts_the_largest_layer_alone():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 4000))
    assert balance_by_size(2, model, torch.rand(4, 10)) == [2, 1]


@skippable(stash=["x"])
class Stash(nn.Module):
    def forward(self, x):
        yield stash("x", x.view(-1, 2, 8).transpose(1, 2))  # no leaf, and a view
        return x


@skippable(pop=["x"])
class Pop(nn.Module):
    def forward(self, x):
        skip = yield pop("x")
        return x + skip.transpose(1, 2).reshape(-1, 16)


class Two(nn.Module):
    def forward(self, pair):
        return pair[0] * 2, pair[1]


class Join(nn.Module):
    def forward(self, pair):
        return pair[0] + pair[1]


@pytest.mark.parametrize("profile", [lambda m, x: profile_times(m, x, timeout=0.01), profile_sizes])
def test_profiling_leaves_the_model_as_it_was(profile):
    model = nn.Sequential(Two(), Join(), nn.Linear(16, 16), nn.BatchNorm1d(16), Stash(), nn.ReLU(inplace=True), Pop())
    model.eval()
    model[2].weight.grad = torch.ones(16, 16)
    before, names = copy.deepcopy(model.state_dict()), [id(p) for p in model.parameters()]
    costs = profile(model, (torch.rand(8, 16), torch.rand(8, 16)))
    assert len(costs) == 7 and all(cost >= 0 for cost in costs)
    torch.testing.assert_close(model.state_dict(), before)
    assert [id(p) for p in model.parameters()] == names
    assert torch.equal(model[2].weight.grad, torch.ones(16, 16))
    assert not model.training


def test_integer_inputs_and_frozen_layers_are_measured():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    assert sum(balance_by_time(2, model, torch.randint(10, (8,)), timeout=0.01)) == 3


def test_a_model_that_is_no_sequence_is_refused():
    with pytest.raises(SplitError, match=r"nn\.Sequential"):
        balance_by_time(2, nn.Linear(1, 1), torch.rand(1, 1))
