"""One of two processes that train a Pipe inside DistributedDataParallel, case after case, and report what differs.

Run as ``python ddp_rank.py RANK STORE``; prints one JSON object with the largest difference of each case.
"""

import copy
import itertools
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinpipe import Pipe

RANKS = 2
ROWS = 6


class Branch(nn.Module):
    """Has a layer that is used in some batches only."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.always(x) + self.sometimes(x) if bool((x > 0).all()) else self.always(x)


def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)).double()


def branching():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Branch(), nn.Linear(4, 2)).double()


def normed():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2)).double()


def loss_of(output):
    return output.square().mean()


def one_device(model, batches):
    """Accumulates the gradients of all ranks' batches, each rank's loss being a mean over as many rows."""
    for batch in batches:
        (loss_of(model(batch)) / RANKS).backward()


def difference(ours, theirs):
    pairs = list(zip(ours, theirs, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in pairs if a is not None)


def case(make, checkpoint, options, *, accumulate=False):
    torch.manual_seed(0)
    model = make()
    bare = copy.deepcopy(model)
    pipe = Pipe(model, [2, 2], devices=["cpu"] * 2, chunks=1 if make is normed else 3, checkpoint=checkpoint)
    ddp = DistributedDataParallel(pipe, **options)
    batches = [torch.randn(ROWS, 4, dtype=torch.float64) for _ in range(RANKS * 2)]
    mine = batches[dist.get_rank() :: RANKS]
    for _ in range(2):  # the second step would fail if the first had left a reduction unfinished
        ddp.zero_grad()
        bare.zero_grad()
        if accumulate:
            with ddp.no_sync():
                loss_of(ddp(mine[0])).backward()
            loss_of(ddp(mine[1])).backward()
            one_device(bare, batches)
        else:
            loss_of(ddp(mine[0])).backward()
            one_device(bare, batches[:RANKS])
    return difference([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


def main():
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    results = {}
    for make, checkpoint in itertools.product((plain, branching, normed), ("always", "except_last", "never")):
        options = {"find_unused_parameters": make is branching}
        results[f"{make.__name__} {checkpoint}"] = case(make, checkpoint, options)
    for checkpoint in ("always", "never"):
        results[f"accumulated {checkpoint}"] = case(plain, checkpoint, {}, accumulate=True)
        results[f"bucket views {checkpoint}"] = case(plain, checkpoint, {"gradient_as_bucket_view": True})
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(results))
    sys.stdout.flush()
    # Gloo's own threads may let go of a last tensor while the interpreter shuts down, which aborts the process
    # (pytorch/pytorch#179291). Nothing is left to do here: leave without that shutdown.
    os._exit(0)


if __name__ == "__main__":
    main()
