"""Writes a checkpoint: every rank its part, and one of them, when all parts are there, the word that it is whole."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import arguments
from thinpipe.checkpoint.company import Company
from thinpipe.checkpoint.disk import digest, sealed
from thinpipe.checkpoint.entry import Entry, flush
from thinpipe.checkpoint.folder import MANIFEST, begin, commit, prune
from thinpipe.checkpoint.optimizer import state_of, verify_optimizer
from thinpipe.errors import ArgumentError, CheckpointError

FORMAT = 1
"""Of manifests; another is not read."""

_PATIENCE = 5.0
"""Seconds in which a folder that one rank has made must be seen by another, over a network's caches."""


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    step: int,
    extra: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Path:
    """Saves all that is needed to go on: weights, buffers, optimizer, what codecs remember, random numbers.

    All ranks of a ``Pipeline`` call it, between steps. It returns when the disk has everything; a rank that is killed
    before that leaves the last checkpoint as it was. If one of them cannot write, all raise, and training may go on.

    Args:
        folder: where checkpoints are; the same for all ranks, on a file system that they share.
        model: a ``Pipeline``; or the whole model, of one process.
        optimizer: that of this rank's parameters. Default: none is saved.
        step: how many steps were taken; it gives the checkpoint its name.
        extra: more that JSON can say, such as the ``state_dict`` of a scheduler; rank 0's is saved. Default: nothing.
        keep: how many checkpoints are kept; older ones are removed afterwards. Default: all.

    Returns:
        The folder of this checkpoint.

    Raises:
        DiskError: the disk does not take it now; nothing of it is left, and it may be tried again.
        CheckpointError: a rank could not write its part, or ranks do not share the folder.
        PeerError, PeerLost, StallError: a rank failed.
    """
    if keep is not None:
        arguments.whole("keep", keep)
    arguments.whole("step", step, least=0)
    verify_optimizer(optimizer)
    if extra is not None and not isinstance(extra, Mapping):
        raise ArgumentError(f"extra must be a dictionary, such as a state_dict, got {extra!r:.100}")
    company, where = Company(model), arguments.folder("folder", folder)

    def open_it() -> str | None:
        if company.rank:
            return None
        _verify(extra)
        return begin(where).name

    name = company.together("make a folder for the checkpoint", open_it, writes=True)[0]
    assert name is not None
    written = where / name
    try:
        parts = company.together(
            "write its part of the checkpoint", lambda: _write(written, company, optimizer), writes=True
        )

        def close_it() -> str | None:
            if company.rank:
                return None
            _verify_shared(written, parts)
            _write_json(written / MANIFEST, sealed(_manifest(written, company, parts, step, extra)))
            final = commit(where, written, step)
            if keep is not None:
                prune(where, keep)
            return final.name

        final = company.together("complete the checkpoint", close_it, writes=True)[0]
    except CheckpointError:
        shutil.rmtree(written, ignore_errors=True)  # nobody writes into it any more, and the disk may be full
        raise
    assert final is not None
    return where / final


def _verify(extra: Mapping[str, Any] | None) -> None:
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"extra takes what JSON can say, numbers, texts, lists and dictionaries: {error}"
        ) from error


def _write(written: Path, company: Company, optimizer: torch.optim.Optimizer | None) -> dict[str, list[Any]]:
    """Writes this rank's files, and lists them with their sizes and digests."""
    from thinpipe.checkpoint.storage import write_tensors  # it takes long to import

    _wait_for(written)
    number = f"{company.rank:05d}"
    part: dict[str, Any] = {"model": {}, "optimizer": None}
    if company.replica == 0:
        part |= _shared_part(written, company, optimizer)
    tensors, plain = _own_state(company)
    entries = write_tensors(written, f"ranks/{number}.safetensors", tensors)
    part["own"] = {"tensors": _said(entries), "plain": plain}
    (written / "ranks").mkdir(exist_ok=True)
    _write_json(written / "ranks" / f"{number}.json", part)
    files = {entry["file"] for entry in (*part["model"].values(), *_said(entries).values())}
    files |= {entry["file"] for entry in ((part["optimizer"] or {}).get("tensors", {})).values()}
    paths = {file: written / file for file in sorted(files | {f"ranks/{number}.json"})}
    return {file: [path.stat().st_size, digest(path)] for file, path in paths.items()}


