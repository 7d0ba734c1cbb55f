"""Carries the caller's surroundings into the stage threads.

Autocast, inference mode, the default device, the current CUDA streams and context variables all belong to a thread in
PyTorch and Python. A model must not notice that it runs in another one, nor that it is recomputed much later, so they
are captured when the Pipe is called and entered again around everything a stage computes for that call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Autocast:
    """The autocast state of one type of device."""

    device_type: str
    enabled: bool
    dtype: torch.dtype
    cache: bool

    @classmethod
    def current(cls, device_type: str) -> Autocast:
        """Reads the state of the calling thread."""
        enabled = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type)
        return cls(device_type, enabled, dtype, torch.is_autocast_cache_enabled())

    def entered(self) -> torch.autocast:
        """Makes the state that of the thread that enters it."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=True, cache_enabled=self.cache)


@dataclass(frozen=True)
class Ambient:
    """The surroundings of one call of a Pipe.

    Args:
        autocasts: autocast, for each type of device where it is on.
        inference: whether the caller is in inference mode.
        device: the default device of new tensors, where it is not the CPU.
        streams: the caller's current stream on each CUDA device of the pipe. Stages compute on it, so their work is
            ordered with whatever the caller enqueued before and will enqueue after.
        threads: the caller's number of intra-op threads.
        variables: the caller's context variables.
    """

    autocasts: tuple[Autocast, ...]
    inference: bool
    device: torch.device | None
    streams: dict[torch.device, torch.cuda.Stream]
    threads: int
    variables: contextvars.Context

    @classmethod
    def capture(cls, devices: Iterable[torch.device]) -> Ambient:
        """Reads the surroundings of the calling thread."""
        types = {"cpu", *(device.type for device in devices)}
        default = torch.get_default_device()
        return cls(
            autocasts=tuple(cast for cast in map(Autocast.current, sorted(types)) if cast.enabled),
            inference=torch.is_inference_mode_enabled(),
            device=None if default.type == "cpu" else default,
            streams={device: torch.cuda.current_stream(device) for device in devices if device.type == "cuda"},
            threads=torch.get_num_threads(),
            variables=contextvars.copy_context(),
        )

    def run(self, function: Callable[[], None], device: torch.device) -> None:
        """Runs a function of the stage on the device as if the caller ran it."""
        with self._on(device):
            # A context can be entered by one thread at a time, and all stages enter theirs at once.
            self.variables.copy().run(function)

    @contextmanager
    def _on(self, device: torch.device) -> Iterator[None]:
        with ExitStack() as stack:
            if self.device is not None:
                stack.enter_context(self.device)
            if device in self.streams:
                stack.enter_context(torch.cuda.stream(self.streams[device]))
                # Any call to the driver will do: until the first one a thread has no CUDA context, and cuBLAS says so.
                self.streams[device].query()
            yield

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leaves the surroundings, for the caller's own thread to do a stage's work: codecs never saw any of them."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.enable_grad())
            for cast in self.autocasts:
                stack.enter_context(torch.autocast(cast.device_type, enabled=False))
            yield

    def computing(self, *, grad: bool) -> AbstractContextManager[Any]:
        """Surrounds one forward of one micro-batch.

        Autocast is entered anew each time: its cache of cast weights must not outlive a pass without gradients, or the
        next pass with gradients would find weights there that are cut off from the graph.
        """
        # A stack of contexts takes as long as a small layer; most callers have nothing to put on it.
        graph = torch.enable_grad() if grad else torch.no_grad()
        return self._stacked(graph) if self.inference or self.autocasts else graph

    @contextmanager
    def _stacked(self, graph: AbstractContextManager[Any]) -> Iterator[None]:
        with ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            for cast in self.autocasts:
                stack.enter_context(cast.entered())
            stack.enter_context(graph)
            yield
