"""One rank of a pipeline of which stages are on a GPU: ``cuda_rank.py RANK STORE DEVICES``; prints what differs.

Every rank trains the whole model on its own device as well, with the codecs between its layers, and compares.
"""

import json
import os
import sys
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

from thinpipe import Pipeline, codec, compress

CHUNKS = 4
SPECS = [None, "uniform:8", "block:4", "had:4", "sort:6+2", "topk:0.25"]


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.InstanceNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )


def on_one_device(balance, devices, spec, x, y):
    """Trains with the codec at every cut, each stage where the pipeline has it, micro-batch by micro-batch."""
    whole = model()
    ends = [0]
    for size in balance:
        ends.append(ends[-1] + size)
    parts = [whole[a:b].to(device) for (a, b), device in zip(pairwise(ends), devices, strict=True)]
    there = [None if spec is None else codec(spec) for _ in parts]
    back = [None if spec is None else codec(spec) for _ in parts]
    total = 0.0
    for rows, targets in zip(x.tensor_split(CHUNKS), y.tensor_split(CHUNKS), strict=True):
        value = rows
        for k, (part, device) in enumerate(zip(parts, devices, strict=True)):
            value = compress(value, there[k], back[k]) if k and spec is not None else value
            value = part(value.to(device))
        loss = nn.functional.cross_entropy(value, targets.to(devices[-1])) * (len(rows) / len(x))
        loss.backward()
        total += float(loss.detach())
    return total, dict(whole.named_parameters())


def differences(rank, devices, schedule, spec):
    balance = [3, 2, 2][: len(devices)] if len(devices) == 3 else [3, 4]
    workers = list(range(len(devices))) if len(devices) == 2 else [0, 1, 0]
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(10, 3, 8, 8, generator=generator), torch.randint(0, 10, (10,), generator=generator)
    own = devices[workers.index(rank)]
    options = {"map": workers, "device": own, "schedule": schedule, "codec": spec, "grad_codec": spec}
    with Pipeline(model(), balance=balance, chunks=CHUNKS, loss_fn=nn.functional.cross_entropy, **options) as pipeline:
        loss = float(pipeline.step(x, y))
        expected, parameters = on_one_device(balance, devices, spec, x, y)
        worst = abs(loss - expected)
        for name, parameter in pipeline.named_parameters():
            scale = float(parameters[name].grad.abs().max())
            worst = max(worst, float((parameter.grad.cpu() - parameters[name].grad.cpu()).abs().max()) / scale)
    return worst


def generators_moved(rank, devices):
    """How many of this process's default generators a step with dropout has moved."""
    parts = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)) for _ in devices]
    workers = list(range(len(devices))) if len(devices) == 2 else [0, 1, 0]
    own = devices[workers.index(rank)]
    with Pipeline(
        parts, chunks=2, loss_fn=nn.functional.mse_loss, map=workers, device=own, checkpoint="always"
    ) as ours:
        x = torch.rand(6, 6)
        before = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        losses = {float(ours.step(x, x)) for _ in range(3)}
        after = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    assert len(losses) == 3, "every step draws anew"
    return sum(not torch.equal(*pair) for pair in zip(before, after, strict=True))


def main():
    rank, store, devices = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {
        f"{schedule} {spec}": differences(rank, devices, schedule, spec)
        for schedule in ("gpipe", "1f1b", "zb")
        for spec in SPECS
    }
    found["generators moved, without a codec: None"] = generators_moved(rank, devices)
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # gloo's own threads may outlive the interpreter


if __name__ == "__main__":
    main()
