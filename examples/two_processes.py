"""Trains on real digits with the first half of the network in one process and the second in another.

Run: ``torchrun --nproc-per-node 2 examples/two_processes.py``. Every rank runs this same program; the rank of the first
stage needs the images, that of the last stage the labels. What crosses between them is packed into 4 bits a value.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from thinpipe import Pipeline
from thinpipe.data.digits import load_digits
from thinpipe.links import Throttle, parse_rate


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--codec", default="wave:4", help="packs what crosses the cut, both ways")
    words.add_argument("--bandwidth", help="emulates a link, as 50mbit")
    words.add_argument("--trace", help="a file for a trace of both ranks")
    words.add_argument("--epochs", type=int, default=3)
    args = words.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = load_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip
    link = (lambda: Throttle(parse_rate(args.bandwidth))) if args.bandwidth else None
    codecs = {"codec": args.codec, "grad_codec": args.codec}
    loss_fn = nn.functional.cross_entropy
    with Pipeline(model, balance=[4, 5], chunks=8, loss_fn=loss_fn, throttle=link, trace=args.trace, **codecs) as ours:
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(args.epochs):
            for rows in torch.randperm(len(digits.train_labels)).split(256):
                ours.step(digits.train_images[rows], digits.train_labels[rows])
                optimizer.step()
                optimizer.zero_grad()
            loss = ours.evaluate(digits.test_images, digits.test_labels)
            if ours.rank == 0:
                print(f"epoch {epoch}: test loss {loss:.3f}")
        for lane in ours.statistics.lanes:
            if lane.outgoing:
                sent, what = lane.reading.sent / 1e6, lane.cargo.name.lower()
                print(f"rank {ours.rank} sent {sent:.1f} MB of {what}s, {lane.ratio:.3f} of their bytes")


if __name__ == "__main__":
    main()
