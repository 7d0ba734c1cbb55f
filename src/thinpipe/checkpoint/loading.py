"""Reads a checkpoint: what this process needs of it, and no more."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import arguments
from thinpipe.checkpoint.company import Company
from thinpipe.checkpoint.entry import Entry
from thinpipe.checkpoint.folder import MANIFEST, latest
from thinpipe.checkpoint.optimizer import OptimizerState, matched, restore, verify_optimizer
from thinpipe.checkpoint.saving import FORMAT
from thinpipe.errors import CheckpointError
from thinpipe.stages.names import listed

_log = logging.getLogger("thinpipe")


@dataclass(frozen=True)
class Loaded:
    """What was loaded.

    Args:
        step: how many steps had been taken.
        extra: what ``save`` was given.
        path: the folder of the checkpoint.
    """

    step: int
    extra: dict[str, Any]
    path: Path


def load(
    folder: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Loaded | None:
    """Loads the last checkpoint into a model, wherever and however cut it was when it was saved.

    What depends on how it is cut, the memories of codecs and the state of random numbers, is loaded by the ranks of a
    ``Pipeline`` with the same cuts, codecs and ranks alone. With it, training goes on bit for bit.

    Args:
        folder: as in ``save``; or that of one checkpoint.
        model: a ``Pipeline``, whose ranks all call it; or a model in one process, which needs no process group.
        optimizer: that of the model's parameters, of the same kind. Default: its state is not loaded.

    Returns:
        What is known of it; None if there is no checkpoint yet.

    Raises:
        CheckpointError: it is of another model, or damaged; the message lists names that are missing or too many.
        PeerError, PeerLost, StallError: a rank failed.
    """
    verify_optimizer(optimizer)
    company, folder = Company(model), arguments.folder("folder", folder)

    def find() -> str | None:
        path = Path(folder) if (Path(folder) / MANIFEST).exists() else latest(folder)
        return None if path is None else path.name

    found = company.together("find a checkpoint", find)
    different = [rank for rank, name in enumerate(found) if name != found[0]]
    if different:
        raise CheckpointError(
            f"rank 0 finds {found[0] or 'no checkpoint'} in {folder}, rank {different[0]} "
            f"{found[different[0]] or 'none'}; checkpoints need a folder that all ranks share"
        )
    if found[0] is None:
        return None
    path = Path(folder) if Path(folder).name == found[0] else Path(folder) / found[0]
    plans: list[_Plan] = []
    # All before any: nothing is changed anywhere if it does not fit somewhere.
    company.together("match the checkpoint", lambda: plans.append(_plan(path, company, optimizer)))
    company.together("load the checkpoint", lambda: _load(plans[0], company, optimizer))
    manifest = plans[0].manifest
    return Loaded(int(manifest["step"]), dict(manifest["extra"] or {}), path)


@dataclass(frozen=True)
class _Plan:
    """What one process will load.

    Args:
        path: the folder of the checkpoint.
        manifest: what is in it.
        entries: where the model's tensors are.
        saved: the optimizer's state, without its tensors; None if it is not loaded.
        names: those of the optimizer's weights.
    """

    path: Path
    manifest: dict[str, Any]
    entries: dict[str, Entry]
    saved: OptimizerState | None
    names: list[str]


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{file} is no manifest of format {FORMAT}; another version of thinpipe wrote it")
    if not {"step", "extra", "layout", "model", "optimizer"} <= manifest.keys():
        raise CheckpointError(f"{file} is incomplete; the checkpoint is damaged")
    random = manifest.get("random") or {"seed": 0, "step": 0}
    if not isinstance(random, dict) or not all(isinstance(random.get(name), int) for name in ("seed", "step")):
        raise CheckpointError(f"{file} makes no sense about random numbers: {random!r:.80}; the checkpoint is damaged")
    return manifest


def _plan(path: Path, company: Company, optimizer: torch.optim.Optimizer | None) -> _Plan:
    manifest = _manifest(path)
    entries = _entries(manifest["model"])
    _verify_names(company, company.module.state_dict(), entries)
    if optimizer is None:
        return _Plan(path, manifest, entries, None, [])
    saved = _optimizer(path, manifest)
    return _Plan(path, manifest, entries, saved, matched(optimizer, company.module, saved))


def _load(plan: _Plan, company: Company, optimizer: torch.optim.Optimizer | None) -> None:
    from thinpipe.checkpoint.storage import read_tensors  # it takes long to import

    with torch.no_grad():
        read_tensors(plan.path, plan.entries, company.module.state_dict())
    if optimizer is not None and plan.saved is not None:
        plan.saved.tensors.update(_tensors(plan.path, plan.manifest["optimizer"]["tensors"], set(plan.names)))
        restore(optimizer, plan.names, plan.saved)
    if company.pipeline is not None and plan.manifest.get("random") is not None:
        company.pipeline.load_rng_state_dict(plan.manifest["random"])
    _load_own(plan.path, plan.manifest, company)


def _verify_names(company: Company, state: Mapping[str, Any], entries: Mapping[str, Entry]) -> None:
    missing = [name for name in state if name not in entries]
    strange = [name for name in entries if name not in company.names]
    if missing or strange:
        texts = [f"the checkpoint lacks {listed(missing)}"] * bool(missing)
        texts += [f"it has {listed(strange)}, which the model has not"] * bool(strange)
        raise CheckpointError("; ".join(texts))
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} is a {type(tensor).__name__}; only tensors can be loaded")
        if tuple(tensor.shape) != entries[name].shape:
            raise CheckpointError(
                f"{name} has the shape {tuple(tensor.shape)}, and {entries[name].shape} in the checkpoint"
            )


def _entries(found: Any) -> dict[str, Entry]:
    if not isinstance(found, dict):
        raise CheckpointError(f"the manifest is damaged: it has {found!r:.200} where tensors should be listed")
    return {name: Entry.read(name, entry) for name, entry in found.items()}


def _tensors(path: Path, found: Any, weights: set[str] | None = None) -> dict[str, Tensor]:
    """Reads tensors, all or those of some weights."""
    from thinpipe.checkpoint.storage import read_tensors

    entries = _entries(found)
    chosen = [name for name in entries if weights is None or name.rpartition("/")[0] in weights]
    for name in chosen:
        entries[name].verify_size(name, path)  # before anything is allocated for it
    tensors = {name: entries[name].empty() for name in chosen}
    read_tensors(path, entries, tensors)
    return tensors


def _optimizer(path: Path, manifest: dict[str, Any]) -> OptimizerState:
    found = manifest["optimizer"]
    if found is None:
        raise CheckpointError(f"{path} was saved without an optimizer; load it without one")
    try:
        return OptimizerState({}, dict(found["plain"]), list(found["groups"]), dict(found["also"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the manifest of {path} is damaged at the optimizer: {error}") from error


def _load_own(path: Path, manifest: dict[str, Any], company: Company) -> None:
    """Loads what is of use to the same rank of the same layout."""
    if manifest["layout"] != company.layout:
        if company.pipeline is not None and manifest.get("codecs remember"):
            _log.warning("%s was saved with other cuts, codecs or ranks; its codecs' memories are not loaded", path)
        return
    file = path / "ranks" / f"{company.rank:05d}.json"
    try:
        part = json.loads(file.read_bytes())["own"]
        found = {**_tensors(path, part["tensors"]), **part["plain"]}
        state = found["random/cpu"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    torch.set_rng_state(state)
    device = next(company.module.parameters(), torch.empty(0)).device
    if device.type == "cuda" and "random/cuda" in found:
        torch.cuda.set_rng_state(found["random/cuda"], device)
    if company.pipeline is not None:
        codecs = {key.removeprefix("codec/"): value for key, value in found.items() if key.startswith("codec/")}
        company.pipeline.load_codec_state_dict(codecs)
