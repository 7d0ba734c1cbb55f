"""What ranks do in test_pipeline_features.py."""

import copy
import time

import torch
from pipeline_cases import WIDTH, batch, close_to_bare, difference, grads_of, layers, pipelines, sequence, weights_of
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn import functional

from thinpipe import codec
from thinpipe.links import Throttle
from thinpipe.runtime.parcel import Cargo
from thinpipe.stages.microbatch import row_counts

# -- what crosses ------------------------------------------------------------------------------------------------------

BAGGAGE = {"nothing": None, "text": "ein Käse", 7: [True, 3, -2.5, ("nested", float("inf"))], "empty": ((), [], {})}


class Packs(nn.Module):
    """Sends off all that can travel."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        mask = x > 0
        # The same numbers as floats, which are coded, and as integers, which are not.
        ids = (x * 1000).round().long()
        return {"x": self.linear(x), "mask": mask, "ids": ids, "count": mask.sum(), "baggage": BAGGAGE, "given": x}


class Checks(nn.Module):
    """Passes everything on, if it is still what it was."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given):
        assert given["baggage"] == BAGGAGE and list(given) == ["x", "mask", "ids", "count", "baggage", "given"], given
        assert given["mask"].dtype == torch.bool and given["ids"].dtype == torch.int64
        assert torch.equal(given["mask"], given["given"] > 0), "a mask came out another"
        assert torch.equal(given["ids"], (given["given"] * 1000).round().long()), "integers came out others"
        assert given["count"] == given["mask"].sum()
        return {**given, "x": self.linear(given["x"].masked_fill(given["mask"], 0.5))}


class Chooses(nn.Module):
    def forward(self, given):
        return given["x"][:, :3]


def all_that_travels(site, spec):
    stages = [stage.double() for stage in (Packs(), Checks(), Checks(), Chooses())]
    bare = copy.deepcopy(nn.Sequential(*stages))
    x, y = batch(7)
    with pipelines(site, stages, codec=spec, grad_codec=spec) as pipeline:
        loss = pipeline.step(x, y)
        expected = functional.cross_entropy(bare(x), y)
        expected.backward()
        return close_to_bare(pipeline, bare, loss, expected)


class Encoder(nn.Module):
    """Takes its arguments by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, *, scale=1.0):
        hidden = self.linear(x) * scale
        return {"hidden": hidden if mask is None else hidden.masked_fill(mask, 0.0), "mask": mask, "early": hidden}


class Decoder(nn.Module):
    """Has several outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, hidden, early, mask):
        return self.linear(hidden), (early * 2).tanh(), mask


class Spreads(nn.Module):
    def forward(self, logits, early, mask):
        return {"logits": logits * 1.5, "early": early, "mask": mask}


def two_losses(output, targets):
    beside = output["early"].masked_fill(output["mask"], 0.0).mean()
    return functional.cross_entropy(output["logits"], targets["class"]) + targets["weight"] * beside


def names_and_several_outputs(site):
    """Keyword arguments into the first stage, a dictionary, then a tuple; two losses on the last output."""
    stages = [stage.double() for stage in (Encoder(), Decoder(), Spreads())]
    bare = copy.deepcopy(stages)
    x, y = batch(6)
    mask = x > 1
    targets = {"class": y, "weight": 0.3}
    with pipelines(site, stages, loss_fn=two_losses) as pipeline:
        loss = pipeline.step({"x": x, "mask": mask, "scale": 3.0}, targets)
        expected = two_losses(bare[2](*bare[1](**bare[0](x, mask, scale=3.0))), targets)
        expected.backward()
        whole = nn.Sequential(*bare)
        return close_to_bare(pipeline, whole, loss, expected)


