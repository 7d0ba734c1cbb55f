"""The loop of any PyTorch program, in which one line makes the model a pipeline.

Run: ``python examples/plain_loop.py``. Two stages, on two GPUs if there are, train on real digits; what crosses between
them is packed into 4 bits a value. Everything else, loader, loss, scheduler and checkpoint, is as it was.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from thinpipe import Pipe
from thinpipe.data.digits import load_digits


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--epochs", type=int, default=3)
    words.add_argument("--codec", default="wave:4", help="packs what crosses the cut, both ways")
    args = words.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    loader = DataLoader(TensorDataset(digits.train_images, digits.train_labels), batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    devices = ["cuda:0", "cuda:1"] if torch.cuda.device_count() > 1 else ["cpu", "cpu"]
    model = Pipe(model, balance=[2, 5], devices=devices, chunks=4, codec=args.codec, grad_codec=args.codec)  # the line

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels.to(devices[-1]))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            right = model(digits.test_images).argmax(1).cpu() == digits.test_labels
        print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
