"""What one half of a split model has after a step: held in memory, put back in place, and kept in a folder.

::

    runs/client/
      session.json               the note: whose it is, and what the two halves agreed on
      step-00000120/
        manifest.json            every tensor's type and shape, plain values, the size and digest of the file beside it
        tensors.safetensors
      step-00000140/
      .unfinished-3f2a/          one that is being written or removed, or was when the process was killed

A step's folder gets its name when all of it is on the disk, and loses it before anything in it is removed; so whatever
has the name of a step is whole. Nothing is pickled: a pickle runs whatever code is in it.
"""

from __future__ import annotations

import copy as copies
import hashlib
import json
import re
import secrets
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.checkpoint.entry import Entry, flush
from thinpipe.checkpoint.optimizer import OptimizerState, matched, restore, state_of
from thinpipe.errors import CheckpointError
from thinpipe.extras import need
from thinpipe.stages.names import listed

FORMAT = 1
"""Of manifests; another is not read."""

_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"
_NOTE = "session.json"
_UNFINISHED = ".unfinished-"
_NAME = re.compile(r"step-(\d{8,18})")

_MODEL, _OPTIMIZER, _CODECS = "model/", "optimizer/", "codecs/"
_FIELDS = ("plain", "groups", "also")
"""Of an optimizer's state, beside its tensors."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that one half has after a committed step.

    Buffers that the module does not save, and the state of random numbers, are not among it.

    Args:
        step: how many steps are committed.
        tensors: weights and buffers under ``model/``, the optimizer's under ``optimizer/``, the codecs' under
            ``codecs/``.
        plain: what the optimizer and the codecs have beside tensors, as JSON has it, under the same prefixes.
    """

    step: int
    tensors: dict[str, Tensor]
    plain: dict[str, Any]


def taken(
    step: int, module: nn.Module, optimizer: torch.optim.Optimizer, codecs: Mapping[str, Any], *, copy: bool
) -> Snapshot:
    """Takes a snapshot.

    Args:
        step: how many steps are committed.
        module: this half's part of the model.
        optimizer: that of the module's parameters; it need not have taken a step yet.
        codecs: what the codecs remember, tensors or plain values by name.
        copy: whether tensors are copied. Without it they are those that training changes: enough to write the
            snapshot at once, and no memory is needed for it.

    Raises:
        CheckpointError: something is neither a tensor nor what JSON can say.
    """
    state = module.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(f"{strange[0]} is a {type(state[strange[0]]).__name__}; only tensors are saved")
    optimized = state_of(optimizer, module)
    tensors = {f"{_MODEL}{name}": value for name, value in state.items()}
    tensors |= {f"{_OPTIMIZER}{name}": value for name, value in optimized.tensors.items()}
    plain: dict[str, Any] = {f"{_OPTIMIZER}{field}": getattr(optimized, field) for field in _FIELDS}
    for key, value in codecs.items():
        if isinstance(value, Tensor):
            tensors[f"{_CODECS}{key}"] = value.detach()
        else:
            plain[f"{_CODECS}{key}"] = _as_json(value, f"{key} of the codecs")
    return Snapshot(step, _copied(tensors) if copy else tensors, plain)


