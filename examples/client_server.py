"""A model of your own whose middle is on a server; images, labels and both ends of the model stay with the client.

Run: ``python examples/client_server.py`` has the server in the same process. On two machines one runs
``thinpipe serve --offer middle=examples.client_server:offer``, the other this program with ``--connect host:port``.
"""

import argparse
from functools import partial

import torch
from torch import nn

from thinpipe import Client, Offer, Server
from thinpipe.data.digits import load_digits

adam = partial(torch.optim.AdamW, lr=3e-3)


def middle() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()
    )


def offer() -> Offer:
    # What the server lends: every session gets a middle and an optimizer of its own.
    return Offer(make=middle, optimizer=adam, example=torch.zeros(1, 16, 8, 8))


def train(address: str, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    first, last = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()), nn.Linear(64, 10)
    how = {"loss_fn": nn.functional.cross_entropy, "optimizer": adam, "chunks": 4, "folder": args.folder}
    codecs = {"codec": args.codec, "grad_codec": args.codec}
    with Client(first, last, connect=address, offer="middle", **how, **codecs) as client:
        batches = -(-len(digits.train_labels) // 64)
        while client.committed < args.epochs * batches:  # its own count: restarted, it goes on where it was
            epoch, k = divmod(client.committed, batches)
            dice = torch.Generator().manual_seed(epoch)
            rows = torch.randperm(len(digits.train_labels), generator=dice).split(64)[k]
            client.step(digits.train_images[rows], digits.train_labels[rows])
            if k == batches - 1:
                right = client.evaluate(digits.test_images).argmax(1) == digits.test_labels
                print(f"epoch {epoch}: accuracy {right.float().mean():.1%}, {client.cost.ratio:.1%} of the bytes sent")


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--connect", help="the server, as host:port (default: one in this process)")
    words.add_argument("--codec", default="wave:4", help="packs what crosses the cuts, both ways")
    words.add_argument("--epochs", type=int, default=3)
    words.add_argument("--folder", help="where the client saves, and goes on from (default: in memory only)")
    args = words.parse_args()
    if args.connect:
        train(args.connect, args)
    else:
        with Server({"middle": offer()}, listen="127.0.0.1:0") as server:
            train(server.address, args)
