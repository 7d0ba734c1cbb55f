"""What ranks do in test_pipeline_replicas.py: two pipelines of two ranks, beside one device with all rows."""

import copy

import torch
from pipeline_cases import WIDTH, batch, close_to_bare, difference, grads_of, layers, pipelines, weights_of
from pipeline_feature_cases import Scores, normed
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn import functional

from thinpipe.stages.microbatch import row_counts


def model_of(kind, stages=2):
    """The stages of a model, the same on all ranks."""
    torch.manual_seed(5)
    if kind == "tied":
        embedding = nn.Embedding(11, WIDTH)
        inner = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages - 2)]
        return [stage.double() for stage in (embedding, *inner, Scores(embedding))]
    return [nn.Sequential(*part) for part in layers(kind, stages)]


def data_of(kind, rows, seed=2):
    if kind == "tied":
        ids = torch.randint(11, (rows,), generator=torch.Generator().manual_seed(seed))
        return ids, (ids * 3) % 11
    return batch(rows, seed=seed)


def own_rows(values, sizes, replica):
    """The contiguous part of a batch that a replica gets."""
    return values.split(sizes)[replica]


def mesh_gradients(site, kind, schedule, sizes, steps=2, replicas=2, workers=None, spoiled=True, **options):
    """Steps without ``zero_grad`` between them, with ``sizes`` rows in each replica."""
    stages = len(workers or ()) or site.world // replicas
    model = model_of(kind, stages)
    bare = copy.deepcopy(nn.Sequential(*model))
    if spoiled and site.rank >= site.world // replicas:
        with torch.no_grad():
            for parameter in nn.Sequential(*model).parameters():
                parameter += 1.0  # replicas that began otherwise must begin as the first one does
    found = []
    with pipelines(site, model, schedule=schedule, replicas=replicas, map=workers, **options) as pipeline:
        for step in range(steps):
            x, y = data_of(kind, sum(sizes), seed=step)
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
            mine = [own_rows(each, sizes, pipeline.replica) for each in (x, y)]
            found.append(close_to_bare(pipeline, bare, pipeline.step(*mine), expected))
            found.append(abs(float(pipeline.evaluate(*mine)) - float(expected.detach())))
        took = pipeline.statistics
        bytes_ = sum(parameter.numel() * parameter.element_size() for parameter in pipeline.parameters())
        return {
            "difference": max(found),
            "place": [pipeline.rank, pipeline.replica, pipeline.worker, pipeline.replicas],
            "reduced": took.reduced == bytes_ and took.reducing > 0,
        }


def mesh_training(site, clip, steps=4):
    """An optimizer with momentum, on batches of different sizes of which the last leaves one replica nothing to do."""
    model = model_of("chain")
    bare = copy.deepcopy(nn.Sequential(*model))
    found = []
    with pipelines(site, model, replicas=2) as pipeline:
        ours = torch.optim.AdamW(pipeline.parameters(), lr=0.05)
        theirs = torch.optim.AdamW(bare.parameters(), lr=0.05)
        for step in range(steps):
            x, y = batch(7 - 2 * step, seed=step)
            sizes = row_counts(len(x) + 1, 2)
            sizes[1] -= 1
            for optimizer in (ours, theirs):
                optimizer.zero_grad(set_to_none=step != 1)
            mine = [own_rows(each, sizes, pipeline.replica) for each in (x, y)]
            loss = pipeline.step(*mine)
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
            if clip:
                norm = pipeline.clip_grad_norm_(0.05)
                wanted = torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.05)
                found.append(abs(float(norm) - float(wanted)))
            found.append(close_to_bare(pipeline, bare, loss, expected))
            for optimizer in (ours, theirs):
                optimizer.step()
        found.append(difference(weights_of(pipeline), weights_of(bare)))
        return {"difference": max(found), "weights": [p.tolist() for p in pipeline.parameters()]}


def mesh_outputs(site):
    """Without targets every replica has its own rows' output; one that has none has no output."""
    model = model_of("chain")
    bare = copy.deepcopy(nn.Sequential(*model)).eval()
    x, _ = batch(5)
    found = []
    with pipelines(site, model, replicas=2) as pipeline:
        for sizes in ([3, 2], [5, 0]):
            output = pipeline.evaluate(own_rows(x, sizes, pipeline.replica))
            expected = own_rows(bare(x), sizes, pipeline.replica).detach()
            if output is None:
                found.append("none" if pipeline.worker == 1 and len(expected) == 0 else "elsewhere")
            else:
                found.append(float((output - expected).abs().max()))
    return found