def nonsense_where_nothing_is_needed(site):
    parts = layers("chain", site.world)
    bare = copy.deepcopy(sequence(parts))
    x, y = batch(8)
    expected = functional.cross_entropy(bare(x), y)
    expected.backward()
    with pipelines(site, [nn.Sequential(*part) for part in parts]) as pipeline:
        inputs = x if site.rank == 0 else object()
        targets = y if site.rank == site.world - 1 else {"no": object()}
        loss = pipeline.step(inputs, targets)
        renamed = dict(zip(grads_of(pipeline), own_grads(bare, parts, site.rank), strict=True))
        return max(abs(float(loss) - float(expected.detach())), difference(grads_of(pipeline), renamed))


def own_grads(bare, parts, j):
    first = sum(len(part) for part in parts[:j])
    return [parameter.grad for layer in bare[first : first + len(parts[j])] for parameter in layer.parameters()]


# -- recomputation -----------------------------------------------------------------------------------------------------


def normed():
    torch.manual_seed(3)

    def stage(width):
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.4), nn.ReLU(inplace=True), nn.Linear(6, width)
        )

    return [stage(WIDTH).double(), stage(3).double()]


def recomputation(site, checkpoint, recompute, schedule, deferred=False):
    """Compares gradients and running statistics of two steps with those of a pipeline that keeps everything."""
    outcomes = []
    for options in ({"checkpoint": "never"}, {"checkpoint": checkpoint, "recompute": recompute}):
        with pipelines(
            site, normed(), chunks=3, schedule=schedule, deferred_batch_norm=deferred, **options
        ) as pipeline:
            torch.manual_seed(4)
            for rows in (9, 7):
                pipeline.step(*batch(rows))
            assert not grads_of(pipeline)[f"{site.rank}.0.weight"].eq(0).all()
            outcomes.append(grads_of(pipeline) | dict(pipeline.named_buffers()))
    return difference(*outcomes)


def running_statistics(site, deferred):
    """The first BatchNorm sees the same whatever the cut: once a micro-batch, or deferred, once a batch."""
    model = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, 3)]
    model = [stage.double() for stage in model]
    bare = copy.deepcopy(nn.Sequential(*model))
    x, y = batch(7)
    with pipelines(site, model, chunks=3, checkpoint="always", deferred_batch_norm=deferred) as pipeline:
        pipeline.step(x, y)
        pipeline.evaluate(x, y)
        for piece in [x] if deferred else x.split(row_counts(7, 3)):
            bare(piece)
        return difference(dict(pipeline.named_buffers()), dict(bare.named_buffers()))


# -- precision ---------------------------------------------------------------------------------------------------------