def put_back(snapshot: Snapshot, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Gives a half what it had, bit for bit; its parameters stay the same objects, and the snapshot stays as it is.

    Nothing is changed if the snapshot does not fit.

    Args:
        snapshot: what it had.
        module: a module with the same names, shapes and types.
        optimizer: of the same kind, with the same parameters; state that it got since then is dropped.

    Returns:
        What the codecs had; it is the caller's.

    Raises:
        CheckpointError: the snapshot is of another model or optimizer.
    """
    state = module.state_dict()
    _verify_fit(_below(snapshot.tensors, _MODEL), state)
    saved = _optimizer_state(snapshot)
    names = matched(optimizer, module, saved)
    restore(optimizer, names, saved)
    _complete(optimizer, names, saved)
    # Filled in place: a module's ``state_dict`` has the versions of its parts with it, which loading asks for.
    state.update(_below(snapshot.tensors, _MODEL))
    module.load_state_dict(state)
    codecs = _below(snapshot.plain, _CODECS) | _below(snapshot.tensors, _CODECS)
    return {key: _own(value) for key, value in codecs.items()}


class Store:
    """The snapshots of one half in a folder, each complete or not there.

    Threads may share a store; two stores must not write into one folder at the same time.

    Args:
        folder: where they are; made when something is first written.
    """

    def __init__(self, folder: Path) -> None:
        need("saved states", "safetensors")  # now rather than when the first is to be written
        self._folder = folder
        self._lock = threading.Lock()

    def steps(self) -> list[int]:
        """Lists the steps that are there, in ascending order."""
        if not self._folder.is_dir():
            return []
        found = [(match, path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        steps = {int(match[1]): path for match, path in found if (path / _MANIFEST).is_file()}
        return sorted(step for step, path in steps.items() if path == self._path(step))

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot, and returns when the disk has it; a step that is there already is left as it is.

        Raises:
            CheckpointError: it cannot be written, as on a full disk; nothing of it is left then.
        """
        if snapshot.step < 0:
            raise ValueError(f"steps are counted from 0, got {snapshot.step}")
        with self._lock:
            final = self._path(snapshot.step)
            if (final / _MANIFEST).is_file():
                return
            written = self._folder / f"{_UNFINISHED}{secrets.token_hex(4)}"
            try:
                self._sweep()
                written.mkdir()
                _write(written, snapshot)
                flush(written)
                written.rename(final)
                flush(self._folder)
            except Exception as error:
                shutil.rmtree(written, ignore_errors=True)  # the disk may be full
                raise CheckpointError(
                    f"step {snapshot.step} could not be saved in {self._folder}: {type(error).__name__}: {error}"
                ) from error

    def load(self, step: int) -> Snapshot:
        """Reads a snapshot.

        Raises:
            CheckpointError: it is not there, or damaged.
        """
        path = self._path(step)
        if not path.is_dir():
            there = ", ".join(str(each) for each in self.steps()[-5:])
            raise CheckpointError(f"{self._folder} has no step {step}; the last that it has: {there or 'none'}")
        manifest = _read_manifest(path / _MANIFEST)
        try:
            entries = {name: Entry.read(name, entry) for name, entry in manifest["tensors"].items()}
            size, digest, plain = int(manifest["size"]), str(manifest["digest"]), dict(manifest["plain"])
            same = manifest["step"] == step
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path / _MANIFEST} makes no sense: {type(error).__name__}: {error}") from error
        if not same:
            raise CheckpointError(f"{path} holds step {manifest['step']!r:.50}; it was renamed by hand")
        return Snapshot(step, _read_tensors(path, entries, size, digest), plain)

    def forget_before(self, step: int) -> None:
        """Removes all steps before one."""
        self._forget([each for each in self.steps() if each < step])

    def forget_after(self, step: int) -> None:
        """Removes all steps after one: when training goes back to it, those belong to a future that will not come."""
        self._forget([each for each in reversed(self.steps()) if each > step])

    def read_note(self) -> dict[str, Any] | None:
        """Reads the note; None if there is none.

        Raises:
            CheckpointError: it is damaged.
        """
        path = self._folder / _NOTE
        if not path.exists():
            return None
        note = _read_json(path)
        if not isinstance(note, dict):
            raise CheckpointError(f"{path} is no note; remove the folder to start anew")
        return note

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Writes the note in the place of the last one; a process that is killed meanwhile leaves one or the other.

        Raises:
            CheckpointError: it cannot be written, or has something that JSON cannot say.
        """
        text = json.dumps(_as_json(dict(note), "the note"), indent=2) + "\n"
        part = self._folder / f"{_NOTE}.part"
        with self._lock:
            try:
                self._make()
                part.write_text(text, encoding="utf-8")
                flush(part)
                part.replace(self._folder / _NOTE)
                flush(self._folder)
            except OSError as error:
                raise CheckpointError(f"{self._folder / _NOTE} could not be written: {error}") from error

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _make(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            flush(self._folder.parent)

    def _sweep(self) -> None:
        """Removes what was left when a process was killed."""
        self._make()
        for left in self._folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _forget(self, steps: list[int]) -> None:
        with self._lock:
            for step in steps:
                gone = self._folder / f"{_UNFINISHED}{secrets.token_hex(4)}"
                try:
                    self._path(step).rename(gone)
                    flush(self._folder)
                except OSError as error:
                    raise CheckpointError(f"{self._path(step)} could not be removed: {error}") from error
                shutil.rmtree(gone, ignore_errors=True)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors; one that has several names is copied once."""
    made: dict[tuple[Any, ...], Tensor] = {}
    copied: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        what = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if what not in made:
            made[what] = tensor.detach().clone()
        copied[name] = made[what]
    return copied


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copies.deepcopy(value)


