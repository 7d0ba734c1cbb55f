"""What ranks do with split models in test_pipeline_hf.py. They import transformers when the first case comes."""

import copy

import torch
from pipeline_cases import close_to_bare, difference, pipelines
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_unflatten

from thinpipe import split
from thinpipe.models.hf import run_uncut
from thinpipe.runtime.randomness import StepSeeds
from thinpipe.stages.microbatch import Batch


def hf_training(site, family, workers, rows, attention="sdpa", schedule="1f1b"):
    """A step for each number of rows, without dropout: the largest difference of loss, gradients and logits."""
    from hf_support import batch, loss_of, make, quiet

    model = quiet(make(family, attention=attention))
    bare, loss_fn = copy.deepcopy(model), loss_of(family)
    parts = split(model, stages=len(workers))
    found = []
    with pipelines(site, parts, chunks=3, loss_fn=loss_fn, map=workers, schedule=schedule) as pipeline:
        for count in rows:
            inputs, targets = batch(family, count)
            expected = loss_fn(run_uncut(bare, inputs), targets)
            expected.backward()
            loss = pipeline.step(inputs, targets)
            found.append(close_to_bare(pipeline, bare, loss, expected))
            logits = pipeline.evaluate(inputs)
            if logits is not None:
                found.append(float((logits - run_uncut(bare, inputs).detach()).abs().max()))
        names = list(pipeline.state_dict())
    return {"difference": max(found), "names": names, "all": list(bare.state_dict())}


def hf_dropout(site, family, workers, checkpoint="never", rows=7, chunks=3):
    """Dropout on: the bare model takes the same micro-batches, and draws at the same places from the same seeds."""
    from hf_support import batch, loss_of, make

    model = make(family)
    bare, loss_fn = copy.deepcopy(model), loss_of(family)
    parts = split(model, stages=len(workers))
    inputs, targets = batch(family, rows)
    with pipelines(site, parts, chunks=chunks, loss_fn=loss_fn, map=workers, checkpoint=checkpoint, seed=9) as pipeline:
        seeds = StepSeeds(9, 0)
        loss = pipeline.step(inputs, targets)
        expected = drawn_alike(bare, parts, seeds, loss_fn, inputs, targets, chunks)
        return close_to_bare(pipeline, bare, loss, expected)


def drawn_alike(bare, parts, seeds, loss_fn, inputs, targets, chunks):
    """Trains the uncut model; where a stage would begin it takes the seed that the stage has for the micro-batch."""
    current = 0
    for j, names in enumerate(parts.names):
        first = bare.get_submodule(names[0])
        first.register_forward_pre_hook(lambda *_, j=j: torch.manual_seed(seeds.seed(j, current)) and None)
    total = 0.0
    batches = [Batch.of(tree, chunks) for tree in (inputs, targets)]
    sizes = batches[0].rows
    for current, leaves in enumerate(zip(*(each.micro_batches() for each in batches), strict=True)):
        piece, target = (tree_unflatten(values, each.spec) for values, each in zip(leaves, batches, strict=True))
        total = total + loss_fn(run_uncut(bare, piece), target) * sizes[current] / sum(sizes)
    total.backward()
    return total


def hf_saving(site, family, workers, path):
    """Trains a step, and leaves the rank's state in a file."""
    from hf_support import batch, loss_of, make, quiet

    inputs, targets = batch(family, 6)
    parts = split(quiet(make(family)), stages=len(workers))
    with pipelines(site, parts, chunks=3, loss_fn=loss_of(family), map=workers) as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        pipeline.step(inputs, targets)
        optimizer.step()
        torch.save(pipeline.state_dict(), f"{path}/{site.rank}.pt")
        logits = pipeline.evaluate(inputs)
    return None if logits is None else logits.tolist()


class Bridged(nn.Module):
    """No sequence: what its first layer computes is used at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.inner = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        early = self.first(x)
        return self.last(self.inner[1](torch.tanh(self.inner[0](early))) + early)


def traced_training(site, workers, at):
    """A model that was traced: the largest difference of loss and gradients."""
    torch.manual_seed(1)
    model = Bridged().double()
    bare = copy.deepcopy(model)
    parts = split(model, at=at, example=torch.randn(2, 4).double())
    found = []
    with pipelines(site, parts, map=workers) as pipeline:
        for rows in (8, 7, 3):
            x, y = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).double(), torch.arange(rows) % 3
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
            found.append(close_to_bare(pipeline, bare, pipeline.step(x, y), expected))
        names = list(pipeline.state_dict())
    return {"difference": max(found), "names": names, "all": list(bare.state_dict())}


class Loose(Bridged):
    """Has parameters and a buffer itself, outside of all its modules; one of them is needed in two stages."""

    def __init__(self):
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(3))
        self.register_buffer("table", torch.randn(6))

    def forward(self, x):
        early = self.first(x) + self.token
        return self.last(self.inner[1](torch.tanh(self.inner[0](early) + self.table)) + self.token) * self.scale


def loose_parameters(site, workers, at):
    """Two steps of an optimizer: the largest difference of losses, gradients and weights."""
    torch.manual_seed(1)
    model = Loose().double()
    bare = copy.deepcopy(model)
    parts = split(model, at=at, example=torch.randn(2, 4).double())
    found = []
    with pipelines(site, parts, map=workers) as pipeline:
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.3) for each in (pipeline, bare)]
        for rows in (8, 7):
            x, y = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).double(), torch.arange(rows) % 3
            for optimizer in optimizers:
                optimizer.zero_grad()
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
            found.append(close_to_bare(pipeline, bare, pipeline.step(x, y), expected))
            for optimizer in optimizers:
                optimizer.step()
        found.append(difference(pipeline.state_dict(), bare.state_dict()))
        return {"difference": max(found), "names": list(pipeline.state_dict()), "all": list(bare.state_dict())}
