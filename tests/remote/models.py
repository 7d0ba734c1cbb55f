"""A small U with everything that makes replays hard: dropout, BatchNorm, momentum."""

import torch
from torch import nn
from torch.nn import functional as F

from thinpipe.remote.offer import Offer

ROWS, WIDE = 12, 8


def ends(seed=1, *, dropout=0.0):
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(4, WIDE), nn.Tanh(), nn.Dropout(dropout))
    last = nn.Sequential(nn.Linear(WIDE, 3))
    return first, last


def middle(*, dropout=0.0):
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(), nn.Dropout(dropout))


def seeded_middle(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return middle(**options)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9)


def offer(**options):
    return Offer(make=lambda: middle(**options), optimizer=sgd, example=torch.zeros(1, WIDE))


def batch(step, rows=ROWS):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


loss_fn = F.cross_entropy
