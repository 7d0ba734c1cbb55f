"""``Server``: lends the middle of models to clients, a session for each.

::

    server = Server({"middle": Offer(make=build, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1))})
    server.serve_forever()
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from thinpipe import __version__, arguments
from thinpipe.checkpoint.disk import FolderLock
from thinpipe.codecs import codec
from thinpipe.errors import (
    ArgumentError,
    BusyError,
    CheckpointError,
    DisagreementError,
    DiskError,
    PacketError,
    RefusedError,
    ThinpipeError,
)
from thinpipe.links import Closed
from thinpipe.links.net import Channel, Listener, ServerKeys
from thinpipe.links.net.seldom import Seldom
from thinpipe.remote.half import MOST
from thinpipe.remote.metrics import Counters, MetricsServer, SessionStatus, serve_metrics
from thinpipe.remote.offer import Offer
from thinpipe.remote.past import Memory, Shelf
from thinpipe.remote.protocol import HELLO, REFUSED, SESSION, Hello
from thinpipe.remote.saved import Store
from thinpipe.remote.session import Session
from thinpipe.remote.terms import verify_same
from thinpipe.remote.troubles import kind_of, reason_for_others
from thinpipe.remote.turns import Turns
from thinpipe.remote.wires import U
from thinpipe.runtime.heap import return_memory
from thinpipe.schedule import plan

_log = logging.getLogger("thinpipe")
_FIRST_WORD = 10.0
_HAND_OVER = 30.0
_STOP = 5.0
_SWEEP = 1.0
_MOST_CHUNKS = 256
"""Micro-batches of a step: the time to plan one grows with the square of them, and all clients wait for it."""
_MOST_SAVED = 256
"""Sessions of one client in the folder."""
_KEPT = 4
"""Times ``max_clients``: sessions put away that a server without a folder keeps in memory."""


class Server:
    """Lends middles.

    Args:
        offers: what is lent, by name.
        listen: ``host:port``; port 0 for one that is free. Default: ``127.0.0.1:5555``.
        keys: the server's, and the clients that may come. Default: none, and only this machine can connect.
        folder: where sessions are saved, so that they survive this process. Default: in memory only.
        device: where sessions compute. Default: the current GPU, or the CPU.
        max_clients: how many sessions there may be at a time. When one more comes, the one whose client has been away
            for longest is put away; if all are connected, the newcomer is refused. Default: 4.
        idle: seconds after which a session of which nothing is heard is saved and put away. Default: 3600.
        silence: seconds without a sign of life after which a connection counts as lost. Default: 15.
        metrics: a port of this machine for metrics in Prometheus' text. Default: none.
        codecs: the codecs that clients may use. Default: all.
        max_message: the longest message to be accepted, in bytes: a micro-batch of activations. Its tensors, decoded,
            may be as large, or 64 times the length of the message. Default: 512 MiB.

    Raises:
        AddressError: it cannot listen there.
        FolderError: the folder cannot be written, or another server uses it.
    """

    def __init__(
        self,
        offers: Mapping[str, Offer],
        *,
        listen: str = "127.0.0.1:5555",
        keys: ServerKeys | None = None,
        folder: str | Path | None = None,
        device: torch.device | str | None = None,
        max_clients: int = 4,
        idle: float = 3600.0,
        silence: float = 15.0,
        metrics: int | None = None,
        codecs: Sequence[str] | None = None,
        max_message: int = MOST,
    ) -> None:
        if not isinstance(offers, Mapping) or (
            isinstance(offers, dict) and not all(isinstance(each, Offer) for each in offers.values())
        ):
            example = "{'middle': Offer(make, optimizer)}"
            raise ArgumentError(f"offers must be Offers by name, as {example}, got {offers!r:.100}")
        if keys is not None and not isinstance(keys, ServerKeys):
            raise ArgumentError(f"keys must be ServerKeys(own pair, clients), got {keys!r:.100}")
        if isinstance(codecs, str) or not isinstance(codecs, Iterable | None):
            raise ArgumentError(f"codecs must be a list, as ['block:4', 'wave:4'], got {codecs!r:.100}")
        max_clients = arguments.whole("max_clients", max_clients)
        max_message = arguments.whole("max_message", max_message)
        arguments.seconds("idle", idle, endless=True)
        arguments.seconds("silence", silence)
        if metrics is not None:
            arguments.whole("metrics (a port)", metrics, least=0, most=65535)
        if folder is not None:
            arguments.folder("folder", folder)
        self.offers, self.keys, self.max_clients, self.idle = offers, keys, max_clients, idle
        self.device = _device(device)
        self.counters = Counters()
        self._codecs = None if codecs is None else _named_in_full(codecs)
        self._folder = None if folder is None else Path(folder)
        self._most = max_message
        self._turns = Turns()
        self._seldom = Seldom()
        self._sessions: dict[str, Session] = {}
        # Of sessions that are in memory only: what is put away stays there.
        self._shelves: dict[str, tuple[Shelf, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._metrics: MetricsServer | None = None
        self._folder_lock: FolderLock | None = None
        if self._folder is not None:
            self._folder_lock = FolderLock(self._folder, "choose another folder for sessions (--folder)")
        try:
            self._listener = Listener(listen, keys=keys, accepted=self._accepted, silence=silence)
            try:
                if metrics is not None:
                    self._metrics = serve_metrics(metrics, self.statuses, self.counters)
            except BaseException:
                self._listener.close()
                raise
        except BaseException:
            self._release()
            raise
        self._sweeper = threading.Thread(target=self._sweep, name="thinpipe sweeper", daemon=True)
        self._sweeper.start()

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        return self._listener.address

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics."""
        return None if self._metrics is None else self._metrics.port

    def statuses(self) -> list[SessionStatus]:
        """Says how all sessions are."""
        with self._lock:
            sessions = list(self._sessions.values())
        return [session.status() for session in sessions]

    def allow(self, clients: Mapping[str, str]) -> None:
        """Accepts these clients from now on, instead of those before: names by public keys."""
        self._listener.allow(clients)
        if self.keys is not None:
            self.keys = replace(self.keys, clients=dict(clients))

    def serve_forever(self) -> None:
        """Serves until ``close``, or until interrupted."""
        try:
            while not self._closed.wait(1.0):
                pass
        finally:
            self.close()

    def close(self) -> None:
        """Lets steps that are under way come to their end, saves all sessions, and ends. Safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        until = time.monotonic() + _STOP
        for session in sessions:
            if session.lock.acquire(timeout=max(0.0, until - time.monotonic())):
                session.lock.release()
            else:
                session.break_off()
        for session in sessions:
            self._put_away(session)
        self._listener.close()
        if self._metrics is not None:
            self._metrics.close()
        self._sweeper.join(2 * _SWEEP)
        for thread in list(self._threads):
            thread.join(_STOP)
        self._release()

    def _release(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accepted(self, channel: Channel) -> None:
        thread = threading.Thread(target=self._meet, args=(channel,), name="thinpipe session", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _meet(self, channel: Channel) -> None:
        try:
            self._greet(channel)
        except DiskError as error:
            _refuse(channel, kind_of(error), error.reason)  # the session has logged it, once
        except (RefusedError, DisagreementError, CheckpointError) as error:
            self.counters.count("refused")
            self._seldom.warn(f"{channel.peer} was refused: {error}")
            _refuse(channel, kind_of(error), reason_for_others(error))
        except (ThinpipeError, Closed) as error:
            self._seldom.warn(f"{channel.peer} could not begin a session: {error}")
            _refuse(channel, "protocol", reason_for_others(error))
        except Exception as error:
            _log.exception("%s could not be served", channel.peer)
            _refuse(channel, "failed", reason_for_others(error))
        finally:
            self._threads.discard(threading.current_thread())

    def _greet(self, channel: Channel) -> None:
        word, value = channel.hear(_FIRST_WORD)
        if word != HELLO:
            raise PacketError(f"the first word is {HELLO!r}, got {word!r:.50}")
        hello = Hello.from_json(value)
        self._verify(hello)
        with self._lock:
            session = self._found(channel, hello)
            session.guests += 1
        is_over = False
        try:
            is_over = self._serve(session, channel, hello)
        finally:
            with self._lock:
                session.guests -= 1
                # Not if its client is back already, and waits for it.
                if is_over and session.is_away:
                    self._put_away(session)

    def _serve(self, session: Session, channel: Channel, hello: Hello) -> bool:
        """Serves a session until it has no connection any more; tells whether it is over."""
        session.take_over(channel, _HAND_OVER)
        try:
            if hello.inputs is not None and session.inputs is not None:
                verify_same(
                    {"shape of activations": session.inputs},
                    {"shape of activations": hello.inputs},
                    us="at the server",
                    them="at the client",
                )
            session.welcome(channel, hello)
            return session.serve(channel, idle=self.idle)
        finally:
            session.lock.release()

    def _verify(self, hello: Hello) -> None:
        verify_same(
            {"version of thinpipe": __version__},
            {"version of thinpipe": hello.version},
            us="at the server",
            them="at the client",
        )
        if hello.offer not in self.offers:
            try:
                self.offers[hello.offer]
            except KeyError as error:
                names = ", ".join(self.offers) or "nothing"
                reason = str(error) if type(error) is not KeyError else f"there are {names}"
                raise RefusedError(f"{hello.offer!r:.100} is not offered: {reason}") from None
        try:
            plan(hello.terms.schedule, len(U), 1, U, ahead=hello.terms.ahead)
        except ValueError as error:
            raise RefusedError(f"{error!s:.300}") from None
        if hello.terms.chunks > _MOST_CHUNKS:
            raise RefusedError(f"{hello.terms.chunks} chunks; this server takes at most {_MOST_CHUNKS}")
        asked = _named_in_full(hello.terms.specs)
        if self._codecs is not None and not asked <= self._codecs | {"none"}:
            raise DisagreementError(f"the codecs {sorted(asked)} at the client, {sorted(self._codecs)} at the server")

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _found(self, channel: Channel, hello: Hello) -> Session:
        """Finds the session of a client, or makes one; the caller has the lock."""
        if self._closed.is_set():
            raise BusyError("the server is being closed")
        session = self._sessions.get(hello.session)
        shelf, note = self._shelf(hello.session)
        if note is not None and note.get("owner's key") != channel.key:
            raise RefusedError("the session is another client's; come with the key that began it, or begin anew")
        if note is not None:
            verify_same(_agreed(channel, hello), note, us="at the client", them="at the server")
        elif hello.known:
            raise RefusedError(
                "the session is not known here; the server was started anew without its folder, or with another. Begin "
                "anew, with another folder"
            )
        else:
            self._verify_saved(channel)
        if session is not None and not session.has_left:
            return session
        self._make_room()
        if session is not None:
            session.has_left = False
            return session
        session = Session(
            hello.session,
            client=self._name(channel),
            offer_name=hello.offer,
            offer=self.offers[hello.offer],
            terms=hello.terms,
            shelf=shelf,
            is_new=note is None,
            device=self.device,
            turns=self._turns,
            most=self._most,
            counters=self.counters,
        )
        if note is None:
            self._write_note(hello.session, shelf, _agreed(channel, hello))
        self._sessions[hello.session] = session
        return session

    def _make_room(self) -> None:
        while sum(not session.has_left for session in self._sessions.values()) >= self.max_clients:
            away = [session for session in self._sessions.values() if session.is_away]
            if not away:
                raise BusyError(
                    f"the server is full: {self.max_clients} clients are connected, which is all it takes "
                    "(--max-clients); try again later"
                )
            if not self._put_away(min(away, key=lambda session: session.heard)):
                raise BusyError(
                    f"the server is full: it takes {self.max_clients} clients (--max-clients), and the session of one "
                    "that is away cannot be saved; see the server's log"
                )

    def _put_away(self, session: Session) -> bool:
        """Saves a session and lets go of it; one that cannot be saved stays, and is tried again after a while."""
        if not session.lock.acquire(timeout=_STOP):
            _log.warning("session %s could not be saved: it is still busy", session.name[:8])
            return False
        try:
            session.put_away()
        except CheckpointError as error:
            _log.error("session %s could not be saved: %s", session.name[:8], error)
            session.heard = time.monotonic()
            return False
        finally:
            session.lock.release()
        self._sessions.pop(session.name, None)
        self._forget_some(session.name)
        return_memory()
        return True

    def _forget_some(self, newest: str) -> None:
        """Keeps the memory of a server without a folder from growing with every session it ever had."""
        if newest in self._shelves:
            self._shelves[newest] = self._shelves.pop(newest)
        away = [name for name in self._shelves if name not in self._sessions]
        for name in away[: -_KEPT * self.max_clients]:
            _log.info("session %s is dropped: there is no folder to save it in", name[:8])
            del self._shelves[name]

    def _sweep(self) -> None:
        while not self._closed.wait(_SWEEP):
            with self._lock:
                limit = time.monotonic() - self.idle
                for session in self._sessions.values():
                    session.end_if_stuck(self.idle)
                for session in [each for each in self._sessions.values() if each.is_away and each.heard < limit]:
                    _log.info("session %s was idle for %g s; it is saved and unloaded", session.name[:8], self.idle)
                    self._put_away(session)

    def _shelf(self, name: str) -> tuple[Shelf, dict[str, Any] | None]:
        if self._folder is not None:
            store = Store(self._folder / name)
            return store, store.read_note()
        if name in self._shelves:
            return self._shelves[name]
        return Memory(), None

    def _verify_saved(self, channel: Channel) -> None:
        """Keeps one client from filling the disk with sessions that it begins and leaves.

        Raises:
            RefusedError: it has too many.
        """
        if self._folder is None or not self._folder.is_dir():
            return
        names = [path.name for path in self._folder.iterdir() if SESSION.fullmatch(path.name)]
        own = sum(_is_of(channel, Store(self._folder / name)) for name in names)
        if own >= _MOST_SAVED:
            raise RefusedError(
                f"{own} sessions of this client are saved at the server, and no more are taken; its owner may remove "
                "folders of sessions that are finished"
            )

    def _write_note(self, name: str, shelf: Shelf, note: dict[str, Any]) -> None:
        if isinstance(shelf, Store):
            shelf.write_note(note)
        else:
            self._shelves[name] = (shelf, note)

    def _name(self, channel: Channel) -> str:
        if self.keys is None or channel.key is None:
            return "anonymous"
        return self.keys.clients.get(channel.key, channel.key[:8])


def _agreed(channel: Channel, hello: Hello) -> dict[str, Any]:
    """Lists what must stay the same for the life of a session."""
    return {
        "owner's key": channel.key,
        "offer": hello.offer,
        "seed": hello.terms.seed,
        "codecs": [list(pair) for pair in hello.terms.codecs],
        "deferred batch norm": hello.terms.deferred_batch_norm,
    }


def _is_of(channel: Channel, store: Store) -> bool:
    """Tells whether a saved session belongs to a client."""
    try:
        note = store.read_note()
    except CheckpointError:
        return False  # damaged: whoever asks for it hears of that, and nobody else
    return note is not None and note.get("owner's key") == channel.key


def _named_in_full(codecs: Iterable[str]) -> frozenset[str]:
    """Gives codecs the names that they have for all: ``block:4`` is ``block:4/128``."""
    return frozenset(codec(each).spec for each in codecs)


def _refuse(channel: Channel, kind: str, reason: str) -> None:
    try:
        channel.tell(REFUSED, {"kind": kind, "reason": reason[:4000]})
    except (ThinpipeError, Closed):
        return
    finally:
        channel.close()


def _device(device: torch.device | str | None) -> torch.device:
    if device is not None:
        return arguments.device("device", device)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
