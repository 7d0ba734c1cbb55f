"""One of two processes that train a model with bottlenecks as a pipeline; writes how far it is from one device.

Run as ``python ranks.py RANK STORE``.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from bottleneck.models import TEXTS, batch, chained, cut, example, grads, images, loss_fn
from thinpipe import Pipeline
from thinpipe.bottleneck import insert


def stages():
    return insert(cut(images(norm=False)), TEXTS, example=example(), seed=5)


def training(schedule):
    """The largest difference of loss and gradients, for batches that divide evenly and others."""
    bare = chained(stages())
    names = {name.split(".", 1)[1]: weight for name, weight in bare.named_parameters()}
    found = []
    options = {"chunks": 3, "loss_fn": loss_fn, "map": (0, 1, 0), "schedule": schedule}
    with Pipeline(stages(), **options) as pipeline:
        for rows in (6, 7, 1):
            x, y = batch(rows)
            pipeline.zero_grad()
            bare.zero_grad()
            expected = loss_fn(bare(x), y)
            expected.backward()
            found.append(abs(float(pipeline.step(x, y)) - expected.item()))
            found += [float((grad - names[name].grad).abs().max()) for name, grad in grads(pipeline).items()]
        return {"difference": max(found), "names": list(pipeline.state_dict())}


if __name__ == "__main__":
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    sys.stdout.write(json.dumps({schedule: training(schedule) for schedule in ("1f1b", "zb")}))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)
