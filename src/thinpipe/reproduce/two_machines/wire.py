"""What joins client and server: a wire that the kernel slows, the loopback on which they slow themselves, or a network.

::

    namespaces   client ─ 198.18.0.2 ══ tbf ═ veth ═ tbf ══ 198.18.0.1 ─ server     with keys: it is no loopback
    emulated     client ─ 127.0.0.1, both ends hold back what they send ─ server
    address      client ─ whatever there is ─ a server that somebody has started
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thinpipe.bench.network import ADDRESSES, Network, joined
from thinpipe.links.net.keys import make_keys
from thinpipe.reproduce.two_machines.server import CLIENT, SERVER

NAMESPACES, EMULATED, ADDRESS = "namespaces", "emulated", "address"
_PORT = 5555


@dataclass(frozen=True)
class Keys:
    """Where the client finds its keys.

    Args:
        key: the file of its own.
        server: the file of the server's public one.
    """

    key: str
    server: str


class Wire(Protocol):
    """A way from the client to the server."""

    @property
    def name(self) -> str:
        """What it is, for the records."""

    @property
    def listen(self) -> str | None:
        """Where a server is to be started; None where somebody has started one."""

    @property
    def address(self) -> str | None:
        """Where that server is."""

    @property
    def keys(self) -> Keys | None:
        """What the client needs to be let in; a server that is started has its own in the same folder."""

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Writes the command that runs another one at the server's end (0) or the client's (1)."""

    def shape(self, rate: float | None) -> None:
        """Makes the wire itself as slow as is asked for, if it can be."""

    def emulated(self, rate: float | None) -> float | None:
        """Tells what both ends have to hold themselves to."""


@dataclass(frozen=True)
class NamespaceWire:
    """Two network namespaces; what is sent is encrypted, for a server without keys listens to its own host only.

    Args:
        network: the namespaces.
        keys: of both ends.
    """

    network: Network
    keys: Keys
    name: str = NAMESPACES
    listen: str = f"{ADDRESSES[0]}:{_PORT}"
    address: None = None

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Enters the namespace."""
        return self.network.command(host, words)

    def shape(self, rate: float | None) -> None:
        """Sets the token buckets."""
        self.network.shape(rate)

    def emulated(self, rate: float | None) -> None:
        """Leaves it to the kernel."""


@dataclass(frozen=True)
class LoopbackWire:
    """The loopback."""

    name: str = EMULATED
    listen: str = "127.0.0.1:0"
    address: None = None
    keys: None = None

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Changes nothing."""
        return list(words)

    def shape(self, rate: float | None) -> None:
        """Changes nothing."""

    def emulated(self, rate: float | None) -> float | None:
        """Leaves it to both ends."""
        return rate


@dataclass(frozen=True)
class GivenWire:
    """The network to a server that somebody has started; slowed down by both ends, if at all.

    Args:
        address: of the server.
        keys: of the client, and the server's public one.
    """

    address: str
    keys: Keys | None
    name: str = ADDRESS
    listen: None = None

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Changes nothing."""
        return list(words)

    def shape(self, rate: float | None) -> None:
        """Changes nothing."""

    def emulated(self, rate: float | None) -> float | None:
        """Leaves it to both ends."""
        return rate


@contextmanager
def wired(via: str) -> Iterator[Wire]:
    """Makes a wire on this machine, and takes it away again.

    Args:
        via: ``namespaces`` or ``emulated``.

    Raises:
        NetworkError: there can be no namespaces.
    """
    if via == EMULATED:
        yield LoopbackWire()
        return
    with joined() as network, tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        for name in (SERVER, CLIENT):
            make_keys(folder, name)
        yield NamespaceWire(network, Keys(str(Path(folder, f"{CLIENT}.key")), str(Path(folder, f"{SERVER}.pub"))))