class Exact(nn.Module):
    """A layer that leaves autocast, so that its backward is in single precision, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.linear(x.float())


def autocast(site, checkpoint, schedule):
    """Three steps in one autocast region, with an optimizer between: what one device does who knows no pipeline."""
    parts = [[Exact(), *(layer.float() for layer in part)] for part in layers("chain", site.world)]
    bare = copy.deepcopy(sequence(parts))
    batches = [batch(8, torch.float32, seed=step) for step in range(3)]
    expected = [in_bfloat16(bare, x, y) for x, y in batches]
    differences = []
    balance = [len(part) for part in parts]
    with pipelines(site, sequence(parts), balance=balance, checkpoint=checkpoint, schedule=schedule) as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for (x, y), (loss, grads) in zip(batches, expected, strict=True):
                optimizer.zero_grad()
                differences.append(abs(float(pipeline.evaluate(x, y)) - loss))
                differences.append(abs(float(pipeline.step(x, y)) - loss))
                differences.append(difference(grads_of(pipeline), grads))
                optimizer.step()
        output = pipeline.evaluate(x)
    return {"differences": differences, "outside": None if output is None else str(output.dtype)}


def in_bfloat16(bare, x, y):
    """One step as a user takes it who accumulates gradients over micro-batches; autocast is for forwards alone."""
    bare.zero_grad()
    total = 0.0
    for inputs, targets in zip(x.split(2), y.split(2), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(bare(inputs), targets) / 4
        loss.backward()
        total += float(loss.detach())
    grads = {name: grad.clone() for name, grad in grads_of(bare).items()}
    torch.optim.SGD(bare.parameters(), lr=0.5).step()
    return total, grads


def gradient_scaling(site):
    """A good step, then one that overflows on one rank alone, then a good one."""
    parts = layers("chain", site.world, torch.float32)
    bare = copy.deepcopy(sequence(parts))
    scaler = ShardedGradScaler("cpu", init_scale=1024.0, process_group=site.group)
    found = {}
    with pipelines(site, sequence(parts), balance=[len(part) for part in parts], scaler=scaler) as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        reference = torch.optim.SGD(bare.parameters(), lr=0.1)
        x, y = batch(8, torch.float32)
        scales, moved = [], []
        for step in range(3):
            loss = pipeline.step(x, y)
            if step == 0:
                grads = {name: grad / 1024 for name, grad in grads_of(pipeline).items()}
                expected = functional.cross_entropy(bare(x), y)
                expected.backward()
                found["grads"] = max(difference(grads, grads_of(bare)), abs(float(loss) - float(expected.detach())))
                reference.step()
            if step == 1 and site.rank == 1:
                next(pipeline.parameters()).grad[0] = torch.inf
            before = [parameter.detach().clone() for parameter in pipeline.parameters()]
            scaler.unscale_(optimizer)
            norm = pipeline.clip_grad_norm_(1e6)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            moved.append(not all(map(torch.equal, before, pipeline.parameters())))
            if step == 0:
                found["weights"] = difference(weights_of(pipeline), weights_of(bare))
                found["norm"] = float(norm)
    return {**found, "scales": scales, "moved": moved}


def clipping(site, kind):
    """The norm over all ranks, and the clipped gradients, for some norms."""
    parts = layers("chain", site.world)
    if kind == "tied":
        parts[-1][0] = nn.Linear(WIDTH, WIDTH).double()
        parts[-1][0].weight = parts[0][0].weight
    workers = list(range(site.world))
    bare = copy.deepcopy(sequence(parts))
    found = []
    with pipelines(site, sequence(parts), balance=[len(part) for part in parts], map=workers) as pipeline:
        x, y = batch(8)
        for norm_type in (2.0, 1.0, float("inf")):
            pipeline.zero_grad()
            bare.zero_grad()
            pipeline.step(x, y)
            functional.cross_entropy(bare(x), y).backward()
            norm = pipeline.clip_grad_norm_(0.05, norm_type)
            expected = torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.05, norm_type)
            found.append(close_to_bare(pipeline, bare, norm, expected))
    return found


# -- weights -----------------------------------------------------------------------------------------------------------


class Scores(nn.Module):
    """A last layer whose weight is an embedding's."""

    def __init__(self, embedding):
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x):
        return functional.linear(x, self.weight)


def tied(site, workers, schedule="1f1b", steps=3, sparse=False):
    """An embedding that is also the last layer, and one in the middle; two batches a step, and an optimizer."""
    torch.manual_seed(5)
    embedding = nn.Embedding(11, WIDTH, sparse=sparse)
    inner = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in workers[2:]]
    model = [stage.double() for stage in (embedding, *inner, Scores(embedding))]
    bare = copy.deepcopy(nn.Sequential(*model))
    if site.rank != min(workers[0], workers[-1]):
        with torch.no_grad():
            embedding.weight += 1.0  # ranks that began otherwise must begin as the first one does
    differences = []
    with pipelines(site, model, map=workers, schedule=schedule, chunks=2) as pipeline:
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.2) for module in (pipeline, bare)]
        for step in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=step != 1)
            for half in range(2):
                ids = torch.randint(11, (5,), generator=torch.Generator().manual_seed(10 * step + half))
                loss = pipeline.step(ids, (ids * 3) % 11)
                expected = functional.cross_entropy(bare(ids), (ids * 3) % 11)
                expected.backward()
                differences.append(close_to_bare(pipeline, bare, loss, expected))
            for optimizer in optimizers:
                optimizer.step()
        differences.append(difference(weights_of(pipeline), weights_of(bare)))
        return {"differences": differences, "sent": pipeline.statistics.tied.sent}


