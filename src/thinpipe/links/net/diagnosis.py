"""Why a connection could not be made: what a plain TCP connection to the same address gets to read.

ZeroMQ's events do not tell a web server from a firewall, or a tunnel whose server has ended from a wrong key. The first
bytes do: every ZeroMQ server begins with the same ones, followed by whether it wants keys (CURVE) or not (NULL).

::

    client   FF 00 00 00 00 00 00 00 01 7F  03 00
    server   FF 00 00 00 00 00 00 00 01 7F  03 01  "CURVE" or "NULL", filled up to 20 bytes with zeros  ...
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from thinpipe.errors import PeerLost
from thinpipe.links.net.addresses import Address

_GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0"
_MECHANISM = slice(12, 32)
# Web servers wait for the end of a line before they complain about what it says.
_LINE = b"\r\n\r\n"
_LONGEST = 1.0
_KNOWN = {b"HTTP/": "a web server", b"<": "a web server", b"SSH-": "an SSH server", b"\x15\x03": "a TLS server"}


@dataclass(frozen=True)
class Diagnosis:
    """What is at an address.

    Args:
        mechanism: of a ZeroMQ server, ``CURVE`` (it has keys) or ``NULL`` (it has none).
        error: what a client that cannot connect has to be told, where that is certain.
        is_final: whether no time will help, since another program is there.
    """

    mechanism: str = ""
    error: PeerLost | None = None
    is_final: bool = False


def diagnose(where: Address, number: Address, *, within: float) -> Diagnosis:
    """Connects to an address, says what a ZeroMQ client says first, and reads the answer.

    Args:
        where: the address as its user wrote it, for messages.
        number: the same with the number of the host.
        within: seconds that this may take; it never needs more than 3.
    """
    turn = min(_LONGEST, within / 3)
    try:
        with socket.create_connection((number.host, number.port), timeout=turn) as made:
            answer = _answer(made, _GREETING, turn)
            if answer is None:
                answer = _answer(made, _LINE, turn)
    except TimeoutError:
        return Diagnosis()
    except ConnectionRefusedError:
        return Diagnosis(error=PeerLost(f"no server listens at {where}; start the server, or check the address"))
    except OSError as error:
        return Diagnosis(error=PeerLost(f"{where} cannot be reached ({error.strerror}); check the network"))
    if answer is None:
        return Diagnosis()
    if not answer:
        what = "closes connections as soon as they are made; it is no thinpipe server, or a tunnel to one that is down"
        return Diagnosis(error=PeerLost(f"{where} {what}"))
    if answer[:1] == _GREETING[:1] and len(answer) >= _MECHANISM.stop:
        return Diagnosis(mechanism=answer[_MECHANISM].rstrip(b"\0").decode(errors="replace"))
    what = next((name for first, name in _KNOWN.items() if answer.startswith(first)), "another program")
    shown = ascii(answer[:40].decode(errors="replace").strip())
    stranger = PeerLost(
        f"something answers at {where}, but it is no thinpipe server: {what}, which says {shown}; check the port"
    )
    return Diagnosis(error=stranger, is_final=True)


def _answer(made: socket.socket, words: bytes, seconds: float) -> bytes | None:
    """Sends something and reads the beginning of the answer: nothing if the other end hangs up, None if it is mute."""
    # Who hangs up on this may have said something before.
    with contextlib.suppress(ConnectionError):
        made.sendall(words)
    until, answer = time.monotonic() + seconds, b""
    while len(answer) < _MECHANISM.stop and (left := until - time.monotonic()) > 0:
        made.settimeout(left)
        try:
            more = made.recv(256)
        except TimeoutError:
            break
        except ConnectionError:
            return answer
        if not more:
            return answer
        answer += more
    return answer or None
