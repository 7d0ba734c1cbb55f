"""Addresses: a host and a port, written ``host:port`` or ``[host]:port``."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from thinpipe.errors import AddressError, PeerLost

_FORM = re.compile(r"(?:tcp://)?(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Where a server is.

    Args:
        host: its name or number; ``*`` for all of a machine's.
        port: 0 to 65535; 0 for one that is free.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address.

        Raises:
            AddressError: it is none.
        """
        match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None or int(match["port"]) > 65535:
            raise AddressError(f"{text!r} is not an address; write host:port, such as 10.0.0.7:5555 or [::1]:5555")
        return cls(match["six"] or match["host"], int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_v6 else f"{self.host}:{self.port}"

    @property
    def is_v6(self) -> bool:
        """Whether the host is a number of IPv6."""
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the host. A name may be anywhere, but for ``localhost``."""
        number = self._number
        return self.host == "localhost" or (number is not None and number.is_loopback)

    @property
    def _number(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    def resolved(self) -> Address:
        """Looks up the host's number; one of IPv4, if it has both.

        Raises:
            PeerLost: the name is not known, or nothing that knows names can be reached now.
        """
        if self.host == "localhost" or self._number is not None:
            return self
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            raise PeerLost(
                f"the name {self.host!r} cannot be resolved ({reason}); check its spelling, and that this machine is "
                "connected to its network"
            ) from error
        numbers = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
        return Address(str(numbers[0][4][0]), self.port)

    @property
    def url(self) -> str:
        """The address as ZeroMQ writes it."""
        # What localhost is, is up to files of the machine; who says it means the loopback.
        return f"tcp://{Address('127.0.0.1', self.port) if self.host == 'localhost' else self}"