def frozen(site, which, schedule):
    """Some stages train, some do not."""
    parts = layers("chain", 3)
    for j in which:
        for layer in parts[j]:
            layer.requires_grad_(False)
    bare = copy.deepcopy(sequence(parts))
    x, y = batch(6)
    with pipelines(
        site, sequence(parts), balance=[len(part) for part in parts], schedule=schedule, map=range(3)
    ) as pipeline:
        loss = pipeline.step(x, y)
        expected = functional.cross_entropy(bare(x), y)
        expected.backward()
        return close_to_bare(pipeline, bare, loss, expected)


class Weighing(nn.Module):
    """A loss with a weight of its own, which changes the output in place, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((), 0.7, dtype=torch.float64))
        self.calls = 0

    def forward(self, output, target):
        self.calls += 1
        return functional.cross_entropy(output.mul_(self.scale), target)


def loss_with_a_weight(site, schedule, checkpoint):
    """The loss is a module that trains with the last stage, and is computed once a micro-batch."""
    parts = layers("chain", site.world)
    bare, own = copy.deepcopy(sequence(parts)), Weighing()
    x, y = batch(7)
    theirs = Weighing()
    expected = theirs(bare(x), y)
    expected.backward()
    balance = [len(part) for part in parts]
    settings = {"balance": balance, "schedule": schedule, "checkpoint": checkpoint, "loss_fn": own}
    with pipelines(site, sequence(parts), **settings) as pipeline:
        loss = pipeline.step(x, y)
        calls = own.calls
        worst = close_to_bare(pipeline, bare, loss, expected)
    last = site.rank == pipeline.assembly.workers[-1]
    assert calls == (pipeline.chunks if last else 0), calls
    return max(worst, float((own.scale.grad - theirs.scale.grad).abs())) if last else worst


def accumulation(site, schedule):
    """Two batches of different sizes, gradients added up, whatever was there before."""
    parts = layers("skips", site.world)
    bare = copy.deepcopy(sequence(parts))
    with pipelines(site, sequence(parts), balance=[len(part) for part in parts], schedule=schedule) as pipeline:
        for step in range(2):
            x, y = batch(8 - step, seed=step)
            loss = pipeline.step(x, y)
            expected = functional.cross_entropy(bare(x), y)
            expected.backward()
        return close_to_bare(pipeline, bare, loss, expected)


# -- evaluation, names, numbers ----------------------------------------------------------------------------------------


def evaluation(site):
    model = normed()
    bare = copy.deepcopy(nn.Sequential(*model)).eval()
    x, y = batch(7)
    found = {}
    with pipelines(site, model, chunks=3) as pipeline:
        pipeline.step(x, y)
        if site.rank == 0:
            model[0][2].eval()  # one layer that the user had put into another mode
        bare.load_state_dict(pipeline.state_dict(), strict=False)
        before = {k: v.clone() for k, v in (grads_of(pipeline) | dict(pipeline.named_buffers())).items()}
        modes = [module.training for module in pipeline.modules()]
        output = pipeline.evaluate(x)
        last = site.rank == site.world - 1
        # Only who has the last stage needs targets.
        loss = pipeline.evaluate(x, y if last else None)
        found["modes kept"] = modes == [module.training for module in pipeline.modules()]
        found["kept"] = difference(before, grads_of(pipeline) | dict(pipeline.named_buffers()))
        found["output"] = None if output is None else output.tolist()
        found["loss"] = float(loss)
        found["graph"] = bool(output is not None and output.requires_grad)
        found["state"] = {name: value.tolist() for name, value in pipeline.state_dict().items()}
    return found


def state(site, kind):
    """The names and values of this rank's part, and what comes of loading it."""
    parts = layers("U", 5)
    workers = [0, 1, 2, 1, 0]
    stages = sequence(parts) if kind == "balance" else [nn.Sequential(*part) for part in parts]
    balance = [len(part) for part in parts] if kind == "balance" else None
    expected = (sequence(parts) if kind == "balance" else nn.Sequential(*stages)).state_dict()
    with pipelines(site, stages, balance=balance, map=workers) as pipeline:
        own = {name: value.clone() for name, value in pipeline.state_dict().items()}
        same = all(torch.equal(value, expected[name]) for name, value in own.items())
        with torch.no_grad():
            for parameter in pipeline.parameters():
                parameter.zero_()
        pipeline.load_state_dict(own)
        back = all(torch.equal(value, own[name]) for name, value in pipeline.state_dict().items())
        return {"names": list(own), "all": list(expected), "same": same, "back": back}


