"""The doorkeeper: answers ZeroMQ's question whether the owner of a key may come in (ZAP, https://rfc.zeromq.org/spec/27)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinpipe.links.net.need import z85, zmq
from thinpipe.links.net.seldom import Seldom

DOMAIN = b"thinpipe"


class Doorkeeper:
    """Lets in those whose public key is known.

    ZeroMQ asks after the client has proved to own the secret key. What is answered as the user's id comes with every
    message of the connection, and cannot be forged.

    Args:
        context: the server's.
        clients: the keys that may come in, with names.
        log: where those that may not are mentioned.
    """

    def __init__(self, context: Any, clients: Mapping[str, str], log: Seldom) -> None:
        self.clients = dict(clients)
        self._log = log
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answers a question that is there."""
        question = self.socket.recv_multipart(zmq.NOBLOCK)
        version, request = question[:2]
        status, text, user = b"400", b"not for you", b""
        if len(question) == 7 and question[5] == b"CURVE" and len(question[6]) == 32:
            key = z85.encode(question[6])
            if key.decode() in self.clients:
                status, text, user = b"200", b"OK", key
            else:
                where = question[3].decode(errors="replace")
                self._log.warn(f"a client at {where} with the unknown key {key.decode()[:8]}... was refused")
        self.socket.send_multipart([version, request, status, text, user, b""], zmq.NOBLOCK)
