"""Addresses: a host and a port, written ``host:port`` or ``[host]:port``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from thinpipe.errors import AddressError

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
        match = _FORM.fullmatch(text.strip())
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
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The address as ZeroMQ writes it."""
        # What localhost is, is up to files of the machine; who says it means the loopback.
        return f"tcp://{Address('127.0.0.1', self.port) if self.host == 'localhost' else self}"