def mesh_statistics(site, deferred):
    """BatchNorm's statistics: those of replica 0's micro-batches, everywhere."""
    model = normed()
    bare = copy.deepcopy(nn.Sequential(*model))
    x, y = batch(9)
    with pipelines(site, model, replicas=2, chunks=2, deferred_batch_norm=deferred) as pipeline:
        for _ in range(2):
            sizes = [5, 4]
            pipeline.step(*(own_rows(each, sizes, pipeline.replica) for each in (x, y)))
            first = own_rows(x, sizes, 0)
            for piece in [first] if deferred else first.split(row_counts(5, 2)):
                bare[0][:2](piece)  # up to the first BatchNorm, which no dropout has come before
        ours = {name: value for name, value in pipeline.named_buffers() if name.startswith("0.")}
        return {
            "difference": difference(ours, dict(bare.named_buffers())),
            "buffers": {name: value.tolist() for name, value in pipeline.named_buffers()},
        }


def mesh_scaling(site):
    """An overflow in one replica's rows skips the step in all."""
    torch.manual_seed(5)
    model = [stage.float() for stage in model_of("chain")]
    scaler = ShardedGradScaler("cpu", init_scale=1024.0, process_group=site.group)
    scales, moved = [], []
    with pipelines(site, model, replicas=2, scaler=scaler) as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        for step in range(3):
            x, y = batch(4, torch.float32, seed=step)
            if step == 1 and pipeline.replica == 1:
                x = x * torch.inf
            before = [parameter.detach().clone() for parameter in pipeline.parameters()]
            pipeline.step(x, y)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            moved.append(not all(map(torch.equal, before, pipeline.parameters())))
        weights = [parameter.tolist() for parameter in pipeline.parameters()]
    return {"scales": scales, "moved": moved, "weights": weights}


class Seldom(nn.Module):
    """Uses one of its layers for large inputs only, and one never."""

    def __init__(self):
        super().__init__()
        self.always, self.large, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        y = self.always(x)
        return y + self.large(x) if x.abs().max() > 100 else y


def mesh_unused(site):
    """A layer that one replica alone needs is trained in all; one that nobody needs has no gradient."""
    torch.manual_seed(5)
    model = [Seldom().double(), nn.Linear(WIDTH, 3).double()]
    bare = copy.deepcopy(nn.Sequential(*model))
    x, y = batch(4)
    x[2:] *= 1000.0
    parts = [
        functional.cross_entropy(bare(piece), target) for piece, target in zip(x.split(2), y.split(2), strict=True)
    ]
    expected = sum(parts) / 2
    expected.backward()
    with pipelines(site, model, replicas=2, chunks=1) as pipeline:
        loss = pipeline.step(*(own_rows(each, [2, 2], pipeline.replica) for each in (x, y)))
        return {
            "difference": close_to_bare(pipeline, bare, loss, expected),
            "grads": [g is not None for g in grads_of(pipeline).values()],
        }


def mesh_refused(site, what):
    """A mistake: what it says on this rank, and how long that took."""
    model = model_of("chain")
    replicas = {"other number": 1 if site.rank == 1 else 2, "not divisible": 3}.get(what, 2)
    try:
        with pipelines(site, model, replicas=replicas) as pipeline:
            x, y = batch(4)
            if what == "empty":
                pipeline.step(x[:0], y[:0])
            if what == "frozen" and site.rank == 0:
                next(pipeline.parameters()).requires_grad_(False)
            if what == "evaluates" and pipeline.replica == 1:
                pipeline.evaluate(x, y)
            if what == "targets":
                pipeline.evaluate(x, y if pipeline.replica else None)
            for _ in range(2):  # a rank that has done its part of the first need not know of it before the second
                pipeline.step(x, y)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was wrong"


def mesh_traced(site, path):
    with pipelines(site, model_of("chain"), replicas=2, trace=path) as pipeline:
        pipeline.step(*batch(4))


def gathering(site):
    """A word of every rank; then one rank comes with another word, and one with too long a word."""
    found = []
    for words in (["a", "a"], ["a", "b"], ["a", "long"]):
        word = words[site.rank]
        try:  # around all of it: one rank may have failed before the other has made its pipeline
            with pipelines(site, model_of("chain")) as pipeline:
                found.append(pipeline.gather(word, [site.rank, "x" * 40000 if word == "long" else None]))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found
