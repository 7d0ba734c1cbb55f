"""What a hostile client may send: frames for a real ZeroMQ socket, and bytes for a bare one.

``hostile_frames`` and ``send_hostile`` serve every test that wants to know whether a server survives them.
"""

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Iterator

import zmq

_HEAD = struct.Struct("<4sBBHIQQ")
WORD, DATA, PING, PONG, BYE = 1, 2, 3, 4, 5
PIECE = 256 * 1024


def head(kind, *, lane=0, number=0, total=0, offset=0, magic=b"TPNT", version=1):
    return _HEAD.pack(magic, version, kind, lane, number, total, offset)


def word(name, value=None):
    body = json.dumps([name, value]).encode()
    return [head(WORD, total=len(body)), body]


def hostile_frames(seed: int) -> Iterator[list[bytes]]:
    """Makes messages without end, each wrong in some way or right at a wrong time; the same for the same seed."""
    dice = random.Random(seed)
    kinds = [
        _random_frames,
        _wrong_head,
        _huge_total,
        _out_of_order,
        _tiny_pieces,
        _bad_words,
        _bad_control,
        _many_frames,
        _early_data,
        _bit_flips,
    ]
    while True:
        yield from dice.choice(kinds)(dice)


def _random_frames(dice):
    yield [dice.randbytes(dice.choice((0, 1, 27, 28, 29, 1000))) for _ in range(dice.randint(1, 4))]


def _wrong_head(dice):
    body = dice.randbytes(dice.randint(0, 64))
    yield [head(WORD, total=len(body), magic=dice.randbytes(4)), body]
    yield [head(WORD, total=len(body), version=dice.randint(2, 255)), body]
    yield [head(dice.randint(6, 255), total=len(body)), body]
    yield [head(WORD, total=len(body))[: dice.randint(0, 27)], body]
    yield [head(WORD, total=len(body), lane=1), body]


def _huge_total(dice):
    yield word("hello")
    yield [head(DATA, lane=dice.randint(0, 3), total=2 ** dice.randint(30, 63)), bytes(PIECE)]


def _out_of_order(dice):
    yield word("hello")
    total, lane = PIECE * dice.randint(2, 50), dice.randint(0, 3)
    yield [head(DATA, lane=lane, total=total, offset=PIECE * dice.randint(1, 60)), bytes(dice.choice((0, 1, 100)))]
    yield [head(DATA, lane=lane, number=dice.randint(1, 2**32 - 1), total=3), b"abc"]


def _tiny_pieces(dice):
    yield word("hello")
    for offset in range(dice.randint(1, 50)):
        yield [head(DATA, total=2**20, offset=offset), b"x"]


def _bad_words(dice):
    bodies = (
        b"",
        b"{",
        b'"word"',
        b"[]",
        b"[1,2]",
        b'["a",1,2]',
        b'["a",NaN]',
        b"\xff\xfe\x00",
        b"[" * 60_000,
        b'["a",' + b"9" * 50_000 + b"]",
        b'{"a":' * 10_000,
        bytes(70_000),
        dice.randbytes(100),
    )
    body = dice.choice(bodies)
    yield [head(WORD, total=len(body)), body]
    yield [head(WORD, total=len(body) + 1), body]


def _bad_control(dice):
    for kind in (PING, PONG):
        body = dice.choice((b"", struct.pack("<d", float("nan")), struct.pack("<dd", 1.0, float("inf")), bytes(9)))
        yield [head(kind, total=len(body)), body]
    yield [head(PONG, total=16), struct.pack("<dd", dice.random(), dice.random())]
    yield [head(BYE, total=12), b"\x1b[2Jfake\nlog\xff"]


def _many_frames(dice):
    yield [b""] * dice.choice((3, 10, 2000))


def _early_data(dice):
    body = dice.randbytes(dice.randint(0, 1000))
    yield [head(DATA, lane=dice.randint(0, 65535), total=len(body)), body]


def _bit_flips(dice):
    frames = [bytearray(frame) for frame in word("hello", dice.random())]
    for _ in range(dice.randint(1, 8)):
        frame = dice.choice(frames)
        frame[dice.randrange(len(frame))] ^= 1 << dice.randrange(8)
    yield [bytes(frame) for frame in frames]


