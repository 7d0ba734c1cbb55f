"""Two hosts on one machine, joined by one wire of a known speed: network namespaces and a veth pair.

::

    namespace 0                                namespace 1
    198.18.0.1 ─ link0 ══ tbf ═ veth ═ tbf ══ link0 ─ 198.18.0.2

A token bucket (``tbf``) at each end lets through so many bits a second, whatever program sends them. Nothing leads from
the namespaces to any other network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from thinpipe.errors import ThinpipeError

PREFIX = "thinpipe-bench"
INTERFACE = "link0"
ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the range that is set apart for benchmarks of networks."""

BURST = 256 * 1024
"""Bytes that an idle wire lets through at once; less would make the kernel cut what TCP sends in one piece."""

_LATENCY = "50ms"


class NetworkError(ThinpipeError, RuntimeError):
    """The kernel refused to make, shape or remove the wire."""


class Network:
    """Two namespaces and their wire; ``joined`` makes one and takes it away again.

    Args:
        owner: the process that they belong to, whose number is in their names.
    """

    def __init__(self, owner: int) -> None:
        self.names = tuple(f"{PREFIX}-{owner}-{host}" for host in range(2))

    def make(self) -> None:
        """Makes the namespaces, and the wire at full speed.

        Raises:
            NetworkError: this machine cannot; what was made before it could not is still there.
        """
        for name in self.names:
            _tell("ip", "netns", "add", name)
        first, second = self.names
        wire = ["name", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second]
        _tell("ip", "link", "add", *wire)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _tell("ip", "-n", name, "address", "add", f"{address}/30", "dev", INTERFACE)
            _tell("ip", "-n", name, "link", "set", INTERFACE, "up")
            _tell("ip", "-n", name, "link", "set", "lo", "up")

    def shape(self, rate: float | None) -> None:
        """Sets the speed of the wire, each way; it may change while something runs.

        Args:
            rate: bits a second, or None for as many as the machine can.
        """
        for name in self.names:
            bucket = ["noqueue"]
            if rate is not None:
                bucket = ["tbf", "rate", f"{rate:.0f}bit", "burst", str(BURST), "latency", _LATENCY]
            _tell("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, "root", *bucket)

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Writes the command that runs another one on a host; it becomes that one, under the same process number."""
        return [_find("ip"), "netns", "exec", self.names[host], *words]

    def remove(self) -> None:
        """Ends what still runs in the namespaces and takes them away, the wire with them."""
        for name in self.names:
            if name in _namespaces():
                _empty(name)
                _tell("ip", "netns", "delete", name)


@contextmanager
def joined(rate: float | None = None) -> Iterator[Network]:
    """Makes two hosts joined by a wire, and takes them away at the end, however it comes.

    Args:
        rate: bits a second each way (default: as many as the machine can).

    Raises:
        NetworkError: this machine cannot.
    """
    sweep()
    network = Network(os.getpid())
    try:
        network.make()
        if rate is not None:
            network.shape(rate)
        yield network
    finally:
        network.remove()


def sweep() -> None:
    """Removes the hosts of processes that were killed before they could."""
    for name in _namespaces():
        owner = name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if name.startswith(f"{PREFIX}-") and owner.isdecimal() and not Path("/proc", owner).exists():
            Network(int(owner)).remove()


def obstacle() -> str | None:
    """Tells what keeps this machine from joining hosts by a shaped wire, None if nothing does."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 not found"
    try:
        with joined(1e6):  # a container's root may lack the right, a kernel the token bucket: only a try tells
            return None
    except NetworkError as error:
        return str(error)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _tell("ip", "netns", "list").splitlines() if line.strip()]


def _empty(name: str) -> None:
    for process in _tell("ip", "netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _tell(tool: str, *words: str) -> str:
    # A session of its own, or Ctrl-C in the terminal would end the very command that cleans up.
    command = [_find(tool), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)  # noqa: S603
    if done.returncode != 0:
        raise NetworkError(f"{tool} {' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise NetworkError(f"{tool} of iproute2 not found")
    return path
