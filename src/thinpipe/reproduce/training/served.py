"""Trains a row between this process and a server in another one, over the loopback.

::

    this process   data ─► first ══ loopback ══ middle      a server's process
                   loss ◄─ last  ══          ══

    runs/two-machines-accuracy/chunks4-none-seed0/states      this side's, to go on from
    runs/two-machines-accuracy/chunks4-none-seed0/server      the server's
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch
from rich.console import Console
from torch import Tensor

from thinpipe.bench.link_processes import started, told
from thinpipe.reproduce.training.ask import Job
from thinpipe.reproduce.training.crossed import Crossing
from thinpipe.reproduce.training.figures import CROSSED
from thinpipe.reproduce.training.run import looped, origin_of
from thinpipe.train.bottlenecks import FILE, is_fitted
from thinpipe.train.data import Data
from thinpipe.train.fitting import fit_bottlenecks
from thinpipe.train.log import RunFolder, StepLine
from thinpipe.train.parts import example, parts, stages_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.stop import Stop

_SERVER = "server"
_START = 180.0
_FLOAT32 = 4


def served(job: Job, samples: Data, folder: RunFolder, stop: Stop, console: Console) -> bool:
    """Trains a row with a server to its end, from where both were interrupted if they were.

    Returns:
        Whether it came to the end; else somebody wanted to stop, and both sides have saved.

    Raises:
        ThinpipeError: the folder has a run of something else, or the server failed.
        BusyError: another process trains in the folder.
    """
    from thinpipe.train.connected import connected  # needs ZeroMQ

    origin = origin_of(job, folder)
    for note in samples.notes:
        console.print(f"warning: {note}", markup=False, soft_wrap=True)
    with folder.owned():
        recipe = _fitted(job.recipe, samples, folder, job.settings.device)
        with _server(recipe, folder, job.settings.device) as address:
            settings = replace(job.settings, connect=address)
            client = connected(recipe, settings, data=samples, folder=folder.states)
            try:
                folder.begin(origin)
                done = looped(recipe, client, samples, folder, stop, console)
            finally:
                client.close()
    if done:
        _write_crossed(job.recipe, folder)
        shutil.rmtree(folder.path / _SERVER, ignore_errors=True)
    return done


def _fitted(recipe: Recipe, samples: Data, folder: RunFolder, device: str) -> Recipe:
    """Fits bottlenecks, which a server cannot do without samples, and has both sides begin with what was found."""
    if not is_fitted(recipe):
        return recipe
    file = folder.path / FILE
    if not file.exists():
        fit_bottlenecks(recipe, stages_of(recipe), samples, device=device, keep=file)
    return recipe.changed({"bottleneck_file": str(file)})


@contextmanager
def _server(recipe: Recipe, folder: RunFolder, device: str) -> Iterator[str]:
    """Starts a server that saves beside this side's states; yields its address."""
    from thinpipe.reproduce.two_machines.server import Assignment

    assignment = Assignment(
        listen="127.0.0.1:0",
        device=device,
        threads=max(1, torch.get_num_threads() // 2),
        recipes=(recipe.name,),
        files=() if recipe.bottleneck_file == "none" else (recipe.bottleneck_file,),
        folder=str(folder.path / _SERVER),
    )
    module = [sys.executable, "-m", "thinpipe.reproduce.two_machines.server", assignment.text()]
    with started([module], heard=[0]) as ranks:
        try:
            line = ranks[0].line(_START)
        except TimeoutError as error:
            raise told(f"the server said nothing in {_START:.0f} s", ranks) from error
        if not line:
            raise told("the server could not be started", ranks)
        yield str(json.loads(line)["address"])


def _write_crossed(recipe: Recipe, folder: RunFolder) -> None:
    """Writes down what crossed both cuts together, in training: a client does not count it by the cut."""
    steps = [line for line in folder.lines() if isinstance(line, StepLine)]
    crossing = crossed_by(steps, _numbers(recipe))
    (folder.path / CROSSED).write_text(json.dumps([asdict(crossing)]))


def crossed_by(steps: Sequence[StepLine], numbers: int) -> Crossing:
    """Adds up what steps sent and received.

    Args:
        steps: as a client logged them.
        numbers: that a row has at both cuts, before any bottleneck.
    """
    packed = sum(line.cost["sent"] + line.cost["received"] for line in steps)
    elements = 2 * numbers * sum(line.rows for line in steps)
    return Crossing(packed=packed, raw=_FLOAT32 * elements, elements=elements)


def _numbers(recipe: Recipe) -> int:
    """Counts what a row has at both cuts, one way."""
    plain = parts(recipe.changed({"bottleneck": "none"}))
    with torch.no_grad():
        first: Tensor = plain.first.eval()(example(recipe))
        second: Tensor = plain.middle.eval()(first)
    return first.numel() + second.numel()
