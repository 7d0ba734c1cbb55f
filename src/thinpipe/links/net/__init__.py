"""The link between a client and a server: one TCP connection with words, lanes of data, and keys.

::

    client                                                  server
    dial("host:5555", keys=...) ── encrypted ──► Listener(":5555", keys=..., accepted=...)
         │                                            │
      Channel ◄── words, lanes of messages, pings ──► Channel          one for each client

Needs ZeroMQ (``pip install 'thinpipe[net]'``), which does the sockets and the encryption. ``pieces`` tells what lies on
the wire.
"""

from thinpipe.links.net.channel import Channel
from thinpipe.links.net.dialer import dial
from thinpipe.links.net.keys import ClientKeys, KeyPair, ServerKeys, make_keys, read_pair, read_public
from thinpipe.links.net.lanes import NetReceiveLane, NetSendLane
from thinpipe.links.net.listener import Listener

__all__ = [
    "Channel",
    "ClientKeys",
    "KeyPair",
    "Listener",
    "NetReceiveLane",
    "NetSendLane",
    "ServerKeys",
    "dial",
    "make_keys",
    "read_pair",
    "read_public",
]
