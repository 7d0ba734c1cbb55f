"""Models for the tests of ``thinpipe check``: what users might bring, well behaved and not."""

import time

import torch
from torch import nn
from torch.nn import functional as F

from thinpipe import NoChunk
from thinpipe.skip import pop, skippable, stash

not_a_factory = 3


def plain():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(10, 5)


def classifier():
    target = torch.arange(10) % 3
    model, inputs = plain()
    return model, inputs, lambda outputs: F.cross_entropy(outputs, target)


def model_alone():
    return nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 3))


def normalised():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))
    model.extend([nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)])
    return model, torch.randn(11, 3, 8, 8)


def dropped():
    return nn.Sequential(nn.Linear(5, 7), nn.Dropout(), nn.Linear(7, 6), nn.RReLU(), nn.Linear(6, 3)), torch.randn(
        10, 5
    )


class HiddenDropout(nn.Module):
    """Draws without a Dropout layer, and has a BatchNorm that must go on training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(7)

    def forward(self, x):
        return F.dropout(self.norm(x), training=self.training)


def hidden_dropout():
    return nn.Sequential(nn.Linear(5, 7), HiddenDropout(), nn.Linear(7, 3)), torch.randn(8, 5)


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def noisy():
    return nn.Sequential(nn.Linear(5, 7), Noise(), nn.Linear(7, 3)), torch.randn(8, 5)


class Clock(nn.Module):
    def forward(self, x):
        return x * (time.perf_counter_ns() % 1_000_003)


def clocked():
    return nn.Sequential(nn.Linear(5, 7), Clock(), nn.Linear(7, 3)), torch.randn(8, 5)


@skippable(stash=["early"])
class Begin(nn.Module):
    def forward(self, x):
        yield stash("early", x)
        return x * 2


@skippable(pop=["early"])
class End(nn.Module):
    def forward(self, x):
        early = yield pop("early")
        return x + early


def skipping():
    return nn.Sequential(nn.Linear(5, 5), Begin(), nn.Linear(5, 5), nn.Tanh(), End()), torch.randn(9, 5)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6)

    def forward(self, batch):
        return self.table(batch["ids"]) * batch["weights"] + batch["positions"]


class Heads(nn.Module):
    def forward(self, x):
        return {"logits": x.sum(-1), "norm": x.square().mean()}


def dictionaries():
    ids, weights = torch.randint(20, (7, 4)), torch.rand(7, 4, 1)
    batch = {"ids": ids, "weights": weights, "positions": NoChunk(torch.randn(4, 6))}
    return nn.Sequential(Words(), nn.Linear(6, 6), nn.Tanh(), Heads()), batch


class Centre(nn.Module):
    """Mixes the rows of its batch without being a BatchNorm."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


def centred():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), Centre(), nn.Linear(7, 3)), torch.randn(10, 5)


class Average(nn.Module):
    """Keeps a moving average, which a pipe moves once a micro-batch; nothing else depends on it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(7))

    def forward(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x


def averaging():
    return nn.Sequential(nn.Linear(5, 7), Average(), nn.Linear(7, 3)), torch.randn(10, 5)


class FirstCallOnly(nn.Module):
    """Keeps Python state: the gradient stops at every call but the first, so at every recomputation."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x if self.calls == 1 else x.detach() + 0 * x


def stateful():
    return nn.Sequential(nn.Linear(5, 7), FirstCallOnly(), nn.Linear(7, 3)), torch.randn(10, 5)


class NeedsFour(nn.Module):
    def forward(self, x):
        if len(x) < 4:
            raise RuntimeError(f"needs four rows, got {len(x)}")
        return x


def particular():
    return nn.Sequential(nn.Linear(5, 7), NeedsFour(), nn.Linear(7, 3)), torch.randn(8, 5)


class MoreThanItsLayers(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 2


def doubled():
    return MoreThanItsLayers(nn.Linear(5, 7), nn.Linear(7, 3)), torch.randn(8, 5)


class NotSequential(nn.Module):
    pass


class Bridged(nn.Module):
    """No sequence: what its first layer computes is used at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 6), nn.Dropout(), nn.Linear(6, 3)

    def forward(self, x, weight):
        early = self.first(x)
        return self.last(torch.tanh(self.drop(early)) + early * torch.tensor(0.5)) * weight[:, None]


def bridged():
    return Bridged(), (torch.randn(9, 5), torch.rand(9))


class CountsRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x)) / x.shape[0]


def counting_rows():
    return CountsRows(), torch.randn(8, 5)


def transformer(family, head=None):
    from hf_support import batch, make

    return make(family, head), batch(family, 7)[0]


def bert():
    return transformer("bert")


def roberta():
    return transformer("roberta")


def distilbert():
    return transformer("distilbert")


def vit():
    return transformer("vit")


def gpt2():
    return transformer("gpt2")


def not_sequential():
    return NotSequential()


def number():
    return 3


def with_arguments(width):
    return nn.Sequential(nn.Linear(width, 3))


def broken():
    raise RuntimeError("the weights are not there")


def wrong_inputs():
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), torch.randn(8, 6)


def infinite():
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), torch.full((8, 5), torch.inf)


def vector_loss():
    return *plain(), lambda outputs: outputs.sum(0)
