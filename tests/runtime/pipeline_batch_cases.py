"""What ranks do in test_pipeline_batches.py: they draw batches as users do, and stages draw beside them."""

import copy
import time
import warnings

import torch
from pipeline_cases import WIDTH, batch, close_to_bare, pipelines
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from thinpipe import Pipe
from thinpipe.runtime.randomness import StepSeeds
from thinpipe.stages.microbatch import row_counts

SEED = 11


class Drops(nn.Module):
    """A layer with dropout, that begins a stage and ends it."""

    def __init__(self, width=WIDTH, p=0.4):
        super().__init__()
        self.linear, self.p = nn.Linear(WIDTH, width), p

    def forward(self, x):
        return functional.dropout(torch.tanh(self.linear(x)), self.p, self.training)


class DropsInACheckpoint(Drops):
    """The same, recomputed by PyTorch's own means."""

    def forward(self, x):
        return torch_checkpoint(super().forward, x, use_reentrant=False)


def dropping(stages, where, kind=Drops):
    """The stages of a model of which some drop out."""
    torch.manual_seed(6)
    widths = [WIDTH] * (stages - 1) + [3]
    return [kind(width, 0.4 if j in where else 0.0).double() for j, width in enumerate(widths)]


def on_one_device(bare, x, y, step, chunks, seed=SEED):
    """A step of the model that draws, where a stage begins, from the seed that the stage has for a micro-batch."""
    total = 0.0
    with torch.random.fork_rng():
        pieces = zip(*(each.split(row_counts(len(x), chunks)) for each in (x, y)), strict=True)
        for i, (piece, targets) in enumerate(pieces):
            for j, stage in enumerate(bare):
                torch.manual_seed(StepSeeds(seed, step).seed(j, i))
                piece = stage(piece)
            total = total + functional.cross_entropy(piece, targets) * len(targets) / len(x)
        total.backward()
    return total


def epochs_of_randperm(site, where, epochs=3, **options):
    """Every rank calls ``torch.randperm`` itself: differences of losses and gradients to one device."""
    model = dropping(site.world, where)
    bare = copy.deepcopy(nn.Sequential(*model))
    x, y = batch(24)
    torch.manual_seed(5)
    orders = torch.Generator().manual_seed(5)
    found, step = [], 0
    with pipelines(site, model, chunks=3, seed=SEED, **options) as pipeline:
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.3) for module in (pipeline, bare)]
        for _ in range(epochs):
            pairs = zip(torch.randperm(24).split(7), torch.randperm(24, generator=orders).split(7), strict=True)
            for rows, same in pairs:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                expected = on_one_device(bare, x[same], y[same], step, 3)
                found.append(close_to_bare(pipeline, bare, pipeline.step(x[rows], y[rows]), expected))
                for optimizer in optimizers:
                    optimizer.step()
                step += 1
            pipeline.evaluate(x, y)
    return found


def checkpointed_inside(site):
    """A stage that calls ``torch.utils.checkpoint``, beside one device."""
    model = dropping(site.world, range(site.world), DropsInACheckpoint)
    bare = copy.deepcopy(nn.Sequential(*model))
    x, y = batch(8)
    with pipelines(site, model, seed=SEED) as pipeline:
        return close_to_bare(pipeline, bare, pipeline.step(x, y), on_one_device(bare, x, y, 0, 4))


