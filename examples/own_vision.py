"""A vision model of your own in three stages, on digits: what crosses the two cuts is packed into 4 bits a value."""

import torch
from torch import Tensor, nn

import thinpipe
from thinpipe.data.digits import load_digits


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.deep, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(images)))
        x = x + torch.relu(self.deep(x))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = load_digits()
    # Any model that torch.export can trace is cut so, at the names that model.named_modules() has.
    stages = thinpipe.split(Net(), at=["deep", "head"], example=digits.train_images[:16])
    pipe = thinpipe.Pipe(stages, devices=["cpu"] * 3, chunks=4, codec="wave:4", grad_codec="wave:4")
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step in range(1, 41):
        rows = torch.randint(len(digits.train_labels), (64,))
        loss = nn.functional.cross_entropy(pipe(digits.train_images[rows]), digits.train_labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            flows = [flow for cut in pipe.traffic() for flow in cut]  # there, and back
            packed, raw = sum(flow.packed for flow in flows), sum(flow.raw for flow in flows)
            print(f"step {step}: loss {loss:.3f}, {packed / step:,.0f} bytes a batch, {raw / step:,.0f} unpacked")
