"""Whoever saves or loads a checkpoint together: all ranks of a pipeline, or a process with a whole model by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from thinpipe.checkpoint.disk import reason_of
from thinpipe.errors import ArgumentError, CheckpointError, DiskError, ThinpipeError
from thinpipe.runtime.pipeline import Pipeline

T = TypeVar("T")


class Company:
    """The processes that take part, as one of them sees the others.

    Args:
        target: the pipeline, or the model, of this process.
    """

    def __init__(self, target: nn.Module) -> None:
        if not isinstance(target, nn.Module):
            raise ArgumentError(f"model must be a Pipeline or another nn.Module, got {target!r:.100}")
        self.module = target
        self.pipeline = target if isinstance(target, Pipeline) else None
        self.rank = 0 if self.pipeline is None else self.pipeline.rank
        self.replica = 0 if self.pipeline is None else self.pipeline.replica
        self.worker = 0 if self.pipeline is None else self.pipeline.worker

    @property
    def names(self) -> frozenset[str]:
        """Everything that the whole model saves."""
        return frozenset(self.module.state_dict()) if self.pipeline is None else self.pipeline.assembly.state

    @property
    def layout(self) -> dict[str, Any] | None:
        """How the model is spread; None in one process."""
        return None if self.pipeline is None else self.pipeline.layout

    def together(self, what: str, do: Callable[[], T], *, writes: bool = False) -> list[T]:
        """Has everybody do something, and returns what came of it for each, as plain values.

        Args:
            what: is done, for people.
            do: does it.
            writes: whether it writes, so that a disk may be full (default: no).

        Raises:
            DiskError: a disk did not take it, and nobody had another trouble; everybody raises it.
            CheckpointError: somebody could not; everybody raises it, and the pipeline goes on.
        """
        value: Any = None
        failed: Exception | None = None
        try:
            value = do()
        except Exception as error:
            failed = error
        said = None if failed is None else _said(failed)
        reason = None if failed is None or not writes else reason_of(failed)
        own = [value, said, reason]
        told = [own] if self.pipeline is None else self.pipeline.gather(what, own)
        faults = {rank: text for rank, (_, text, _) in enumerate(told) if text is not None}
        full = [why for _, _, why in told if why is not None]
        if failed is not None and reason is None and not isinstance(failed, ThinpipeError | OSError):
            raise failed
        if faults:
            rank, text = next(iter(faults.items())) if failed is None else (self.rank, said)
            who = "" if self.pipeline is None else f"rank {rank} could not {what}: "
            if len(full) == len(faults):
                raise DiskError(f"{who}{text}", full[0]) from failed
            raise CheckpointError(f"{who}{text}") from failed
        return [value for value, *_ in told]


def _said(error: Exception) -> str:
    kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:2000]
