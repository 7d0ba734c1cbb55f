"""A Pipe with codecs at its cuts: the same arithmetic as ``compress`` between the layers, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, assert_same, assert_trains_like_one_device, train_once
from thinpipe import Pipe, codec, compress
from thinpipe.skip import pop, skippable, stash

SPECS = ["none", "fp16", "uniform:8", "sort:6+2", "block:4", "had:4", "topk:0.25", "topk:0.25|block:8", "downsample:2"]
SPECS += ["power:2/3", "block:4|zstd"]


class Compressed(nn.Module):
    """Codes what passes through it; stands for a cut in a bare model."""

    def __init__(self, forward, backward):
        super().__init__()
        self.there, self.back = (None if spec is None else codec(spec) for spec in (forward, backward))

    def forward(self, x):
        return compress(x, self.there, self.back)


def layers():
    torch.manual_seed(0)
    return [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]


def with_cuts(balance, forward, backward):
    """Puts codecs between the stages of a bare model; parameters keep their order."""
    parts, rest = [], layers()
    for j, size in enumerate(balance):
        parts += [Compressed(forward, backward)] if j else []
        parts, rest = parts + rest[:size], rest[size:]
    return nn.Sequential(*parts)


class MicroBatches(nn.Module):
    """Runs a bare model on the micro-batches of a pipe, one after the other."""

    def __init__(self, model, chunks):
        super().__init__()
        self.model, self.chunks = model, chunks

    def forward(self, x):
        return torch.cat([self.model(micro) for micro in torch.tensor_split(x, self.chunks)])


def outcome_in_order(outcome):
    """Renames parameters by their order, since a bare model with cuts numbers its layers otherwise."""
    outcome.grads = dict(enumerate(outcome.grads.values()))
    outcome.updated = dict(enumerate(outcome.updated.values()))
    return outcome


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("spec", SPECS)
def test_a_pipe_codes_exactly_as_compress_does(spec, checkpoint):
    sample = torch.randn(6, 6, requires_grad=True)
    pipe = Pipe(
        nn.Sequential(*layers()),
        [2, 2, 1],
        devices=["cpu"] * 3,
        chunks=2,
        checkpoint=checkpoint,
        codec=spec,
        grad_codec=spec,
    )
    bare = MicroBatches(with_cuts([2, 2, 1], spec, spec), 2)
    ours, theirs = (outcome_in_order(train_once(model, sample)) for model in (pipe, bare))
    # What crossed cuts is equal in every bit; gradients of parameters are summed over micro-batches in another order.
    assert torch.equal(ours.outputs[0], theirs.outputs[0])
    assert torch.equal(ours.input_grads[0], theirs.input_grads[0])
    assert_same(ours, theirs)


def test_each_cut_and_each_direction_may_have_its_own_codec():
    sample = torch.randn(4, 6, requires_grad=True)
    pipe = Pipe(
        nn.Sequential(*layers()), [2, 2, 1], devices=["cpu"] * 3, codec={1: "uniform:4"}, grad_codec={0: "block:8,sr"}
    )
    model = layers()
    bare = nn.Sequential(
        *model[:2], Compressed(None, "block:8,sr"), *model[2:4], Compressed("uniform:4", None), model[4]
    )
    ours, theirs = (outcome_in_order(train_once(model, sample)) for model in (pipe, bare))
    assert torch.equal(ours.outputs[0], theirs.outputs[0])
    assert_same(ours, theirs, rtol=0, atol=0)


def test_a_lossless_codec_changes_nothing():
    assert_trains_like_one_device(
        nn.Sequential(*layers()),
        torch.randn(5, 6, requires_grad=True),
        [1, 2, 2],
        chunks=3,
        codec="none|zstd",
        grad_codec="none",
    )


def test_codecs_are_at_work_in_evaluation_too():
    x = torch.randn(4, 6)
    pipe = Pipe(nn.Sequential(*layers()), [3, 2], devices=["cpu"] * 2, codec="uniform:2").eval()
    with torch.no_grad():
        assert torch.equal(pipe(x), with_cuts([3, 2], "uniform:2", None)(x))


def test_a_stage_that_works_in_place_sends_what_it_made_in_inference_mode_too():
    """Inference mode does not count changes to what is made in it; what comes out of a packet is made outside of it."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    pipe = Pipe(model, [1, 1, 1], devices=["cpu"] * 3, codec="uniform:4").eval()
    x = torch.randn(4, 6)
    with torch.no_grad():
        expected = pipe(x)
    with torch.inference_mode():
        assert torch.equal(pipe(x), expected)


def test_masks_and_whatever_else_is_not_floating_point_cross_exactly():
    class Masked(nn.Module):
        def forward(self, pair):
            x, mask = pair
            return x.masked_fill(mask, 0.0), mask

    class First(nn.Module):
        def forward(self, pair):
            return pair[0]

    x, mask = torch.randn(4, 6), torch.rand(4, 6) > 0.5
    pipe = Pipe(nn.Sequential(Masked(), Masked(), First()), [1, 1, 1], devices=["cpu"] * 3, codec="block:8")
    expected = compress(x.masked_fill(mask, 0.0), "block:8")
    expected = compress(expected.masked_fill(mask, 0.0), "block:8")
    assert torch.equal(pipe((x, mask)), expected)


