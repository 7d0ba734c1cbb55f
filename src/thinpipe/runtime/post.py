"""The link of one rank: what stays on the rank is handed over, what leaves it is packed, sent and unpacked by threads.

::

    compute thread     F1.0 ─┬─ F1.1 ───── F1.2 ──          never packs, never sends, never unpacks
    packer of an edge        └─ encode ─ frame ─► lane
                                                    lane ─ frame ─ decode ─┐      the lane's own thread
                                                    F2.0 waits for ........┴─ F2.0 ──
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from thinpipe.codecs import Codec, Packet, codec
from thinpipe.errors import PacketError, PeerLost, StallError
from thinpipe.links import Closed, LocalLink, Meter
from thinpipe.runtime.crossing import Crossing
from thinpipe.runtime.frame import Frame
from thinpipe.runtime.parcel import Address, Cargo, Coded, Edge, Grads, Parcel
from thinpipe.runtime.staging import Stager, come_true, pinned, wait_for
from thinpipe.runtime.whereabouts import Whereabouts
from thinpipe.trace import NO_TRACE, AnyTracer

Item: TypeAlias = Parcel | Grads
Pack: TypeAlias = Callable[[Any], Any]

_EXPANSION = 64
"""How many times its own length a message may take as tensors: more than codecs of ordinary tensors make of it."""


class Sender(Protocol):
    """The sending end of a lane; ``SendLane`` over gloo, ``NetSendLane`` over a network."""

    def send(self, parts: Sequence[Tensor], sent: Callable[[], None] | None = None) -> None:
        """Sends flat uint8 CPU tensors as one message; ``sent`` is called when it has left."""

    def flush(self) -> None:
        """Waits until every message has left."""

    def abort(self) -> None:
        """Wakes everybody who waits for the lane with ``Closed``."""


class Receiver(Protocol):
    """The receiving end of a lane."""

    def abort(self) -> None:
        """Ends the lane: nothing more is taken, and nobody told."""


class Opening(Protocol):
    """Opens a lane into this rank, given who takes its messages."""

    def __call__(self, *, take: Callable[[Tensor], None], failed: Callable[[Exception], None]) -> Receiver:
        """Opens it."""


@dataclass(frozen=True)
class Way:
    """One direction of an edge between this rank and another.

    Args:
        edge: the edge.
        number: of the edge, the same on all ranks.
        cargo: what goes that way.
        peer: the rank at the other end.
        device: of the stage at this end.
        crossing: the edge's codecs.
        meter: counts what goes that way.
        name: the other end, for people (default: its rank).
    """

    edge: Edge
    number: int
    cargo: Cargo
    peer: int
    device: torch.device
    crossing: Crossing
    meter: Meter
    name: str = ""

    @property
    def other_end(self) -> str:
        """Names whoever is there."""
        return self.name or f"rank {self.peer}"


class _Due(NamedTuple):
    """A gradient that is to come: its codec, and the type and shape of the activation that it is for."""

    codec: Codec | None
    dtype: torch.dtype
    shape: torch.Size


class Post:
    """Delivers parcels between the stages of one rank and of all others.

    Args:
        outgoing: the ways out, each with its lane.
        incoming: the ways in, each with what opens its lane.
        specs: the codecs that may be met; any other is refused.
        where: told what the rank waits for.
        failed: told what went wrong in a thread, and the rank at the other end of its way.
        most: how many bytes the activations of a message may take as tensors, if that is more than 64 times the
            message's own length (default: any number; what is sent by whoever is trusted is limited by its codecs).
        tracer: told when what happened.
    """

    def __init__(
        self,
        outgoing: Sequence[tuple[Way, Sender]],
        incoming: Sequence[tuple[Way, Opening]],
        *,
        specs: frozenset[str],
        where: Whereabouts,
        failed: Callable[[BaseException, int], None],
        most: int | None = None,
        tracer: AnyTracer = NO_TRACE,
    ) -> None:
        self.tracer = tracer
        self._most = most
        self.stalled = 0.0
        self.step = 0
        self._inbox: LocalLink[Item] = LocalLink()
        self._where, self._failed = where, failed
        self._outgoing = outgoing
        self._meters = {(way.edge, way.cargo): way.meter for way, _ in incoming}
        self._codecs: dict[str, Codec] = {spec: codec(spec) for spec in specs | {"none"}}
        # The gradients that are to come, for the activations that were sent.
        self._expected: dict[Hashable, list[_Due | None]] = {}
        self._todo: dict[tuple[Edge, Cargo], queue.SimpleQueue[Any]] = {}
        self._held: list[tuple[queue.SimpleQueue[Any], Any]] = []
        self._idle = threading.Condition()
        self._packing = 0
        self._threads: list[threading.Thread] = []
        for way, lane in outgoing:
            self._todo[way.edge, way.cargo] = queue.SimpleQueue()
            packer = threading.Thread(target=self._pack_all, args=(way, lane), daemon=True, name="thinpipe pack")
            packer.start()
            self._threads.append(packer)
        self._receivers = [
            opening(take=partial(self._open, way, Stager(way.device)), failed=partial(self._lost, way))
            for way, opening in incoming
        ]

    # -- what a worker uses --------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Has what is sent and received from now on belong to a step."""
        self.step = step
        self.stalled = 0.0

    def send(self, address: Address, parcel: Item, pack: Pack | None = None) -> None:
        """Leaves a parcel for a stage, of this rank or another, and returns at once.

        What goes to another rank leaves with the next ``dispatch``, or when the caller waits for something.

        Args:
            address: where it goes.
            parcel: what is sent.
            pack: makes the same with packets for tensors, where the edge has codecs (default: it has none).
        """
        todo = self._todo.get((address.edge, address.cargo))
        if todo is None:
            self._inbox.send((self.step, address), parcel, pack)
            return
        self._held.append((todo, (self.step, address.micro, parcel, pack)))

    def dispatch(self) -> None:
        """Sends off what was left so far.

        A packer that began at once would take the interpreter's lock, again and again, from a compute thread that has
        yet to prepare its next computation; during the computation nobody minds.
        """
        self._send_off()

    def _send_off(self) -> None:
        if not self._held:
            return
        with self._idle:
            self._packing += len(self._held)
        for todo, job in self._held:
            todo.put(job)
        self._held.clear()

    def receive(self, address: Address) -> Any:
        """Takes the parcel at the address, waiting for it if need be.

        Raises:
            Closed: something failed.
        """
        if not self._inbox.has((self.step, address)):
            self._send_off()
        self._where.awaits(address)
        began = time.perf_counter()
        item = self._inbox.receive((self.step, address))
        waited = time.perf_counter() - began
        self.stalled += waited
        if (meter := self._meters.get((address.edge, address.cargo))) is not None:
            meter.count(stall=waited)
        self._where.awaits(None)
        wait_for([x for x in _values(item) if isinstance(x, Tensor)], item.ready)
        return item

    def check(self) -> None:
        """Raises ``Closed`` if something failed."""
        self._inbox.check()

    def flush(self) -> None:
        """Waits until everything was packed and sent.

        Raises:
            Closed: something failed.
        """
        self._send_off()
        self._where.at(f"sending the last data of step {self.step}")
        with self._idle:
            while self._packing:
                self._inbox.check()
                self._idle.wait(0.5)
        for way, lane in self._outgoing:
            try:
                with self._where.waiting("its readiness for the data", way.peer):
                    lane.flush()
            except (PeerLost, StallError) as error:
                self._failed(error, way.peer)
                self._inbox.check()

    def close(self) -> None:
        """Ends all threads and wakes whoever waits."""
        self._inbox.close()
        self._held.clear()
        for todo in self._todo.values():
            todo.put(None)
        for _, lane in self._outgoing:
            lane.abort()
        for receiver in self._receivers:
            receiver.abort()

    def join(self, until: float) -> None:
        """Waits for all threads, once closed and hung up; the interpreter must not end while one is inside torch."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        # Who is told of failures has this post as well: the two, and gloo's threads, would live until collected.
        self._failed = _ignored

    # -- threads -------------------------------------------------------------------------------------------------------

    def _pack_all(self, way: Way, lane: Sender) -> None:
        stager, todo = Stager(way.device), self._todo[way.edge, way.cargo]
        try:
            while (job := todo.get()) is not None:
                self._pack_one(way, lane, stager, *job)
                del job
                with self._idle:
                    self._packing -= 1
                    self._idle.notify_all()
        except Closed:
            pass
        except BaseException as error:
            self._failed(error, way.peer)

    def _pack_one(
        self, way: Way, lane: Sender, stager: Stager, step: int, i: int, item: Item, pack: Pack | None
    ) -> None:
        name = _action(way, i)
        come_true(item.ready)  # or the rest of the computation would count as encoding
        began = time.perf_counter()
        frame = self._framed(way, stager, step, i, item, pack)
        parts = frame.parts()
        done = time.perf_counter()
        size = sum(part.numel() for part in parts)
        way.meter.count(raw=_raw_bytes(frame), encode=done - began)
        self.tracer.add("encode", name, began, done, step=step)
        lane.send(parts, self._noting(way, name, done, step=step, bytes=size))

    def _noting(self, way: Way, name: str, began: float, **details: int) -> Callable[[], None] | None:
        """Makes what notes that a message has left, for the trace."""
        if self.tracer is NO_TRACE:
            return None
        return lambda: self.tracer.add("wire", name, began, time.perf_counter(), peer=way.peer, **details)

    def _framed(self, way: Way, stager: Stager, step: int, i: int, item: Item, pack: Pack | None) -> Frame:
        def packed() -> list[Any]:
            leaves = (pack(item) if pack is not None else item).leaves
            if isinstance(item, Parcel) and any(item.wants_grad):
                self._expected[step, way.edge, i] = [_due(way.crossing, k, x) for k, x in enumerate(leaves)]
            return [_packet(x, self._codecs["none"]) for x in leaves]

        def on_host(leaves: list[Any]) -> list[Any]:
            return [pinned(x) if isinstance(x, Packet) else x for x in leaves]

        leaves = stager.to_host(packed, on_host, item.ready)
        if isinstance(item, Parcel):
            return Frame(way.cargo, step, way.number, i, leaves, item.spec, item.wants_grad, item.stashed)
        return Frame(way.cargo, step, way.number, i, leaves, tree_flatten(leaves)[1], ())

    def _lost(self, way: Way, error: Exception) -> None:
        if not isinstance(error, Closed):
            self._failed(error, way.peer)

    def _open(self, way: Way, stager: Stager, message: Tensor) -> None:
        began = time.perf_counter()
        frame = Frame.read(message)
        self._verify(way, frame)
        raw = _raw_bytes(frame)
        if way.cargo is Cargo.ACTIVATION and self._most is not None:
            _verify_size(raw, message.numel(), self._most)
        item = self._opened(way, stager, frame)
        come_true(item.ready)
        done = time.perf_counter()
        way.meter.count(raw=raw, decode=done - began)
        self.tracer.add("decode", _action(way, frame.micro), began, done, step=frame.step)
        self._inbox.send((frame.step, Address(way.edge, frame.micro, way.cargo)), item)

    def _verify(self, way: Way, frame: Frame) -> None:
        """Checks that a frame is one that may come that way, before its tensors are decoded."""
        if (frame.cargo, frame.edge) != (way.cargo, way.number):
            raise PacketError(
                f"{way.other_end} sent {frame.cargo.name} of edge {frame.edge} where {way.cargo.name} of edge "
                f"{way.number} was expected"
            )

    def _opened(self, way: Way, stager: Stager, frame: Frame) -> Item:
        with stager.beside({}):
            if way.cargo is Cargo.ACTIVATION:
                leaves = [self._activation(x, stager) for x in frame.leaves]
            else:
                key = (frame.step, way.edge, frame.micro)
                due = self._expected.pop(key, None)
                if due is None or len(due) != len(frame.leaves):
                    raise PacketError(f"{way.other_end} sent a gradient that was not expected: {key}")
                leaves = [self._gradient(way, *pair, stager) for pair in zip(frame.leaves, due, strict=True)]
            ready = stager.mark()
        if way.cargo is Cargo.GRADIENT:
            return Grads(leaves, ready)
        return Parcel(leaves, frame.spec, list(frame.wants_grad), ready, frame.stashed)

    def _activation(self, leaf: Any, stager: Stager) -> Any:
        if not isinstance(leaf, Packet):
            return leaf
        chosen = self._codecs.get(leaf.spec)
        if chosen is None:
            known = ", ".join(sorted(self._codecs))
            raise PacketError(f"a packet of the codec {leaf.spec!r} came, but this pipeline has {known}")
        packet = stager.from_host(leaf)
        value = chosen.decode(packet, consume=leaf.spec == "none")
        return value if leaf.spec == "none" else Coded(packet, chosen, value)

    def _gradient(self, way: Way, leaf: Any, due: _Due | None, stager: Stager) -> Tensor | None:
        if not isinstance(leaf, Packet):
            return None
        if due is None or (leaf.dtype, leaf.shape) != (due.dtype, due.shape):
            wanted = "no tensor" if due is None else f"an activation of {due.dtype} {tuple(due.shape)}"
            raise PacketError(f"{way.other_end} sent a gradient of {leaf.dtype} {tuple(leaf.shape)} for {wanted}")
        packet = stager.from_host(leaf)
        codec = due.codec if due.codec is not None and leaf.spec != "none" else self._codecs["none"]
        return codec.decode(packet, consume=True)


def _ignored(error: BaseException, rank: int) -> None:
    """Takes no notice of what goes wrong after the end."""


def _action(way: Way, i: int) -> str:
    """Names the action whose result travels."""
    return f"F{way.edge.source}.{i}" if way.cargo is Cargo.ACTIVATION else f"B{way.edge.target}.{i}"


def _packet(leaf: Any, plain: Codec) -> Any:
    if isinstance(leaf, Coded):
        return leaf.packet
    return plain.encode(leaf) if isinstance(leaf, Tensor) else leaf


def _due(crossing: Crossing, number: int, leaf: Any) -> _Due | None:
    """Tells what gradient is to come for a leaf that was sent; None for what is no tensor."""
    tensor = leaf.packet if isinstance(leaf, Coded) else leaf
    if not isinstance(tensor, Packet | Tensor):
        return None
    return _Due(crossing.grad_codec(number, leaf), tensor.dtype, tensor.shape)


def _verify_size(raw: int, length: int, most: int) -> None:
    """Refuses a message that would take more memory than an honest one has reason to.

    Raises:
        PacketError: it would.
    """
    if raw > max(most, _EXPANSION * length):
        raise PacketError(
            f"a message of {length} bytes holds tensors of {raw} bytes; this end takes {most} bytes (max_message), or "
            f"{_EXPANSION} times the message; send smaller micro-batches"
        )


def _values(item: Item) -> list[Any]:
    return [x.value if isinstance(x, Coded) else x for x in item.leaves]


def _raw_bytes(frame: Frame) -> int:
    packets = [x for x in frame.leaves if isinstance(x, Packet)]
    return sum(packet.shape.numel() * packet.dtype.itemsize for packet in packets)
