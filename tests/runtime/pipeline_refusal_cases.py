"""What ranks do in test_pipeline_refuses.py: each ends with an error, says which, and then trains as if nothing was."""

import time
from typing import NamedTuple

import torch
from left_behind import threads_left
from pipeline_cases import batch, by_cut, gradients, layers, pipelines
from torch import nn
from torch.nn import functional

import thinpipe
from thinpipe.runtime.ties import Ties


def refused(attempt, site):
    """What became of an attempt that must fail, and whether the same processes can train afterwards."""
    began = time.monotonic()
    try:
        attempt()
    except Exception as error:
        found = {"kind": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", [])}
    else:
        found = {"kind": None, "text": "", "notes": []}
    found["seconds"] = time.monotonic() - began
    found["after"] = max(gradients(site, "chain", "1f1b", [5]).values())
    return found


def stages(widths=(6, 6, 3)):
    torch.manual_seed(1)
    return [nn.Linear(a, b).double() for a, b in zip((6, *widths), widths, strict=False)]


def started(site, own=None, all_ranks=None, culprit=1, version=None):
    """Makes a pipeline with settings that one rank has alone."""
    options = {**(all_ranks or {}), **((own or {}) if site.rank == culprit else {})}
    options |= {name: by_cut(options[name]) for name in ("codec", "grad_codec") if name in options}
    widths = options.pop("widths", (6, 6, 3))
    model = stages(widths) if "balance" not in options else nn.Sequential(*stages(widths))

    def attempt():
        before = thinpipe.__version__
        thinpipe.__version__ = version if version and site.rank == culprit else before
        try:
            with pipelines(site, model, **options) as pipeline:
                pipeline.step(*batch(8))
        finally:
            thinpipe.__version__ = before

    return refused(attempt, site)


class Opaque:
    """A class that no other process needs to know."""


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


class Returns(nn.Module):
    """Returns its input beside something else."""

    def __init__(self, beside):
        super().__init__()
        self.linear, self.beside = nn.Linear(6, 6).double(), beside

    def forward(self, x):
        x = self.linear(x[0] if isinstance(x, tuple) else x)
        return Pair(x, 1) if self.beside == "a named tuple" else (x, STRANGERS.get(self.beside))


STRANGERS = {
    "a set": {1, 2},
    "an object": Opaque(),
    "a function": batch,
    "bytes": b"raw",
    "a sparse tensor": torch.eye(3).to_sparse(),
    "a key of another kind": {(1, 2): 3},
}


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3).double()

    def forward(self, pair):
        return self.linear(pair[0])


def travels(site, beside):
    """The middle stage of three returns something that cannot travel."""
    model = [nn.Linear(6, 6).double(), Returns(beside), Takes()]

    def attempt():
        with pipelines(site, model) as pipeline:
            pipeline.step(*batch(8))

    return refused(attempt, site)


class Fails(nn.Module):
    """Fails on its third micro-batch, there or on the way back."""

    def __init__(self, where):
        super().__init__()
        self.linear, self.where, self.calls = nn.Linear(6, 6).double(), where, 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if self.calls == 3 and self.where == "forward":
            raise ZeroDivisionError("of the model's own")
        if self.calls == 3:
            y.register_hook(self.fail)
        return y

    def fail(self, grad):
        raise ZeroDivisionError("of the model's own")


def fails(site, where, schedule):
    """The middle stage of three raises an error of its own; the last may be done with the step, and starts another."""
    model = [nn.Linear(6, 6).double(), Fails(where), nn.Linear(6, 3).double()]

    def attempt():
        with pipelines(site, model, schedule=schedule) as pipeline:
            for _ in range(2):
                pipeline.step(*batch(8))

    return refused(attempt, site)


def no_mean(output, target):
    return functional.cross_entropy(output, target, reduction="none")


def no_tensor(output, target):
    return float(functional.cross_entropy(output, target))


def nothing(output, target):
    return None


def broken(output, target):
    raise KeyError("loss")


LOSSES = {each.__name__: each for each in (no_mean, no_tensor, nothing, broken)}


def stepped(site, what):
    """Something is wrong with a step of a pipeline that has done one, and does no other."""
    x, y = batch(8)
    parts = layers("chain", site.world)
    first, last = site.rank == 0, site.rank == site.world - 1
    loss_fn = LOSSES.get(what, functional.cross_entropy)

    def attempt():
        pipeline = thinpipe.Pipeline(
            [nn.Sequential(*part) for part in parts], chunks=4, loss_fn=loss_fn, group=site.group, patience=20.0
        )
        try:
            if what not in LOSSES:
                pipeline.step(x, y)
            wrong_step(pipeline)
        except Exception as error:
            again(pipeline, error)
            raise
        finally:
            pipeline.close()
            pipeline.close()

    def wrong_step(pipeline):
        if what == "an empty batch":
            pipeline.step(x[:0], y[:0])
        elif what == "no inputs":
            pipeline.step(None, y)
        elif what == "targets of another length":
            pipeline.step(x, y[:5] if last else y)
        elif what == "inputs of two lengths":
            pipeline.step((x, x[:3]), y)
        elif what == "evaluation on another":
            pipeline.step(x, y) if site.rank != 1 else pipeline.evaluate(x, y)
        elif what == "evaluation on the first":
            pipeline.step(x, y) if not first else pipeline.evaluate(x, y)
        elif what == "a step after the end":
            pipeline.close()
            pipeline.step(x, y)
        elif what == "an error beside the pipeline":
            with pipeline:
                if site.rank == 1:
                    raise ZeroDivisionError("in the user's own loop")
                pipeline.step(x, y)
        else:
            pipeline.step(x, y)

    def again(pipeline, error):
        """A pipeline that failed says so at once, ever after: of two errors at once, the one that came first."""
        several = what in ("a step after the end", "evaluation on the first")
        try:
            pipeline.evaluate(x)
        except Exception as second:
            assert str(second) == str(error) or several, (second, error)
        else:
            raise AssertionError("a pipeline that failed goes on")

    return refused(attempt, site)


def fails_in_its_beginning(site):
    """A rank fails while it makes shared weights equal; names the threads there are while its error is still kept."""

    def make_equal(_):
        raise LookupError(f"rank {site.rank} has no such weight")

    usual, Ties.make_equal = Ties.make_equal, make_equal
    try:
        thinpipe.Pipeline(stages(), chunks=1, loss_fn=functional.cross_entropy, group=site.group)
    except Exception as error:
        return {"text": str(error), "threads": threads_left()}
    finally:
        Ties.make_equal = usual
