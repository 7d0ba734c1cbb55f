"""What a rank knows of a step's rows, in a few bytes, so that ranks notice when they train on different ones.

Inputs are on the rank of the first stage and targets on that of the last; nothing that crosses a cut shows that both
are of the same rows. The first rank's digest goes along with the message that a step begins, which all ranks wait for
anyway.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from thinpipe.errors import BatchError, DisagreementError

_MOST_ELEMENTS = 1 << 14
"""Elements of a tensor that are read; of a larger one every other along its long dimensions, in each row."""

_LONG = 64
"""Characters of a text about rows that travel as they are; of a longer one, the beginning and a digest."""


@dataclass(frozen=True)
class BatchDigest:
    """What one rank knows of a step's rows.

    Args:
        rows: what the caller said about them; None if nothing.
        targets: digests of the targets' shapes and of their values; None if there are none on the CPU.
        generator: a digest of the CPU's default generator; None where it is not compared.
    """

    rows: str | None
    targets: tuple[str, str] | None
    generator: int | None

    @classmethod
    def of(cls, rows: Any, targets: Any, *, alone: bool) -> BatchDigest:
        """Digests what a step was called with.

        Args:
            rows: what the caller says about them.
            targets: what the caller has passed.
            alone: whether nobody has targets to compare these with.

        Raises:
            BatchError: the rows are nothing that can be compared.
        """
        said = None if rows is None else _said(rows)
        if alone:
            return cls(said, None, None)
        return cls(said, _values(targets), zlib.crc32(torch.default_generator.get_state().numpy().data))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BatchDigest:
        """Reads what another rank told."""
        targets = value["targets"]
        return cls(value["rows"], None if targets is None else tuple(targets), value["generator"])

    def verify(self, first: BatchDigest, *, step: int, ranks: tuple[int, int], last: bool) -> bool:
        """Compares with the digest of the rank of the first stage.

        Args:
            first: that rank's digest.
            step: the number of the step.
            ranks: that rank and this one.
            last: whether this one has the last stage.

        Returns:
            Whether nothing shows that the rows are the same, and the ranks' generators differ.

        Raises:
            DisagreementError: the rows differ.
        """
        if self.rows is not None or (last and first.rows is not None):
            if self.rows != first.rows:
                raise _disagreement(step, ranks, "rows=", first.rows, self.rows)
            return False
        if not last:
            return False
        if self.targets is None or first.targets is None or self.targets[0] != first.targets[0]:
            return self.generator is not None and self.generator != first.generator
        if self.targets[1] != first.targets[1]:
            raise _disagreement(step, ranks, "a digest of the targets", first.targets[1], self.targets[1])
        return False


def warn_of_generators(step: int, ranks: tuple[int, int]) -> None:
    """Warns that two ranks may draw different batches."""
    first, last = ranks
    warnings.warn(
        f"in step {step} PyTorch's CPU generator is in other states on rank {first} and rank {last}, and nothing else "
        "tells whether the inputs on one and the targets on the other are of the same rows. They are not if "
        "torch.randperm or DataLoader(shuffle=True) draws them from that generator: give these a torch.Generator of "
        f"their own, seeded alike on all ranks. Pass rows= to step(), or the targets on rank {first} too, and every "
        "step is verified",
        RuntimeWarning,
        stacklevel=6,
    )


def _disagreement(
    step: int, ranks: tuple[int, int], what: str, there: str | None, here: str | None
) -> DisagreementError:
    first, own = ranks
    return DisagreementError(
        f"rank {first} and rank {own} are not at the same rows in step {step}: {what} is {there} on rank {first} and "
        f"{here} on rank {own}. All ranks must take the same batches in the same order: draw it from a generator that "
        "all seed alike, and leave a batch out on all of them or on none; targets that rank "
        f"{first} does not have are None there, and rows= is given on all ranks or on none"
    )


def _said(rows: Any) -> str:
    try:
        text = json.dumps(
            rows.tolist() if hasattr(rows, "tolist") else rows if isinstance(rows, int | str) else [*rows]
        )
    except TypeError as error:
        raise BatchError(
            f"rows= names the rows of a batch by a tensor of indices, a list, a number or a text, got {rows!r:.80}"
        ) from error
    if len(text) <= _LONG:
        return text
    return f"{text[: _LONG // 2]}... ({blake2b(text.encode(), digest_size=8).hexdigest()})"


def _values(targets: Any) -> tuple[str, str] | None:
    """Digests shapes and values of what is in a nesting; None if something in it cannot be read without waiting."""
    if targets is None:
        return None
    leaves, spec = tree_flatten(targets)
    shapes, values = blake2b(str(spec).encode(), digest_size=8), blake2b(digest_size=8)
    for leaf in leaves:
        if isinstance(leaf, bool | int | float | str):
            shapes.update(type(leaf).__name__.encode())
            values.update(repr(leaf).encode())
        elif (
            type(leaf) is Tensor
            and leaf.device.type == "cpu"
            and leaf.layout is torch.strided
            and not leaf.is_complex()
        ):
            shapes.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
            own = _sampled(leaf.detach()).clone(memory_format=torch.contiguous_format)
            values.update(own.reshape(-1).view(torch.uint8).numpy().data)
        else:
            return None
    return shapes.hexdigest(), values.hexdigest()


def _sampled(tensor: Tensor) -> Tensor:
    while tensor.numel() > _MOST_ELEMENTS:
        inner = tensor.shape[1:]
        longest = max(inner, default=1)
        axis = 1 + inner.index(longest) if longest > 1 else 0
        tensor = tensor[(*[slice(None)] * axis, slice(None, None, 2))]
    return tensor
