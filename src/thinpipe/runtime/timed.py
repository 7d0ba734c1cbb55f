"""Times the threads of a pipe's stages, each of which does one thing after the other.

::

                |<------------------------ all stages forward ------------------------>|
    stage 0     |computed|encode|computed|encode|waited                                |
    stage 1     |waited         |decode|computed|waited|decode|computed|               |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from thinpipe.runtime.parcel import Address
from thinpipe.runtime.spent import Spent
from thinpipe.runtime.worker import Link, Worker
from thinpipe.schedule import Action


class TimedLink:
    """A link as one stage uses it, which times how long it waits and packs.

    Args:
        link: that of all stages.
        spent: the stage's; the times are added to it.
    """

    def __init__(self, link: Link, spent: Spent) -> None:
        self._link, self._spent = link, spent

    def send(self, address: Address, parcel: Any, pack: Callable[[Any], Any] | None = None) -> None:
        """Leaves a parcel for whoever asks for the address, packed."""
        if pack is not None:
            began = time.perf_counter()
            parcel = pack(parcel)
            self._spent.encode += time.perf_counter() - began
        self._link.send(address, parcel)

    def receive(self, address: Address) -> Any:
        """Takes the parcel at the address, waiting for it if need be."""
        began = time.perf_counter()
        parcel = self._link.receive(address)
        self._spent.waited += time.perf_counter() - began
        return parcel

    def check(self) -> None:
        """Raises ``Closed`` if the step has failed."""
        self._link.check()

    def dispatch(self) -> None:
        """Sends off what was left so far."""
        self._link.dispatch()


def run_timed(worker: Worker, actions: Sequence[Action], link: Link, *, keep_graph: bool) -> None:
    """Has a worker execute actions; what is neither waiting, packing nor unpacking was computing."""
    spent = worker.spent
    began, before = time.perf_counter(), spent.total
    worker.run(actions, TimedLink(link, spent), keep_graph=keep_graph)
    spent.computed += time.perf_counter() - began - (spent.total - before)


@contextmanager
def until_all_are_through(workers: Sequence[Worker]) -> Iterator[None]:
    """Has those who are through before the others wait for them."""
    began, before = time.perf_counter(), [worker.spent.total for worker in workers]
    yield
    seconds = time.perf_counter() - began
    for worker, earlier in zip(workers, before, strict=True):
        worker.spent.waited += seconds - (worker.spent.total - earlier)