def send_hostile(address, count, seed, *, keys=None, a_batch=500):
    """Sends so many hostile messages to a server, a few hundred by each connection, and all hostile bytes in between.

    Args:
        address: the server's.
        count: how many messages.
        seed: what makes them.
        keys: for a hostile client that has keys (default: none).
        a_batch: messages after which a new connection is made; the server will have ended the old one long before.

    Returns:
        How many were handed over.
    """
    frames, sent = hostile_frames(seed), 0
    context = zmq.Context()
    while sent < count:
        if sent % (10 * a_batch) == 0:
            send_hostile_bytes(address, seed + sent)
        made = _dealer(context, address, keys)
        # Who was turned away for good, for want of keys, cannot send any more.
        with contextlib.suppress(zmq.Again):
            for _ in range(min(a_batch, count - sent)):
                sent += 1
                made.send_multipart(next(frames))
        made.close(linger=200)
    context.destroy(linger=200)
    return sent


def _dealer(context, address, keys):
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.SNDTIMEO, 50)
    if keys is not None:
        made.curve_serverkey = keys.server.encode()
        made.curve_publickey, made.curve_secretkey = keys.own.public.encode(), keys.own.secret.encode()
    made.connect(f"tcp://{address}")
    return made


def greeting(mechanism=b"NULL"):
    """What a ZeroMQ peer says first."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def ready(identity=b""):
    """How it ends its part of a handshake without keys."""
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity" + struct.pack(">I", len(identity)) + identity
    return b"\x04" + bytes([len(body)]) + body


def frame(body, *, more=False, claims=None):
    """One frame of a message; ``claims`` is what it says to be long."""
    return bytes([2 | more]) + struct.pack(">Q", len(body) if claims is None else claims) + body


def as_bytes(message):
    """All frames of a message."""
    return b"".join(frame(x, more=n < len(message) - 1) for n, x in enumerate(message))


def hostile_bytes(seed):
    """What somebody may send who is no ZeroMQ peer, or only looks like one."""
    dice = random.Random(seed)
    return [
        b"GET / HTTP/1.1\r\nHost: thinpipe\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(500),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        b"\xff",
        bytes(5000),
        dice.randbytes(5000),
        greeting() + dice.randbytes(5000),
        greeting(b"CURVE") + dice.randbytes(5000),
        greeting(b"PLAIN") + b"\x04\x20\x05HELLO" + dice.randbytes(200),
        greeting()[: dice.randint(1, 63)],
        greeting() + ready() + dice.randbytes(5000),
        greeting() + ready() + as_bytes(word("hello")),
    ]


def hostile_bytes_of_a_peer(seed):
    """What somebody may send who has shaken hands as ZeroMQ peers do."""
    dice = random.Random(seed)
    return [
        frame(b"", claims=2**40),
        frame(b"", claims=2**64 - 1),
        frame(bytes(PIECE + 100)),
        frame(head(DATA, total=2**40), more=True),
        as_bytes(word("hello"))[:-1],
        b"\x04\x09\x05ERROR\x02no",
        b"\x04\x07\x04PING\x00\x00" * 100,
        dice.randbytes(5000),
    ]


def send_hostile_bytes(address, seed):
    """Sends all of them, each by a connection of its own."""
    for data in hostile_bytes(seed):
        with contextlib.suppress(OSError), open_bare(address) as bare:
            bare.sendall(data)
    for data in hostile_bytes_of_a_peer(seed):
        with contextlib.suppress(OSError), open_peer(address) as bare:
            bare.sendall(data)


def open_peer(address, identity=b""):
    """Connects without ZeroMQ, and shakes hands as if with it; it needs a server without keys."""
    bare, said = open_bare(address), b""
    try:
        bare.sendall(greeting() + ready(identity))
        while not said.endswith(b"Identity" + bytes(4)):
            if not (some := bare.recv(1)):
                raise ConnectionError("the server hung up on the handshake")
            said += some
    except OSError:
        bare.close()
        raise
    return bare


def open_bare(address):
    """Connects without ZeroMQ."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=2.0)


def send_endless_message(address, *, most, seconds=5.0):
    """Sends one message of ever more frames; tells how many bytes were taken before the connection was ended."""
    one, taken = frame(bytes(PIECE), more=True), 0
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError), open_peer(address) as bare:
        while taken < most and time.monotonic() < end:
            bare.sendall(one)
            taken += len(one)
    return taken
