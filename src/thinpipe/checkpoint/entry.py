"""Where a tensor is in a checkpoint, as its manifest says."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinpipe.errors import CheckpointError


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    Args:
        file: below the checkpoint's folder.
        dtype: its type, as ``float32``.
        shape: its shape.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def read(cls, name: str, value: Any) -> Entry:
        """Reads an entry of a manifest.

        Raises:
            CheckpointError: it is none.
        """
        try:
            entry = cls(str(value["file"]), str(value["dtype"]), tuple(int(size) for size in value["shape"]))
            known = isinstance(getattr(torch, entry.dtype, None), torch.dtype)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the manifest is damaged at {name!r}: {value!r:.200}") from error
        path = Path(entry.file)
        if not known or path.is_absolute() or ".." in path.parts or min(entry.shape, default=0) < 0:
            raise CheckpointError(f"the manifest is damaged at {name!r}: {value!r:.200}")
        return entry

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    def verify_size(self, name: str, folder: Path) -> None:
        """Checks that the tensor can be in its file at all.

        Raises:
            CheckpointError: it cannot.
        """
        path = folder / self.file
        size = path.stat().st_size if path.is_file() else 0
        if math.prod(self.shape) * getattr(torch, self.dtype).itemsize > size:
            raise CheckpointError(f"{path} is damaged: its {size} bytes cannot hold {name} of shape {self.shape}")

    def empty(self) -> Tensor:
        """Makes room for the tensor."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype))


def flush(path: Path) -> None:
    """Waits until the disk has a file, or the names in a folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
