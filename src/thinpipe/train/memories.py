"""What the codecs of a ``Pipe`` remember, saved beside a checkpoint: without it a resumed run would pack otherwise.

A checkpoint of a ``Pipe`` is one of its model, to be loaded on one device or many; memories are of use to the same cuts
alone. They are written first, so that a state which is whole has them::

    states/memories/step-00000050     then     states/step-00000050
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from thinpipe import checkpoint
from thinpipe.errors import CheckpointError, DamagedError
from thinpipe.remote.saved import Snapshot, Store
from thinpipe.runtime.pipe import Pipe

_log = logging.getLogger("thinpipe")
_KEPT = 3
"""One more than there are states: a process may be killed between the two."""


def save_memories(folder: Path, pipe: Pipe, step: int) -> None:
    """Writes what a pipe's codecs remember, if they do.

    Args:
        folder: of the states.
        pipe: whose codecs.
        step: how many steps were taken.

    Raises:
        DiskError: the disk does not take it now.
    """
    state = pipe.codec_state_dict()
    if not state:
        return
    store = _store(folder)
    store.forget_after(step - 1)  # of a future that was given up
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    store.save(Snapshot(step, tensors, {key: value for key, value in state.items() if key not in tensors}))


def forget_memories(folder: Path) -> None:
    """Removes all but the last ones."""
    store = _store(folder)
    store.forget_before(min(store.steps()[-_KEPT:], default=0))


def load_with_memories(folder: Path, pipe: Pipe, optimizer: torch.optim.Optimizer) -> checkpoint.Loaded | None:
    """Loads the last state of which neither the model nor what the codecs remembered is damaged.

    Codecs that remember nothing have no file.

    Raises:
        CheckpointError: all are damaged, or of another model or other codecs.
    """
    loaded = checkpoint.load(folder, pipe, optimizer)
    while loaded is not None:
        try:
            _load_memories(folder, pipe, loaded.step)
            return loaded
        except DamagedError as error:
            older = checkpoint.load(folder, pipe, optimizer, before=loaded.step)
            if older is None:
                raise
            lost = loaded.step - older.step
            _log.warning("%s; going on from step %d, %d steps are repeated", error, older.step, lost)
            loaded = older
    return None


def _load_memories(folder: Path, pipe: Pipe, step: int) -> None:
    store, old = _store(folder), folder / f"memories-{step:08d}.pt"  # as they were written before
    if step in store.steps():
        snapshot = store.load(step)
        state = {**snapshot.tensors, **snapshot.plain}
    elif old.exists():
        try:
            state = torch.load(old, weights_only=True, map_location="cpu")
        except Exception as error:
            raise DamagedError(f"{old} cannot be read: {type(error).__name__}: {error}", f"{old.name}") from error
    else:
        return
    try:
        pipe.load_codec_state_dict(state)
    except Exception as error:
        raise CheckpointError(f"what codecs remembered at step {step} does not fit: {error}") from error


def _store(folder: Path) -> Store:
    return Store(folder / "memories")
