"""Reads a checkpoint: what this process needs of it, and no more."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import arguments
from thinpipe.checkpoint.company import Company
from thinpipe.checkpoint.disk import damage_of, is_intact
from thinpipe.checkpoint.entry import Entry
from thinpipe.checkpoint.folder import MANIFEST, complete, step_of
from thinpipe.checkpoint.optimizer import OptimizerState, matched, restore, verify_optimizer
from thinpipe.checkpoint.saving import FORMAT
from thinpipe.errors import CheckpointError, DamagedError
from thinpipe.stages.names import listed
from thinpipe.stages.part import Copies

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
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    before: int | None = None,
) -> Loaded | None:
    """Loads the last checkpoint into a model, wherever and however cut it was when it was saved.

    If a file of it is damaged, the one before it is loaded, and a line in the log says so.

    What depends on how it is cut, the memories of codecs and the state of random numbers, is loaded by the ranks of a
    ``Pipeline`` with the same cuts, codecs and ranks alone. With it, training goes on bit for bit.

    Args:
        folder: as in ``save``; or that of one checkpoint.
        model: a ``Pipeline``, whose ranks all call it; or a model in one process, which needs no process group.
        optimizer: that of the model's parameters, of the same kind. Default: its state is not loaded.
        before: only checkpoints of fewer steps count. Default: all do.

    Returns:
        What is known of it; None if there is no checkpoint yet.

    Raises:
        DamagedError: there is none that is not damaged.
        CheckpointError: it is of another model; the message lists names that are missing or too many.
        PeerError, PeerLost, StallError: a rank failed.
    """
    verify_optimizer(optimizer)
    company, folder = Company(model), arguments.folder("folder", folder)

    def find() -> list[str]:
        where = Path(folder)
        paths = [where] if (where / MANIFEST).exists() else complete(where)
        return [path.name for path in paths if before is None or step_of(path) < before]

    found = company.together("find a checkpoint", find)
    different = [rank for rank, names in enumerate(found) if names != found[0]]
    if different:
        here, there = (", ".join(names) or "no checkpoint" for names in (found[0], found[different[0]]))
        raise CheckpointError(
            f"rank 0 finds {here} in {folder}, rank {different[0]} {there}; checkpoints need a folder that all ranks "
            "share"
        )
    if not found[0]:
        return None
    path = _whole(Path(folder), found[0], company, with_optimizer=optimizer is not None)
    plans: list[_Plan] = []
    # All before any: nothing is changed anywhere if it does not fit somewhere.
    company.together("match the checkpoint", lambda: plans.append(_plan(path, company, optimizer)))
    company.together("load the checkpoint", lambda: _load(plans[0], company, optimizer))
    manifest = plans[0].manifest
    return Loaded(int(manifest["step"]), dict(manifest["extra"] or {}), path)


def _whole(folder: Path, names: list[str], company: Company, *, with_optimizer: bool) -> Path:
    """Finds the first of some checkpoints of which no rank misses a file.

    Raises:
        DamagedError: there is none.
    """
    damaged: list[str] = []
    for name in names:
        path = folder if folder.name == name else folder / name
        look = partial(_damage, path, company, with_optimizer=with_optimizer)
        texts = [text for text in company.together("look for damage in the checkpoint", look) if text is not None]
        if not texts:
            if damaged and company.rank == 0:
                lost = step_of(folder / names[0]) - step_of(path)
                _log.warning(
                    "%s; going on from step %d, %d steps are repeated", "; ".join(damaged), step_of(path), lost
                )
            return path
        damaged.append(texts[0])
    text = f"{'; '.join(damaged)}; {folder} has no checkpoint before it: bring one back from a copy, or begin anew"
    raise DamagedError(text, text)


def _damage(path: Path, company: Company, *, with_optimizer: bool) -> str | None:
    """Says what is wrong with the files that this process needs; None if nothing is."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return f"{path / MANIFEST} is damaged: {error}"
    if not isinstance(manifest, dict) or "files" not in manifest:
        return None  # of an older version, which wrote no digests; what is wrong with it is found when it is read
    if not is_intact(manifest):
        return f"{path / MANIFEST} is damaged: its checksum is wrong"
    needed = {entry["file"] for name, entry in manifest["model"].items() if name in company.module.state_dict()}
    if with_optimizer and manifest["optimizer"] is not None:
        needed |= {entry["file"] for entry in manifest["optimizer"]["tensors"].values()}
    if manifest["layout"] == company.layout:
        needed |= {f"ranks/{company.rank:05d}.{ending}" for ending in ("json", "safetensors")}
    for file in sorted(needed & manifest["files"].keys()):
        if text := damage_of(path / file, *manifest["files"][file]):
            return f"{path} is damaged: {text}"
    return None


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
    for each in company.module.modules():
        if isinstance(each, Copies):
            each.make_equal()
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
