"""Random numbers in stages: the same from the same seed, the same again when recomputed, different in every step."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import CHECKPOINT_MODES
from thinpipe import Pipe
from thinpipe.errors import RecomputeError
from thinpipe.runtime.randomness import Entropy, OwnCpu, Rewound


class Noise(nn.Module):
    """Draws in several ways: by operators that can be given a generator, and by ones that cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = F.dropout(self.linear(x), 0.5, self.training)
        x = x * torch.rand(x.shape[-1], dtype=x.dtype) + torch.randn_like(x)
        return F.rrelu(x, training=self.training)


def pipe_of(stages, checkpoint="never", chunks=4):
    torch.manual_seed(1)
    return Pipe(
        nn.Sequential(*[Noise() for _ in range(4)]).double(),
        stages,
        devices=["cpu"] * len(stages),
        chunks=chunks,
        checkpoint=checkpoint,
    )


def one_step(pipe, seed):
    pipe.zero_grad()
    torch.manual_seed(seed)
    x = torch.linspace(0, 1, 128, dtype=torch.float64).reshape(16, 8)
    output = pipe(x)
    output.square().sum().backward()
    return output.detach(), [p.grad.clone() for p in pipe.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("stages", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_a_seed_decides_everything_however_the_threads_race(stages):
    results = [one_step(pipe_of(stages), 7) for _ in range(5)]
    for other in results[1:]:
        assert torch.equal(other[0], results[0][0])
        torch.testing.assert_close(other[1], results[0][1], rtol=0, atol=0)
        assert torch.equal(other[2], results[0][2]), (
            "PyTorch's generator moves on by the same, as after the bare module"
        )


@pytest.mark.parametrize("stages", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_recomputation_draws_the_numbers_of_the_forward(stages):
    kept = one_step(pipe_of(stages, "never"), 7)
    for checkpoint in ("always", "except_last"):
        again = one_step(pipe_of(stages, checkpoint), 7)
        assert torch.equal(again[0], kept[0])
        torch.testing.assert_close(again[1], kept[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_that_pytorch_itself_would_recompute_is_refused_where_it_would_draw_other_numbers(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(p)

        def forward(self, x):
            return torch_checkpoint(lambda y: self.dropout(self.linear(y)), x, use_reentrant=reentrant)

    model, x = nn.Sequential(Checkpointed(0.5), nn.Linear(8, 8)), torch.rand(6, 8, requires_grad=True)
    alone = Pipe(copy.deepcopy(model), [2], devices=["cpu"], checkpoint="never")
    for each in (model, alone):
        torch.manual_seed(3)
        each(x).sum().backward()
    for one, other in zip(alone.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), "a stage alone draws from PyTorch's generator"
    pipe = Pipe(model, [1, 1], devices=["cpu", "cpu"], chunks=2, checkpoint="never")
    with pytest.raises(RecomputeError, match=r"inside torch.utils.checkpoint.*checkpoint='always'"):
        pipe(x)
    pipe.eval()
    pipe(x).sum().backward()  # nothing is drawn, so nothing can differ


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_every_step_and_every_micro_batch_draws_anew(checkpoint):
    pipe = Pipe(
        nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), [1, 1], devices=["cpu"] * 2, chunks=4, checkpoint=checkpoint
    )
    x = torch.ones(4, 64, requires_grad=True)
    first, second = pipe(x), pipe(x)
    assert not torch.equal(first, second)
    assert len({tuple(row.tolist()) for row in first}) == 4


def test_a_model_that_draws_nothing_leaves_the_generator_alone():
    pipe = Pipe(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always"
    )
    state = torch.get_rng_state()
    pipe(torch.ones(4, 2)).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stage_that_begins_to_draw_later_is_noticed():
    """Stages that drew nothing are not watched; a dropout rate that rises from zero must end the trust."""

    class Rising(nn.Module):
        p = 0.0

        def forward(self, x):
            return F.dropout(x, self.p) if self.p else x

    rising = Rising()
    pipe = Pipe(nn.Sequential(nn.Linear(2, 2), rising), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    x = torch.ones(4, 2)
    pipe(x).sum().backward()
    rising.p = 0.5
    with pytest.warns(RuntimeWarning, match="no stage was known to draw"):
        pipe(x).sum().backward()
    for _ in range(3):
        x = torch.rand(64, 2, requires_grad=True)
        output = pipe(x)
        pipe.zero_grad()
        output.sum().backward()
        kept = (output != 0).double()
        expected = torch.autograd.grad(2 * pipe[0](x), x, kept.to(x.dtype))[0]
        torch.testing.assert_close(x.grad, expected)


def test_a_stage_that_draws_in_some_steps_only_is_led_in_all():
    class Seldom(nn.Module):
        step = 0

        def forward(self, x):
            return F.dropout(x, 0.5) if self.step % 3 == 0 else x

    seldom = Seldom()
    pipe = Pipe(nn.Sequential(nn.Linear(2, 2), seldom), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    outputs = []
    for seldom.step in range(7):
        torch.manual_seed(seldom.step // 6)
        outputs.append(pipe(torch.ones(64, 2)))
        outputs[-1].sum().backward()  # a step in which nobody is known to draw would warn
    for output in (outputs[0], outputs[3], outputs[6]):
        assert (output == 0).any()
    assert torch.equal(outputs[0] == 0, outputs[3] == 0) and not torch.equal(outputs[0] == 0, outputs[6] == 0)


def test_switching_between_training_and_evaluation_watches_again():
    pipe = Pipe(
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always"
    )
    pipe.eval()(torch.ones(4, 2))
    pipe.train()
    torch.manual_seed(3)
    first = pipe(torch.ones(4, 2))
    torch.manual_seed(3)
    assert torch.equal(pipe(torch.ones(4, 2)), first)


def test_private_generators_let_stages_draw_at_the_same_time():
    """Two threads inside their own forwards, each waiting for the other in the middle of its draws."""
    entropy = Entropy(torch.default_generator)
    meeting = threading.Barrier(2, timeout=20)
    drawn = {}

    def draw(j):
        with OwnCpu(entropy, j, watching=True).first(0):
            numbers = [torch.empty(3).uniform_()]
            meeting.wait()
            numbers.append(torch.rand(3))
        drawn[j] = torch.cat(numbers)

    threads = [threading.Thread(target=draw, args=(j,)) for j in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = copy.deepcopy(drawn)
    for j in range(2):
        meeting = threading.Barrier(1)
        draw(j)
    assert all(torch.equal(together[j], drawn[j]) for j in range(2))
    assert not torch.equal(drawn[0], drawn[1])


def test_rewinding_leaves_the_generator_where_it_was():
    rewound = Rewound(torch.default_generator)
    with rewound.first(0, repeated=True):
        first = torch.rand(3)
    torch.rand(5)
    state = torch.get_rng_state()
    with rewound.again(0):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), state)
