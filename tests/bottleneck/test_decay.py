"""Ranks that shrink in training: on time, on both sides, with less on the wire and the optimizer none the worse."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from thinpipe import Pipe, split
from thinpipe.bottleneck import BottleneckError, RankDecay, decay, insert


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3)).double()


def stages(text):
    return insert(split(model(), at=["2"]), {0: text}, example=torch.zeros(1, 6).double())


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    return x, (x[:, :3].cumsum(1)).argmax(1)


def test_the_documents_ranks_come_out():
    nine = RankDecay(rates=(0.9, 0.95), step=300, stop=2700)
    assert nine.rank(768, 0) == nine.rank(768, 299) == 768
    assert nine.rank(768, 300) == 691 and nine.next_rank(768, 0) == 691
    assert nine.rank(768, 2700) == nine.rank(768, 10**9) == nine.next_rank(768, 2700)
    assert nine.rank(768, 2700) / 768 == pytest.approx(0.387, abs=2e-3)
    both = nine.rank(768, 2700) * nine.rank(128, 2700, 1) / (768 * 128)
    assert both == pytest.approx(0.244, abs=4e-3)
    assert RankDecay(rates=(5 / 6,), step=300, stop=1500).rank(768, 1500) / 768 == pytest.approx(0.402, abs=2e-3)


def test_a_rank_is_never_less_than_one():
    assert RankDecay(rates=(0.1,), step=1, stop=10**9).rank(7, 10**9) == 1


def test_both_dimensions_of_texts_decay_at_their_own_rates():
    x = torch.randn(3, 8, 10)
    first, second = insert([nn.Identity(), nn.Identity()], {0: "linear:10+s8,decay=0.5*0.75@2..4"}, example=x)
    whole = nn.Sequential(first, second)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    decay(optimizer, whole)
    shapes = []
    for _ in range(5):
        shapes.append(tuple(first(x).shape[1:]))
        optimizer.zero_grad()
        (whole(x) - x).square().mean().backward()
        optimizer.step()
    assert shapes == [(8, 10), (8, 10), (6, 5), (6, 5), (4, 2)]


@pytest.mark.parametrize("make", [lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9), torch.optim.AdamW])
def test_what_crosses_shrinks_and_training_goes_on(make):
    pipe = Pipe(stages("linear:20,decay=0.5@5..15"), chunks=3)
    optimizer = make(pipe.parameters())
    decay(optimizer, pipe)
    sent, losses = [], []
    for seed in range(20):
        before = pipe.traffic()[0]
        sums = [flow.raw for flow in before]
        x, y = batch(seed)
        loss = functional.cross_entropy(pipe(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sent.append([flow.raw - old for flow, old in zip(pipe.traffic()[0], sums, strict=True)])
        losses.append(loss.item())
    ranks = [20] * 5 + [10] * 5 + [5] * 5 + [2] * 5
    assert sent == [[12 * 8 * rank] * 2 for rank in ranks]
    weights = dict(pipe.named_parameters())
    for name, weight in weights.items():
        state = [tensor for tensor in optimizer.state[weight].values() if tensor.dim()]
        assert weight.isfinite().all() and all(tensor.shape == weight.shape for tensor in state), name
    assert sum(losses[15:]) < sum(losses[:5])


def test_the_penalty_is_the_slope_of_the_absolute_values_that_go_next():
    """The prototype's followed the sign of the gradient, which is the slope of nothing."""
    found = stages("linear:20,decay=0.5@5..5,l1=0.25")
    plain = copy.deepcopy(found)
    steps = {}
    for name, pieces in (("plain", plain), ("decaying", found)):
        module = nn.Sequential(*pieces)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        if name == "decaying":
            decay(optimizer, module)
        before = {key: weight.detach().clone() for key, weight in module.named_parameters()}
        x, y = batch(0)
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        steps[name] = {key: before[key] - weight.detach() for key, weight in module.named_parameters()}
        starts = before
    for key, step in steps["plain"].items():
        extra = torch.zeros_like(step)
        if key == "0.bottleneck0_sender.0.weight":
            extra[10:] = 0.25 * starts[key][10:].sign()
        if key == "1.bottleneck0_receiver.0.weight":
            extra[:, 10:] = 0.25 * starts[key][:, 10:].sign()
        torch.testing.assert_close(steps["decaying"][key], step + extra)


def test_a_saved_state_knows_its_rank():
    module = nn.Sequential(*stages("linear:20,decay=0.5@2..4"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    decay(optimizer, module)
    for _ in range(3):
        optimizer.step()
    again = nn.Sequential(*stages("linear:20,decay=0.5@2..4"))
    again.load_state_dict(module.state_dict())
    x, _ = batch(0)
    assert again[0](x).shape == (12, 10)
    torch.testing.assert_close(again(x), module(x))


def test_sides_that_count_different_steps_find_out():
    first, second = stages("linear:20,decay=0.5@1..1")
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    decay(optimizer, first)
    optimizer.step()
    with pytest.raises(BottleneckError, match="at rank 20 here, and 10 came from the sender"):
        second(first(batch(0)[0]))