def _shared_part(written: Path, company: Company, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Writes what replicas have in common."""
    from thinpipe.checkpoint.storage import write_tensors

    state = company.module.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(f"{strange[0]} is a {type(state[strange[0]]).__name__}; only tensors are saved")
    worker = f"{company.worker:05d}"
    part: dict[str, Any] = {"model": _said(write_tensors(written, f"model/{worker}.safetensors", state))}
    if optimizer is not None:
        found = state_of(optimizer, company.module)
        entries = write_tensors(written, f"optimizer/{worker}.safetensors", found.tensors)
        part["optimizer"] = {
            "tensors": _said(entries),
            "plain": found.plain,
            "groups": found.groups,
            "also": found.also,
        }
    return part


def _own_state(company: Company) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Finds what is of use to the same rank alone: what codecs remember, and the state of random numbers."""
    tensors: dict[str, Tensor] = {"random/cpu": torch.get_rng_state()}
    plain: dict[str, Any] = {}
    if company.pipeline is not None:
        for key, value in company.pipeline.codec_state_dict().items():
            (tensors if isinstance(value, Tensor) else plain)[f"codec/{key}"] = value
    device = next(company.module.parameters(), torch.empty(0)).device
    if device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(device)
    return tensors, plain


def _manifest(
    written: Path, company: Company, files: list[dict[str, list[Any]]], step: int, extra: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Puts together what all ranks wrote."""
    from thinpipe import __version__

    parts = [json.loads((written / "ranks" / f"{rank:05d}.json").read_bytes()) for rank in range(len(files))]
    model = {name: entry for part in parts for name, entry in part["model"].items()}
    lost = sorted(company.names - model.keys())
    if lost:
        raise CheckpointError(f"no rank has written {lost[0]}")
    optimizers = [part["optimizer"] for part in parts if part["optimizer"] is not None]
    return {
        "format": FORMAT,
        "thinpipe": __version__,
        "torch": torch.__version__,
        "step": step,
        "extra": extra,
        "layout": company.layout,
        "random": None if company.pipeline is None else company.pipeline.rng_state_dict(),
        "codecs remember": any(key.startswith("codec/") for part in parts for key in _keys(part["own"])),
        "model": model,
        "optimizer": _joined(optimizers) if optimizers else None,
        "files": {file: found for part in files for file, found in part.items()},
    }


def _keys(own: dict[str, Any]) -> list[str]:
    return [*own["tensors"], *own["plain"]]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tensors": {name: entry for part in parts for name, entry in part["tensors"].items()},
        "plain": {name: values for part in parts for name, values in part["plain"].items()},
        "groups": [group for part in parts for group in part["groups"]],
        "also": {name: other for part in parts for name, other in part["also"].items()},
    }


def _said(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {name: entry.to_json() for name, entry in entries.items()}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
    flush(path)


def _wait_for(written: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while not written.is_dir():
        if time.monotonic() > until:
            raise CheckpointError(
                f"{written}, which rank 0 has made, is not here; checkpoints need a folder that all ranks share"
            )
        time.sleep(0.05)


def _verify_shared(written: Path, parts: list[dict[str, list[Any]]]) -> None:
    """Checks that this rank sees what all ranks wrote."""
    for rank, files in enumerate(parts):
        for file, (size, _) in files.items():
            path = written / file
            if not path.is_file() or path.stat().st_size != size:
                raise CheckpointError(
                    f"rank {rank} wrote {file}, {size} bytes, which are not in {written} here; checkpoints need a "
                    "folder that all ranks share"
                )
