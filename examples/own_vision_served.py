"""A vision model of your own whose middle a server has; both machines have this file, one of them the images.

One: ``thinpipe serve --offer vision=examples/own_vision_served.py:offer``; the other, with its address:
``python examples/own_vision_served.py 127.0.0.1:5555``.
"""

import sys
from functools import partial

import torch
from torch import nn

import thinpipe
from thinpipe.data.digits import load_digits

adam = partial(torch.optim.AdamW, lr=3e-3)


def stages() -> thinpipe.Split:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return thinpipe.split(model, at=["2", "8"])  # the names of the layers that begin the middle and the end


def offer() -> thinpipe.Offer:
    return thinpipe.Offer(make=lambda: stages()[1], optimizer=adam)


if __name__ == "__main__":
    digits, (first, _, last) = load_digits(), stages()
    how = {"loss_fn": nn.functional.cross_entropy, "optimizer": adam, "codec": "wave:4", "grad_codec": "wave:4"}
    with thinpipe.Client(first, last, connect=sys.argv[1], offer="vision", chunks=4, **how) as client:
        for rows in torch.randint(len(digits.train_labels), (40, 64)):
            loss, cost = client.step(digits.train_images[rows], digits.train_labels[rows]), client.cost
            if client.committed % 10 == 0:
                packed, raw = cost.sent + cost.received, cost.raw_sent + cost.raw_received
                print(f"step {client.committed}: loss {loss:.3f}, {packed:,} bytes a batch, {raw:,} unpacked")
