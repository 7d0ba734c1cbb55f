"""Tensors in files of safetensors, behind the interface that ``torch.distributed.checkpoint`` has for storages."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from thinpipe.checkpoint.entry import Entry, flush
from thinpipe.errors import CheckpointError
from thinpipe.extras import need


class _Writer(StorageWriter):
    """Writes one file. What it says of a checkpoint as a whole is for the manifest of all ranks, not for this class."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Has nothing to forget."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Makes the folder."""
        self._path.parent.mkdir(exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes all tensors, and waits until the disk has them."""
        tensors: dict[str, Tensor] = {}
        seen: set[int] = set()
        for item in plan.items:
            tensor = planner.resolve_data(item).detach().cpu().contiguous()  # type: ignore[union-attr]
            # Names of one and the same weight: safetensors takes no tensor twice.
            shared = tensor.untyped_storage().data_ptr() in seen
            seen.add(tensor.untyped_storage().data_ptr())
            tensors[item.index.fqn] = tensor.clone() if shared else tensor
        _safetensors().torch.save_file(tensors, self._path)
        flush(self._path)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, str(self._path)) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Leaves the metadata to the manifest."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


class _Reader(StorageReader):
    """Reads tensors from wherever the manifest says that they are."""

    def __init__(self, folder: Path, entries: Mapping[str, Entry]) -> None:
        self._folder, self._entries = folder, entries

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Has nothing to forget."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Says what there is, each tensor in one piece."""
        found = {name: _described(entry) for name, entry in self._entries.items()}
        return Metadata(state_dict_metadata=dict(found))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Has nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what is asked for, file by file."""
        files: dict[str, list[Any]] = {}
        for item in plan.items:
            files.setdefault(self._entries[item.storage_index.fqn].file, []).append(item)
        for file, items in files.items():
            with _opened(self._folder / file) as tensors:
                for item in items:
                    self._read(tensors, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, tensors: Any, item: Any, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        entry = self._entries[name]
        value = tensors.get_tensor(name)
        if tuple(value.shape) != entry.shape:
            raise CheckpointError(
                f"{entry.file} has {name} in the shape {tuple(value.shape)}, the manifest in {entry.shape}; the "
                "checkpoint is damaged"
            )
        for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            value = value.narrow(dim, offset, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(value)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


def write_tensors(folder: Path, file: str, tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
    """Writes tensors into one file, and says where they are."""
    if not tensors:
        return {}
    with _alone():
        dcp.save(dict(tensors), storage_writer=_Writer(folder / file), no_dist=True)  # type: ignore[attr-defined]
    return {
        name: Entry(file, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def read_tensors(folder: Path, entries: Mapping[str, Entry], into: Mapping[str, Tensor]) -> None:
    """Reads tensors in place.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if not into:
        return
    wanted = {name: entries[name] for name in into}
    with _alone():
        dcp.load(dict(into), storage_reader=_Reader(folder, wanted), no_dist=True)  # type: ignore[attr-defined]


@contextmanager
def _alone() -> Iterator[None]:
    """Keeps dcp from wondering that nobody else takes part, and takes errors out of its wrapping."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load)", category=UserWarning)
        try:
            yield
        except CheckpointException as error:
            failure, _ = next(iter(error.failures.values()))
            raise failure from None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    library = _safetensors()
    try:
        with library.safe_open(path, framework="pt") as tensors:
            yield tensors
    except (OSError, library.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; the checkpoint is damaged") from error


def _described(entry: Entry) -> TensorStorageMetadata:
    size = torch.Size(entry.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return TensorStorageMetadata(TensorProperties(dtype=getattr(torch, entry.dtype)), size, [whole])


def _safetensors() -> Any:
    need("checkpoints", "safetensors")
    import safetensors.torch

    return safetensors
