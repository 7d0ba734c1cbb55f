"""Makes whoever trains, in the way that the settings say."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from thinpipe.checkpoint import latest
from thinpipe.train.bottlenecks import FILE, is_fitted, verify_bottlenecks
from thinpipe.train.cuts import cut_model
from thinpipe.train.data import Data
from thinpipe.train.fitting import fit_bottlenecks, share_bottlenecks
from thinpipe.train.local import Local
from thinpipe.train.per_cut import per_cut
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.settings import Settings
from thinpipe.train.stop import SharedStop, Stop
from thinpipe.train.torchrun import Torchrun
from thinpipe.train.trainer import Trainer
from thinpipe.train.way import Way


def input_device(settings: Settings, here: Torchrun | None) -> torch.device:
    """Tells where batches are wanted in this process."""
    devices = settings.device_list()
    if here is not None:
        return here.device(settings.device, devices)
    return torch.device(settings.device if devices is None else devices[0])


def trainer_of(
    recipe: Recipe,
    settings: Settings,
    *,
    data: Data,
    folder: Path,
    stop: Stop,
    here: Torchrun | None,
    trace: Path | None,
) -> Trainer:
    """Makes whoever trains.

    Args:
        recipe: what to train.
        settings: how.
        data: its samples.
        folder: where states are saved; with one that has some, it goes on from the last.
        stop: with ranks, a ``SharedStop``.
        here: this process among those of torchrun; None if it is the only one.
        trace: a file that gets a trace (default: none).

    Raises:
        RecipeError: the model cannot be cut so.
        ThinpipeError: others are not there, or refuse.
    """
    verify_bottlenecks(recipe, settings.way)
    if settings.way is Way.CONNECTED:
        from thinpipe.train.connected import connected  # whoever trains without a server needs no ZeroMQ

        return connected(recipe, settings, data=data, folder=folder, trace=trace)
    if settings.way is Way.ONE_DEVICE:
        return Local(
            recipe, folder=folder, every=settings.every, device=settings.device, compile=bool(settings.compile)
        )
    if settings.way is Way.IN_PROCESS:
        return _in_process(recipe, settings, data, folder)
    assert here is not None and isinstance(stop, SharedStop)
    device = here.device(settings.device, settings.device_list())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if settings.way is Way.DATA_PARALLEL:
        from thinpipe.train.data_parallel import DataParallel  # takes a second to import

        return DataParallel(recipe, folder=folder, every=settings.steps_between, device=device, stop=stop)
    return _ranks(recipe, settings, data, folder, device, stop, trace)


def _in_process(recipe: Recipe, settings: Settings, data: Data, folder: Path) -> Trainer:
    from thinpipe.train.in_process import InProcess

    stages = cut_model(recipe, settings)
    devices = settings.device_list() or (settings.device,) * len(stages)
    if len(devices) != len(stages):
        raise RecipeError(f"--devices has {len(devices)} for {len(stages)} stages; name one for each, cpu,cpu say")
    if is_fitted(recipe) and latest(folder) is None:
        fit_bottlenecks(recipe, stages, data, device=devices[0], keep=folder.parent / FILE)
    return InProcess(
        recipe,
        stages,
        folder=folder,
        every=settings.every,
        devices=devices,
        codec=per_cut(settings.codec, len(stages) - 1),
        grad_codec=per_cut(settings.grad_codec, len(stages) - 1),
        compile=bool(settings.compile),
    )


def _ranks(
    recipe: Recipe,
    settings: Settings,
    data: Data,
    folder: Path,
    device: torch.device,
    stop: SharedStop,
    trace: Path | None,
) -> Trainer:
    from thinpipe.train.ranks import Ranks

    stages = cut_model(recipe, settings)
    if is_fitted(recipe):
        if dist.get_rank() == 0 and latest(folder) is None:
            fit_bottlenecks(recipe, stages, data, device=device, keep=folder.parent / FILE)
        share_bottlenecks(stages)
    return Ranks(
        recipe,
        stages,
        folder=folder,
        every=settings.steps_between,
        device=device,
        stop=stop,
        workers=settings.workers,
        replicas=settings.replicas or 1,
        schedule=settings.order,
        codec=per_cut(settings.codec, len(stages) - 1),
        grad_codec=per_cut(settings.grad_codec, len(stages) - 1),
        bandwidth=settings.rate(),
        trace=trace,
    )