def _below(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _verify_fit(saved: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    missing = [name for name in state if name not in saved]
    strange = [name for name in saved if name not in state]
    if missing or strange:
        texts = [f"the snapshot lacks {listed(missing)}"] * bool(missing)
        texts += [f"it has {listed(strange)}, which the model has not"] * bool(strange)
        raise CheckpointError("; ".join(texts))
    for name, tensor in state.items():
        theirs = saved[name]
        if not isinstance(tensor, Tensor) or tensor.shape != theirs.shape or tensor.dtype != theirs.dtype:
            here = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CheckpointError(f"{name} is {here}, and {theirs.dtype} {tuple(theirs.shape)} in the snapshot")


def _optimizer_state(snapshot: Snapshot) -> OptimizerState:
    """Finds an optimizer's state, in tensors of its own: an optimizer goes on in those that it is given."""
    tensors = {name: tensor.clone() for name, tensor in _below(snapshot.tensors, _OPTIMIZER).items()}
    try:
        plain, groups, also = (copies.deepcopy(snapshot.plain[f"{_OPTIMIZER}{field}"]) for field in _FIELDS)
        return OptimizerState(tensors, dict(plain), list(groups), dict(also))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the snapshot makes no sense about the optimizer: {error}") from error


def _complete(optimizer: torch.optim.Optimizer, names: list[str], saved: OptimizerState) -> None:
    """Gives an optimizer what its own way of loading changes or leaves out."""
    options = {name: group for group in saved.groups for name in group["params"]}
    left = iter(names)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = next(left)
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                theirs = saved.tensors.get(f"{name}/{key}")
                # It casts to the parameter's type, which loses bits of what an optimizer keeps more precisely.
                if theirs is not None and theirs.dtype != value.dtype:
                    state[key] = theirs.to(value.device)
            # Such as a scheduler's ``initial_lr``, which a new optimizer has not.
            for key, option in options[name].items():
                group.setdefault(key, option)


def _as_json(value: Any, what: str) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} cannot be saved: {type(value).__name__} is not what JSON can say") from error


def _write(folder: Path, snapshot: Snapshot) -> None:
    entries, tensors, seen = {}, {}, set()
    for name, value in snapshot.tensors.items():
        tensor = value.detach().cpu().contiguous()
        # Names of one and the same weight: safetensors takes no tensor twice.
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
        entries[name] = Entry(_TENSORS, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    path = folder / _TENSORS
    _library().torch.save_file(tensors, path)
    flush(path)
    content = {
        "format": FORMAT,
        "step": snapshot.step,
        "size": path.stat().st_size,
        "digest": _digest(path),
        "tensors": {name: entry.to_json() for name, entry in entries.items()},
        "plain": snapshot.plain,
    }
    text = json.dumps(content)
    (folder / _MANIFEST).write_text(json.dumps([_digest_of(text), content]), encoding="utf-8")
    flush(folder / _MANIFEST)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    found = _read_json(path)
    match found:
        case [str(digest), {"format": int(number), **_rest} as content]:
            if digest != _digest_of(json.dumps(content)):
                raise CheckpointError(f"{path} is damaged: its content is not what was written")
            if number != FORMAT:
                raise CheckpointError(f"{path} is of format {number}; this version reads {FORMAT}")
            assert isinstance(content, dict)
            return content
    raise CheckpointError(f"{path} is no manifest: {found!r:.100}")


def _read_tensors(folder: Path, entries: Mapping[str, Entry], size: int, digest: str) -> dict[str, Tensor]:
    path = folder / _TENSORS
    library = _library()
    try:
        # All before anything is allocated: what a damaged file says of its tensors' sizes is not to be believed.
        if path.stat().st_size != size or _digest(path) != digest:
            raise CheckpointError(f"{path} is damaged: it is not the {size} bytes that were written")
        for name, entry in entries.items():
            entry.verify_size(name, folder)
        with library.safe_open(path, framework="pt") as file:
            if set(file.keys()) != set(entries):
                raise CheckpointError(f"{path} has other tensors than its manifest lists")
            # Copied: what safetensors gives is the file, mapped into memory.
            tensors = {name: file.get_tensor(name).clone() for name in entries}
    except (OSError, library.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for name, entry in entries.items():
        if tuple(tensors[name].shape) != entry.shape or tensors[name].dtype != getattr(torch, entry.dtype):
            raise CheckpointError(f"{path} has {name} in another shape or type than its manifest lists")
    return tensors


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()


def _library() -> Any:
    need("snapshots", "safetensors")
    import safetensors.torch

    return safetensors
