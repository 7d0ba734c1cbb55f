"""Keeps the results of costly operations, so that a recomputation repeats the cheap ones alone.

Convolutions and matrix products are nearly all of a network's time, and their results about half of its activations;
normalizations, activation functions and dropout are the other way round. A forward that will be recomputed lays the
results of the former aside; the recomputation is handed them, one after the other, instead of computing them again.
Its graph is the same: autograd sees every operation, with its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from thinpipe.errors import RecomputeError

_aten = torch.ops.aten

COSTLY = frozenset(
    {
        _aten.convolution.default,
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
    }
)
"""Operations whose results are kept. None of them draws random numbers: to skip one leaves the generators in step."""


@dataclass
class Result:
    """What an operation returned; of no use any more once somebody changed it in place."""

    operation: Any
    value: Tensor | None
    version: int

    def take(self) -> Tensor | None:
        """Returns the value as a tensor of its own, if it is still what it was."""
        if self.value is None or self.value._version != self.version:
            self.value = None
            return None
        return _aten.alias.default(self.value)  # type: ignore[no-any-return]


@dataclass
class Results:
    """The results of one micro-batch in one stage, in the order they were computed."""

    kept: list[Result] = field(default_factory=list)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Surrounds the forward: lays the results of costly operations aside."""
        with _Gathering(self.kept):
            yield

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Surrounds a recomputation: hands the results out again.

        Raises:
            RecomputeError: the recomputation does other operations than the forward did.
        """
        replaying = _Replaying(self.kept)
        with replaying:
            yield
        replaying.forget_changed()


class _Gathering(TorchDispatchMode):
    def __init__(self, kept: list[Result]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func in COSTLY:
            self._kept.append(Result(func, value, value._version))
        return value


class _Replaying(TorchDispatchMode):
    def __init__(self, kept: list[Result]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._all = iter(kept)
        self._handed: list[tuple[Result, Tensor, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in COSTLY:
            result = next(self._all, None)
            if result is None or result.operation is not func:
                raise RecomputeError(
                    f"the recomputation does {func} where the forward did "
                    f"{'nothing more' if result is None else result.operation}; a layer does not repeat itself, so "
                    "its activations cannot be recomputed: use recompute='all', or checkpoint='never'"
                )
            value = result.take()
            if value is not None:
                self._handed.append((result, value, value._version))
                return value
        return func(*args, **(kwargs or {}))

    def forget_changed(self) -> None:
        """Gives up results that the layers changed in place after they were handed out: they share their memory."""
        for result, value, version in self._handed:
            if value._version != version:
                result.value = None
        self._handed.clear()
