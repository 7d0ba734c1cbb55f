"""What one half of a split model has after a step: held in memory, put back in place, and kept in a folder.

::

    runs/client/
      session.json               the note: whose it is, and what the two halves agreed on; session.json.copy is a copy
      step-00000120/
        manifest.json            every tensor's type and shape, plain values, the size and digest of the file beside it
        tensors.safetensors
      step-00000140/
      damaged-00000160/          one that could not be read; training went on from an older one
      .unfinished-3f2a/          one that is being written or removed, or was when the process was killed

A step's folder gets its name when all of it is on the disk, and loses it before anything in it is removed; so whatever
has the name of a step is whole. Nothing is pickled: a pickle runs whatever code is in it.
"""

from __future__ import annotations

import copy as copies
import json
import re
import secrets
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.checkpoint.disk import damage_of, digest, digest_of, read_twice, reason_of, replace_twice
from thinpipe.checkpoint.entry import Entry, flush
from thinpipe.checkpoint.optimizer import OptimizerState, matched, restore, state_of
from thinpipe.errors import CheckpointError, DamagedError, DiskError
from thinpipe.extras import need
from thinpipe.stages.names import listed

FORMAT = 1
"""Of manifests; another is not read."""

_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"
_NOTE = "session.json"
_UNFINISHED = ".unfinished-"
_NAME = re.compile(r"(step|damaged)-(\d{8,18})")

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
        copy: whether tensors are copied, into the memory of the CPU. Without it they are those that training changes:
            enough to write the snapshot at once, and no memory is needed for it.

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
        return self._numbers("step")

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot, and returns when the disk has it; a step that is there already is left as it is.

        Raises:
            DiskError: the disk does not take it now; nothing of it is left then.
            CheckpointError: it cannot be written at all; neither is anything left.
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
                shutil.rmtree(final, ignore_errors=True)  # one whose manifest is gone, if any
                written.rename(final)
                flush(self._folder)
            except Exception as error:
                shutil.rmtree(written, ignore_errors=True)  # the disk may be full
                text = f"step {snapshot.step} could not be saved in {self._folder}"
                if reason := reason_of(error):
                    with suppress(OSError):
                        self._folder.rmdir()  # if this was to be the first
                    raise DiskError(f"{text}: {reason}", reason) from error
                raise CheckpointError(f"{text}: {type(error).__name__}: {error}") from error

    def load(self, step: int) -> Snapshot:
        """Reads a snapshot.

        Raises:
            DamagedError: it is damaged.
            CheckpointError: it is not there, or of another version.
        """
        path = self._path(step)
        if not path.is_dir():
            there = ", ".join(str(each) for each in self.steps()[-5:])
            raise CheckpointError(f"{self._folder} has no step {step}; the last that it has: {there or 'none'}")
        manifest = _read_manifest(path / _MANIFEST)
        try:
            entries = {name: Entry.read(name, entry) for name, entry in manifest["tensors"].items()}
            size, expected, plain = int(manifest["size"]), str(manifest["digest"]), dict(manifest["plain"])
            same = manifest["step"] == step
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path / _MANIFEST} makes no sense: {type(error).__name__}: {error}") from error
        if not same:
            raise CheckpointError(f"{path} holds step {manifest['step']!r:.50}; it was renamed by hand")
        return Snapshot(step, _read_tensors(path, entries, size, expected), plain)

    def set_aside(self, step: int) -> None:
        """Takes a damaged step out of the list; its files stay until a later step is forgotten."""
        with self._lock:
            aside = self._path(step, "damaged")
            shutil.rmtree(aside, ignore_errors=True)
            try:
                self._path(step).rename(aside)
                flush(self._folder)
            except OSError as error:
                raise CheckpointError(f"{self._path(step)} could not be renamed: {error}") from error

    def forget_before(self, step: int) -> None:
        """Removes all steps before one."""
        for each in self._numbers("damaged"):
            if each < step:
                shutil.rmtree(self._path(each, "damaged"), ignore_errors=True)
        self._forget([each for each in self.steps() if each < step])

    def forget_after(self, step: int) -> None:
        """Removes all steps after one: when training goes back to it, those belong to a future that will not come."""
        self._forget([each for each in reversed(self.steps()) if each > step])

    def read_note(self) -> dict[str, Any] | None:
        """Reads the note; None if there is none.

        Raises:
            DamagedError: it is damaged, and so is its copy.
        """
        path = self._folder / _NOTE
        note = read_twice(path)
        if note is None and path.exists():
            text = f"{path} is damaged, and so is its copy; bring one of them back, or begin anew, with another folder"
            raise DamagedError(text, f"{_NOTE} and its copy are damaged")
        return note

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Writes the note in the place of the last one; a process that is killed meanwhile leaves one or the other.

        Raises:
            DiskError: the disk does not take it now.
            CheckpointError: it has something that JSON cannot say.
        """
        content = _as_json(dict(note), "the note")
        with self._lock:
            try:
                self._make()
                replace_twice(self._folder / _NOTE, content)
            except OSError as error:
                reason = f"{_NOTE}: {reason_of(error)}"
                raise DiskError(f"{self._folder} could not be written: {reason}", reason) from error

    def _numbers(self, kind: str) -> list[int]:
        if not self._folder.is_dir():
            return []
        found = [(match, path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        steps = {int(match[2]): path for match, path in found if match[1] == kind}
        return sorted(step for step, path in steps.items() if path == self._path(step, kind))

    def _path(self, step: int, kind: str = "step") -> Path:
        return self._folder / f"{kind}-{step:08d}"

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
    """Copies tensors into the memory of the CPU; one that has several names is copied once."""
    made: dict[tuple[Any, ...], Tensor] = {}
    copied: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        what = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if what not in made:
            made[what] = tensor.detach().to("cpu", copy=True)
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
        "digest": digest(path),
        "tensors": {name: entry.to_json() for name, entry in entries.items()},
        "plain": snapshot.plain,
    }
    text = json.dumps(content)
    (folder / _MANIFEST).write_text(json.dumps([digest_of(text), content]), encoding="utf-8")
    flush(folder / _MANIFEST)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing", f"{path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        text = f"{path} cannot be read: {type(error).__name__}: {error}"
        raise DamagedError(text, f"{path.name} cannot be read") from error
    match found:
        case [str(expected), {"format": int(number), **_rest} as content]:
            if expected != digest_of(json.dumps(content)):
                raise DamagedError(f"the checksum of {path} is wrong", f"the checksum of {path.name} is wrong")
            if number != FORMAT:
                raise CheckpointError(f"{path} is of format {number}; this version reads {FORMAT}")
            assert isinstance(content, dict)
            return content
    raise DamagedError(f"{path} is no manifest: {found!r:.100}", f"{path.name} is no manifest")


def _read_tensors(folder: Path, entries: Mapping[str, Entry], size: int, expected: str) -> dict[str, Tensor]:
    path = folder / _TENSORS
    library = _library()
    # All before anything is allocated: what a damaged file says of its tensors' sizes is not to be believed.
    if damage := damage_of(path, size, expected):
        raise DamagedError(f"{folder} is damaged: {damage}", damage)
    try:
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


def _library() -> Any:
    need("snapshots", "safetensors")
    import safetensors.torch

    return safetensors
