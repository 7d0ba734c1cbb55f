"""What ranks do in test_pipeline_equals_one_device.py. Each case returns what its rank found, for the test to judge."""

import contextlib
import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional

from support import Begin, End
from thinpipe import Pipe, Pipeline
from thinpipe.skip import Namespace

WIDTH = 6
CLASSES = 3


def shape_of(kind, schedule, world):
    """Lists the rank of each stage."""
    if kind == "U":
        return [*range(world), *reversed(range(world - 1))]
    return list(range(world)) * (2 if schedule == "interleaved" else 1)


def layers(kind, stages, dtype=torch.float64):
    """Makes a model with a list of layers for each stage; the same on all ranks."""
    torch.manual_seed(1)
    inner = [[nn.Linear(WIDTH, WIDTH), nn.Tanh()] for _ in range(stages - 2)]
    first, last = [nn.Linear(WIDTH, WIDTH), nn.GELU()], [nn.Linear(WIDTH, CLASSES)]
    if kind == "skips":
        # Two skips of one name, one inside the other; where there are two stages only, both leave the first.
        outer, nested = Namespace(), Namespace()
        first = [Begin(WIDTH).isolate(outer), *first, Begin(WIDTH).isolate(nested)]
        last = [End(WIDTH).isolate(nested), End(WIDTH).isolate(outer), *last]
    return [[layer.to(dtype) for layer in part] for part in (first, *inner, last)]


def batch(rows, dtype=torch.float64, seed=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator).to(dtype)
    return x, torch.randint(CLASSES, (rows,), generator=generator)


def sequence(parts):
    """Joins the stages' layers to the whole model."""
    return nn.Sequential(*(layer for part in parts for layer in part))


def difference(ours, theirs):
    """The largest difference of named tensors, for those that we have; infinite if one of two is missing."""
    pairs = [(mine, theirs[name]) for name, mine in ours.items()]
    if any((a is None) != (b is None) for a, b in pairs):
        return float("inf")
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a is not None), default=0.0)


def grads_of(module):
    return {name: parameter.grad for name, parameter in module.named_parameters(remove_duplicate=False)}


def weights_of(module):
    return {name: parameter.detach() for name, parameter in module.named_parameters(remove_duplicate=False)}


def close_to_bare(pipeline, bare, loss, expected):
    """What is to be almost nothing: differences of the loss and of all gradients of this rank."""
    return max(abs(float(loss) - float(expected.detach())), difference(grads_of(pipeline), grads_of(bare)))


def gradients(site, kind, schedule, rows, chunks=4):
    """One pipeline, a step for each number of rows; each step's gradients alone."""
    workers = shape_of(kind, schedule, site.world)
    parts = layers(kind, len(workers))
    bare = copy.deepcopy(sequence(parts))
    found = {}
    with Pipeline(
        sequence(parts),
        balance=[len(part) for part in parts],
        chunks=chunks,
        loss_fn=functional.cross_entropy,
        schedule=schedule,
        map=workers,
        group=site.group,
    ) as pipeline:
        for count in rows:
            x, y = batch(count)
            pipeline.zero_grad()
            bare.zero_grad()
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
            loss = pipeline.step(x, y)
            found[count] = close_to_bare(pipeline, bare, loss, expected)
    return found


def training(site, schedule, kind, steps=5):
    """Steps of an optimizer with momentum, on batches of different sizes; compares weights at the end."""
    workers = shape_of(kind, schedule, site.world)
    parts = layers(kind, len(workers))
    bare = copy.deepcopy(sequence(parts))
    with Pipeline(
        sequence(parts),
        balance=[len(part) for part in parts],
        chunks=3,
        loss_fn=functional.cross_entropy,
        schedule=schedule,
        map=workers,
        group=site.group,
    ) as pipeline:
        ours = torch.optim.SGD(pipeline.parameters(), lr=0.3, momentum=0.9)
        theirs = torch.optim.SGD(bare.parameters(), lr=0.3, momentum=0.9)
        losses = []
        for step in range(steps):
            x, y = batch(9 - step, seed=step % 2)
            for optimizer in (ours, theirs):
                optimizer.zero_grad()
            losses.append(float(pipeline.step(x, y)))
            functional.cross_entropy(bare(x), y).backward()
            for optimizer in (ours, theirs):
                optimizer.step()
        return {
            "weights": difference(weights_of(pipeline), weights_of(bare)),
            "losses": losses,
        }