def traffic(site):
    """What the meters read in one step, after some that settled the sizes of messages."""
    wide = 64
    model = [nn.Linear(wide, wide), nn.Linear(wide, wide)]
    with pipelines(site, model, loss_fn=functional.mse_loss, codec="block:4", grad_codec="uniform:8") as pipeline:
        x = torch.randn(32, wide)
        readings = []
        for _ in range(6):
            pipeline.step(x, x)
            readings.append(pipeline.statistics.lanes)
        found = {}
        for old, new in zip(readings[-2], readings[-1], strict=True):
            sent, received = (getattr(new.reading, k) - getattr(old.reading, k) for k in ("sent", "received"))
            name = f"{'out' if new.outgoing else 'in'} {'activation' if new.cargo is Cargo.ACTIVATION else 'gradient'}"
            found[name] = {
                "bytes": sent + received,
                "raw": new.reading.raw - old.reading.raw,
                "messages": new.reading.messages - old.reading.messages,
                "ratio": new.ratio,
            }
        found["packed"] = {spec: codec(spec).nbytes([8, wide]) for spec in ("block:4", "uniform:8")}
        took = pipeline.statistics
        found["times"] = [took.seconds, took.computed, took.stalled]
        found["remembered"] = len(pipeline._post._expected)
        pipeline.evaluate(x)
        found["remembered after evaluation"] = len(pipeline._post._expected)
        return found


def throttled(site, rate):
    """How long a step takes on a link of so many bits a second, and how much it sent."""
    wide = 512
    model = [nn.Linear(wide, wide), nn.Linear(wide, 4)]
    with pipelines(site, model, loss_fn=functional.mse_loss, throttle=lambda: Throttle(rate)) as pipeline:
        x, y = torch.randn(64, wide), torch.randn(64, 4)
        sent = []
        for _ in range(3):
            pipeline.step(x, y)
            sent.append(sum(lane.reading.sent for lane in pipeline.statistics.lanes))
        return {"seconds": pipeline.statistics.seconds, "sent": sent[-1] - sent[-2]}


def traced(site, path):
    parts = layers("chain", site.world)
    with pipelines(site, [nn.Sequential(*part) for part in parts], trace=path, codec="uniform:8") as pipeline:
        for _ in range(2):
            pipeline.step(*batch(8))


def twice_at_once(site):
    """Two pipelines of the same ranks that live at the same time."""
    parts = layers("chain", site.world)
    x, y = batch(8)
    with (
        pipelines(site, sequence(copy.deepcopy(parts)), balance=[len(part) for part in parts]) as one,
        pipelines(site, sequence(copy.deepcopy(parts)), balance=[len(part) for part in parts]) as other,
    ):
        return [float(pipeline.step(x, y)) for pipeline in (one, other, one)]


class Slow(nn.Module):
    """Takes its time on the way back."""

    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, x):
        y = self.linear(x)
        if y.requires_grad:
            y.register_hook(lambda grad: time.sleep(self.seconds))
        return y


def leaving_early(site):
    """The last ranks are done, and gone, long before the first."""
    model = [stage.double() for stage in (Slow(0.5), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))]
    bare = copy.deepcopy(nn.Sequential(*model))
    bare[0].seconds = 0.0
    x, y = batch(8)
    expected = functional.cross_entropy(bare(x), y)
    expected.backward()
    with pipelines(site, model, schedule="gpipe") as pipeline:
        loss = pipeline.step(x, y)
        done = time.monotonic()
    return {"difference": close_to_bare(pipeline, bare, loss, expected), "left": done}
