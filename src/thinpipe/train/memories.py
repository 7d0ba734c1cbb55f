"""What the codecs of a ``Pipe`` remember, saved beside a checkpoint: without it a resumed run would pack otherwise.

A checkpoint of a ``Pipe`` is one of its model, to be loaded on one device or many; memories are of use to the same cuts
alone. They are written first, so that a state which is whole has them::

    states/memories-00000050.pt     then     states/step-00000050
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from thinpipe.errors import CheckpointError
from thinpipe.runtime.pipe import Pipe


def save_memories(folder: Path, pipe: Pipe, step: int, *, keep: int) -> None:
    """Writes what a pipe's codecs remember, if they do; forgets all but the last ones.

    Args:
        folder: of the states.
        pipe: whose codecs.
        step: how many steps were taken.
        keep: how many older ones stay.
    """
    state = pipe.codec_state_dict()
    if not state:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, step)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    for old in sorted(folder.glob("memories-*.pt"))[: -(keep + 1)]:
        old.unlink(missing_ok=True)


def load_memories(folder: Path, pipe: Pipe, step: int) -> None:
    """Reads what the codecs remembered after so many steps; codecs that remember nothing have no file.

    Raises:
        CheckpointError: it is damaged, or of other codecs.
    """
    path = _path(folder, step)
    if not path.exists():
        return
    try:
        pipe.load_codec_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _path(folder: Path, step: int) -> Path:
    return folder / f"memories-{step:08d}.pt"