def against_torch(site, theirs, ours, depth):
    """The same step by torch.distributed.pipelining; ``depth`` stages a rank."""
    from torch.distributed import pipelining

    workers = list(range(site.world)) * depth
    parts = layers("chain", len(workers))
    x, y = batch(8)
    modules = [nn.Sequential(*part) for part in copy.deepcopy(parts)]
    stages = [
        pipelining.PipelineStage(modules[j], j, len(workers), torch.device("cpu"), group=site.group)
        for j, worker in enumerate(workers)
        if worker == site.rank
    ]
    kind = getattr(pipelining, theirs)
    single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, n_microbatches=4, loss_fn=functional.cross_entropy)
    losses = []
    first, last = site.rank == 0, site.rank == workers[-1]
    schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    with Pipeline(
        [nn.Sequential(*part) for part in parts],
        chunks=4,
        loss_fn=functional.cross_entropy,
        schedule=ours,
        map=workers,
        group=site.group,
    ) as pipeline:
        loss = pipeline.step(x, y)
        whole = nn.Sequential(*modules)
        found = difference(grads_of(pipeline), grads_of(whole))
    if last:
        found = max(found, abs(float(loss) - float(torch.stack(losses).mean().detach())))
    return found


def by_cut(choice):
    """Restores the numbers of cuts, which JSON made texts of."""
    return {int(cut): spec for cut, spec in choice.items()} if isinstance(choice, dict) else choice


def same_bits_as_pipe(site, codec, grad_codec, kind="chain", steps=3):
    """Counts differing values after each of some steps, against a Pipe in this process with the same codecs."""
    workers = shape_of(kind, "gpipe", site.world)
    parts = layers(kind, len(workers), torch.float32)
    balance = [len(part) for part in parts]
    options = {"codec": by_cut(codec), "grad_codec": by_cut(grad_codec)}
    pipe = Pipe(
        copy.deepcopy(sequence(parts)), balance, devices=["cpu"] * len(balance), chunks=4, checkpoint="never", **options
    )
    differing = []
    with Pipeline(
        sequence(parts),
        balance=balance,
        chunks=4,
        loss_fn=functional.mse_loss,
        schedule="gpipe",
        map=workers,
        group=site.group,
        **options,
    ) as pipeline:
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (pipeline, pipe)]
        for step in range(steps):
            x, _ = batch(8, torch.float32, seed=step)
            y = x[:, :CLASSES].sin()
            for optimizer in optimizers:
                optimizer.zero_grad()
            pipeline.step(x, y)
            # As the pipeline weighs it: by powers of two, so that no bit depends on the order of multiplications.
            losses = [functional.mse_loss(*each) for each in zip(pipe(x).split(2), y.split(2), strict=True)]
            (sum(losses) / 4).backward()
            theirs = grads_of(pipe)
            differing.append(sum(int((g != theirs[name]).sum()) for name, g in grads_of(pipeline).items()))
            for optimizer in optimizers:
                optimizer.step()
        own, whole = pipeline.codec_state_dict(), pipe.codec_state_dict()
        strangers = [name for name in own if name not in whole]
        return {"differing": differing, "remembered": len(own), "strangers": strangers}


def mishap(site, what, culprit=1):
    """One rank does not answer as it should."""
    if site.rank == culprit:
        if what == "ends":
            os._exit(3)
        while what == "hangs":
            time.sleep(0.1)
    return "well"


@contextlib.contextmanager
def pipelines(site, stages, **options):
    """A pipeline with the settings that most cases have."""
    settings = {"chunks": 4, "loss_fn": functional.cross_entropy, "group": site.group, **options}
    with Pipeline(stages, **settings) as pipeline:
        yield pipeline