def test_what_a_stage_passes_on_untouched_is_not_coded_again():
    """An attention mask in floating point, with its infinities, would be spoilt; an activation would lose twice."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.5))

        def forward(self, triple):
            x, early, mask = triple
            return x * self.weight + mask.exp().mean(), x if early is None else early, mask

    mask = torch.zeros(4, 6).masked_fill(torch.rand(4, 6) > 0.5, -torch.inf)
    pipe = Pipe(
        nn.Sequential(Scale(), Scale(), Scale()),
        [1, 1, 1],
        devices=["cpu"] * 3,
        chunks=2,
        codec="uniform:2",
        grad_codec="block:8",
    )
    x = torch.randn(4, 6)
    late, early, same_mask = pipe((x * 2, x, mask))
    assert torch.equal(early, x), "came from the caller, and went through two cuts as it was"
    assert torch.equal(same_mask, mask)
    late.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite() for p in pipe.parameters())


def test_an_empty_tensor_is_not_taken_for_another_one():
    """All empty tensors lie nowhere; a new one was once sent as the packet that an earlier one had come in."""

    class Empties(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self.shape = shape

        def forward(self, x):
            x = x[0] if isinstance(x, tuple) else x
            return x + 1, x.new_empty(len(x), *self.shape)

    class Second(nn.Module):
        def forward(self, pair):
            return pair[1]

    model = nn.Sequential(Empties(0), Empties(0, 5), Second())
    pipe = Pipe(model, [1, 1, 1], devices=["cpu"] * 3, chunks=2, codec="block:8")
    assert pipe(torch.randn(4, 6)).shape == (4, 0, 5)


def test_skips_are_coded_by_the_cut_they_leave_by():
    @skippable(stash=["early"])
    class Stash(nn.Module):
        def forward(self, x):
            yield stash("early", x * 2)
            return x + 1

    @skippable(pop=["early"])
    class Pop(nn.Module):
        def forward(self, x):
            early = yield pop("early")
            return x + early

    x = torch.randn(4, 6)
    pipe = Pipe(nn.Sequential(Stash(), nn.Identity(), Pop()), [1, 1, 1], devices=["cpu"] * 3, codec={0: "uniform:3"})
    assert torch.equal(pipe(x), compress(x + 1, "uniform:3") + compress(x * 2, "uniform:3"))
    there, _ = pipe.traffic()[0]
    assert there.packed == 2 * codec("uniform:3").nbytes([4, 6])


def test_traffic_counts_real_bytes_of_every_cut_and_direction():
    pipe = Pipe(
        nn.Sequential(*layers()), [2, 2, 1], devices=["cpu"] * 3, chunks=2, codec="block:4", grad_codec={0: "uniform:8"}
    )
    train_once(pipe, torch.randn(6, 6))
    raw = 6 * 8 * 4
    packed = 2 * codec("block:4").nbytes([3, 8])
    (there_0, back_0), (there_1, back_1) = pipe.traffic()
    assert there_0.raw == there_1.raw == back_0.raw == back_1.raw == raw
    assert there_0.packed == there_1.packed == packed
    assert back_0.packed == 2 * codec("uniform:8").nbytes([3, 8])
    assert back_1.packed == raw and back_1.ratio == 1.0


def test_a_gradient_has_the_elements_that_its_activation_had():
    pipe = Pipe(nn.Sequential(*layers()), [2, 3], devices=["cpu"] * 2, codec="topk:0.25", grad_codec="topk:0.25")
    seen = {}
    # The gradient as it arrives at the first stage's output, which is the input's gradient of an identity.
    pipe[1].register_full_backward_hook(lambda _, __, grads: seen.update(grad=grads[0]))
    pipe[1].register_forward_hook(lambda _, __, output: seen.update(output=output.detach()))
    train_once(pipe, torch.randn(5, 6))
    assert torch.equal(seen["grad"] != 0, compress(seen["output"], "topk:0.25") != 0)
    there, back = pipe.traffic()[0]
    assert back.packed < there.packed, "only values travel back"


def test_what_codecs_remember_can_be_saved_and_is_copied_along():
    def make():
        return Pipe(nn.Sequential(*layers()), [2, 3], devices=["cpu"] * 2, codec="power:2", grad_codec="ef(block:2,sr)")

    batches = [torch.randn(5, 6) for _ in range(4)]
    steady, saved = make(), make()
    for batch in batches[:2]:
        train_once(steady, batch)
        train_once(saved, batch)
    resumed, copied = make(), copy.deepcopy(saved)
    resumed.load_state_dict(saved.state_dict())
    resumed.load_codec_state_dict(saved.codec_state_dict())
    assert saved.codec_state_dict()
    for pipe in (steady, copied):
        pipe.zero_grad()
    for batch in batches[2:]:
        outcomes = [train_once(pipe, batch) for pipe in (steady, resumed, copied)]
        assert_same(outcomes[1], outcomes[0], rtol=0, atol=0)
        assert_same(outcomes[2], outcomes[0], rtol=0, atol=0)


def test_a_network_learns_through_four_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    pipe = Pipe(model, [2, 2, 1], devices=["cpu"] * 3, chunks=2, codec="block:4", grad_codec="block:4,sr")
    optimizer = torch.optim.Adam(pipe.parameters(), lr=1e-2)
    x = torch.randn(256, 8)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        losses.append(nn.functional.mse_loss(pipe(x), y))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]