class Noise(nn.Module):
    """Draws in evaluation, too: by operators that can be given a generator, and by one that cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x):
        return functional.rrelu(x * 0 + self.linear.bias * 0 + torch.rand(WIDTH), training=True) + torch.randn_like(x)


def noisy_loss(output, target):
    return functional.mse_loss(output + torch.rand_like(output), target)


def noise(site, seed=None, own=False, **options):
    """What is drawn, and what that does to this rank's generator."""
    replicas = options.get("replicas", 1)
    if own:
        torch.manual_seed(100 + site.rank)
    x = torch.zeros(8, WIDTH, dtype=torch.float64)
    settings = {"loss_fn": noisy_loss, "seed": seed, **options}
    model = [Noise() for _ in range(site.world // replicas)]
    with pipelines(site, model, **settings) as pipeline:
        torch.rand(3)
        before = torch.get_rng_state()
        outputs = [pipeline.evaluate(x) for _ in range(2)]
        losses = [float(pipeline.step(x, x)) for _ in range(3)]
        outputs.append(pipeline.evaluate(x))
        kept = torch.equal(torch.get_rng_state(), before)
        state = pipeline.rng_state_dict()
    shown = [None if output is None else output.tolist() for output in outputs]
    return {"kept": kept, "losses": losses, "outputs": shown, "state": state}


def a_pipe_in_a_stage(site):
    """Its threads draw by an operator that takes no generator, while the rank has the default one."""
    inner = Pipe(nn.Sequential(Noise(), Noise()), [1, 1], devices=["cpu"] * 2, chunks=2)
    stages = [inner, nn.Linear(WIDTH, 3).double()]
    x, y = batch(8)
    before = torch.get_rng_state()
    with pipelines(site, stages) as pipeline:
        losses = [float(pipeline.step(x, y)) for _ in range(2)]
    return {"kept": torch.equal(torch.get_rng_state(), before), "losses": losses}


# -- ranks that are not at the same rows -------------------------------------------------------------------------------


def attempted(attempt):
    """What became of an attempt, the warnings included, and how long it took."""
    began, error = time.monotonic(), None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            attempt()
        except Exception as raised:
            error = raised
    return {
        "kind": None if error is None else type(error).__name__,
        "text": str(error or ""),
        "warned": [str(each.message) for each in caught if each.category is RuntimeWarning],
        "seconds": time.monotonic() - began,
    }


def rows_apart(site, what, culprit=2, steps=4):
    """From step 1 on, one rank takes other rows."""
    model = dropping(site.world, ())
    x, y = batch(32)
    first, last = site.rank == 0, site.rank == site.world - 1
    mine = torch.Generator().manual_seed(5)

    def attempt():
        alone = {"loss_fn": torch.mean} if what == "a loss alone" else {}
        with pipelines(site, model, **alone) as pipeline:
            for step in range(steps):
                if step == 1 and site.rank == culprit and what in ("targets", "rows", "nobody knows"):
                    (torch.default_generator if what == "nobody knows" else mine).manual_seed(6)
                rows = torch.randperm(32, generator=None if what == "nobody knows" else mine)[:9]
                inputs, targets, named = x[rows], y[rows], None
                if what != "targets":
                    inputs, targets = inputs if first else None, targets if last else None
                if what in ("rows", "rows with generators apart") or (what == "rows of some" and not last):
                    named = rows
                if what == "rows with generators apart" and first:
                    torch.rand(1)
                if what == "numbers":
                    named = step if site.rank != culprit or step < 1 else step + 1
                if what == "a loss alone":
                    targets, named = None, None
                    torch.rand(site.rank)
                if what == "placeholders" and first:
                    targets = torch.zeros(1)
                if what == "nonsense":
                    named = {"rows": object()}.values()
                pipeline.step(inputs, targets, rows=named)

    return attempted(attempt)


def step_left_out(site, culprit, then, targets=True):
    """One rank leaves out the third of five batches."""
    model = dropping(site.world, ())
    x, y = batch(40)

    def attempt():
        with pipelines(site, model, patience=20.0) as pipeline:
            for number, rows in enumerate(torch.randperm(40).split(8)):
                if number == 2 and site.rank == culprit:
                    continue
                if targets:
                    pipeline.step(x[rows], y[rows])
                else:
                    pipeline.step(x[rows] if site.rank == 0 else None, y[rows] if site.rank == site.world - 1 else None)
                if then == "clips":
                    pipeline.clip_grad_norm_(1.0)
            if then == "gathers":
                pipeline.gather("the end of an epoch", site.rank)
            if then == "evaluates":
                pipeline.evaluate(x, y)

    return attempted(attempt)
