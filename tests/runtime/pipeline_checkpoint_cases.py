"""What ranks do in test_checkpoints.py."""

import argparse
import copy
import importlib.util
import io
import logging
from pathlib import Path

import torch
from pipeline_cases import WIDTH, batch, pipelines
from pipeline_feature_cases import Scores
from torch import nn
from torch.nn import functional

from thinpipe import checkpoint
from thinpipe.errors import ThinpipeError


def deep(kind="deep"):
    """Layers of a model that can be cut into one to four stages."""
    torch.manual_seed(7)
    if kind == "tied":
        embedding = nn.Embedding(11, WIDTH)
        inner = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        return [stage.double() for stage in (embedding, *inner, Scores(embedding))]
    drop = nn.Dropout(0.3) if kind == "dropout" else nn.Tanh()
    found = [nn.Linear(WIDTH, WIDTH), drop, nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    found += [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)]
    return [layer.double() for layer in found]


BALANCES = {
    "deep": {1: [7], 2: [4, 3], 3: [2, 2, 3], 4: [2, 2, 2, 1]},
    "tied": {1: [4], 2: [2, 2], 3: [1, 2, 1], 4: [1] * 4},
}


def data_of(kind, step, rows=8):
    if kind == "tied":
        ids = torch.randint(11, (rows,), generator=torch.Generator().manual_seed(step))
        return ids, (ids * 3) % 11
    return batch(rows, seed=step)


def optimizer_of(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=0.02)


def steps(pipeline, optimizer, kind, numbers):
    for step in numbers:
        optimizer.zero_grad()
        x, y = data_of(kind, step)
        if pipeline.replicas > 1:
            x, y = (each.split([4, 4])[pipeline.replica] for each in (x, y))
        pipeline.step(x, y)
        optimizer.step()


def saved(site, folder, kind="deep", optimizer="adamw", upto=3, loads=False, spoiled=False, **options):
    """Trains some steps, from a checkpoint or from the start, and saves one."""
    model = deep(kind)
    if spoiled:
        for parameter in nn.Sequential(*model).parameters():
            nn.init.zeros_(parameter)
    stages = site.world // options.get("replicas", 1)
    balance = BALANCES["tied" if kind == "tied" else "deep"][stages]
    settings = {"chunks": 1 if kind == "deep" else 2, "balance": balance, **options}
    with pipelines(site, nn.Sequential(*model), **settings) as pipeline:
        own = optimizer_of(optimizer, pipeline.parameters())
        first, logged = 0, io.StringIO()
        if loads:
            if spoiled:
                torch.manual_seed(99)
            handler = logging.StreamHandler(logged)
            logging.getLogger("thinpipe").addHandler(handler)
            first = checkpoint.load(folder, pipeline, own).step
            logging.getLogger("thinpipe").removeHandler(handler)
        steps(pipeline, own, kind, range(first, upto))
        path = checkpoint.save(folder, pipeline, own, step=upto, extra={"lr": [0.5, None]})
        state = {name: value.tolist() for name, value in pipeline.state_dict().items()}
        random = pipeline.rng_state_dict()
        return {"path": str(path), "state": state, "logged": logged.getvalue(), "random": random}


def straight(site, kind, upto=6, optimizer="adamw", **options):
    """Trains without a break; returns the weights."""
    stages = site.world // options.get("replicas", 1)
    balance = BALANCES["tied" if kind == "tied" else "deep"][stages]
    settings = {"chunks": 1 if kind == "deep" else 2, "balance": balance, **options}
    with pipelines(site, nn.Sequential(*deep(kind)), **settings) as pipeline:
        steps(pipeline, optimizer_of(optimizer, pipeline.parameters()), kind, range(upto))
        return {name: value.tolist() for name, value in pipeline.state_dict().items()}


def failing(site, folder, what):
    """A save or a load that fails; says how on this rank, and whether the pipeline trained on, and could save."""
    model = nn.Sequential(*deep())
    with pipelines(site, model, balance=BALANCES["deep"][site.world], chunks=1) as pipeline:
        optimizer = optimizer_of("sgd", pipeline.parameters())
        steps(pipeline, optimizer, "deep", [0])
        own, extra, target = optimizer, None, folder
        if what == "stranger" and site.rank == 1:
            own = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        if what == "extra":
            extra = {"tensor": torch.zeros(2)}
        if what == "not shared":
            target = f"{folder}/{site.rank}"
            Path(target).mkdir(exist_ok=True)
        try:
            if what == "other found":
                if site.rank == 1:
                    checkpoint.load(f"{folder}/elsewhere", pipeline)
                checkpoint.load(folder, pipeline)
            checkpoint.save(target, pipeline, own, step=1, extra=extra)
            said = "nothing was wrong"
        except ThinpipeError as error:
            said = f"{type(error).__name__}: {error}"
        steps(pipeline, optimizer, "deep", [1])
        after = checkpoint.save(f"{folder}/good", pipeline, optimizer, step=2)
        return {"said": said, "after": after.name}


def loading(site, folder, width=WIDTH, more=False):
    """Loads a checkpoint into another model."""
    model = nn.Sequential(*deep(), *([nn.Linear(3, 3)] if more else []))
    model[0] = nn.Linear(WIDTH, width).double()
    balance = BALANCES["deep"][site.world]
    balance = [*balance[:-1], balance[-1] + more]
    with pipelines(site, model, balance=balance, chunks=1) as pipeline:
        before = {name: value.clone() for name, value in pipeline.state_dict().items()}
        try:
            checkpoint.load(folder, pipeline)
            return "loaded"
        except ThinpipeError as error:
            assert all(torch.equal(value, before[name]) for name, value in pipeline.state_dict().items())
            return f"{type(error).__name__}: {error}"


def example_without_a_break(site, folder, epochs):
    """Runs the example of replicas and restarts in this process."""
    path = Path(__file__).parents[2] / "examples" / "mesh.py"
    spec = importlib.util.spec_from_file_location("mesh", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    args = argparse.Namespace(folder=folder, replicas=1, epochs=epochs, every=100, kill_at=None, anew=False)
    example.train(args, site.group)


def one_device(kind, upto, optimizer="adamw", model=None, first=0):
    """The same steps by one process, for the test itself."""
    model = nn.Sequential(*deep(kind)) if model is None else copy.deepcopy(model)
    own = optimizer_of(optimizer, model.parameters())
    for step in range(first, upto):
        own.zero_grad()
        x, y = data_of(kind, step)
        functional.cross_entropy(model(x), y).backward()
        own.step()
    return model, own
