"""Trains on real digits with the first half of the network in one process and the second in another.

Run: ``torchrun --nproc-per-node 2 examples/two_processes.py``. Every rank runs this same program; the rank of the first
stage needs the images, that of the last stage the labels. What crosses between them is packed into 4 bits a value.
"""

import torch
import torch.distributed as dist
from torch import nn

from thinpipe import Pipeline
from thinpipe.data.digits import load_digits


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = load_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    loss_fn = nn.functional.cross_entropy
    with Pipeline(model, balance=[2, 7], chunks=4, loss_fn=loss_fn, codec="had:4", grad_codec="had:4") as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(3):
            for rows in torch.randperm(len(digits.train_labels)).split(128):
                pipeline.step(digits.train_images[rows], digits.train_labels[rows])
                optimizer.step()
                optimizer.zero_grad()
            loss = pipeline.evaluate(digits.test_images, digits.test_labels)
            if pipeline.rank == 0:
                print(f"epoch {epoch}: test loss {loss:.3f}")
        for lane in pipeline.statistics.lanes:
            if lane.outgoing:
                sent = lane.reading.sent / 1e6
                print(f"rank {pipeline.rank} sent {sent:.1f} MB of {lane.cargo.name.lower()}s, {lane.ratio:.3f} of raw")


if __name__ == "__main__":
    main()
