"""The link between stages of one process: a post office that passes objects from thread to thread.

Nothing is copied here. A parcel is addressed by its edge and micro-batch, is delivered once, and is forgotten as soon
as it was taken, so that the post office never keeps an activation alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """Raised in a worker that waits for a parcel of a step that has failed elsewhere."""


class LocalLink(Generic[T]):
    """Passes the parcels of one step between threads.

    ``close`` is how a failure travels: whoever waits, or will wait, gets ``Closed`` instead of a parcel. A wait
    therefore ends when the parcel comes or when its sender fails, and needs no deadline of its own.
    """

    def __init__(self) -> None:
        self._parcels: dict[Hashable, T] = {}
        self._changed = threading.Condition()
        self._closed = False

    def send(self, address: Hashable, parcel: T, pack: Callable[[T], T] | None = None) -> None:
        """Leaves a parcel for whoever asks for the address.

        Args:
            address: where it goes.
            parcel: what is sent.
            pack: what is done to it first, by the sender (default: nothing).
        """
        packed = parcel if pack is None else pack(parcel)
        with self._changed:
            self._parcels[address] = packed
            self._changed.notify_all()

    def receive(self, address: Hashable) -> T:
        """Takes the parcel at the address, waiting for it if need be.

        Raises:
            Closed: the step has failed, and the parcel may never come.
        """
        with self._changed:
            while address not in self._parcels:
                self.check()
                self._changed.wait()
            return self._parcels.pop(address)

    def has(self, address: Hashable) -> bool:
        """Tells whether the parcel at the address is there."""
        with self._changed:
            return address in self._parcels

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Drops the parcels at unwanted addresses."""
        with self._changed:
            for address in [address for address in self._parcels if unwanted(address)]:
                del self._parcels[address]

    def check(self) -> None:
        """Raises ``Closed`` if the step has failed."""
        if self._closed:
            raise Closed

    def dispatch(self) -> None:
        """Does nothing: a parcel is where it belongs as soon as it was sent."""

    def close(self) -> None:
        """Ends the step for everybody and drops what was under way."""
        with self._changed:
            self._closed = True
            self._parcels.clear()
            self._changed.notify_all()
