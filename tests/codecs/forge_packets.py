"""Forges packets: the checksum is right, and the header claims what the bytes cannot fill. Each must be refused.

At once, and without memory for what is claimed: within 50 ms of processor time and 10 MB, for each of them. Run as
``PYTHONPATH=tests python tests/codecs/forge_packets.py``; it prints how many of which codec were refused, and, for the
first that were not, what came of them.
"""

import sys

import torch

import thinpipe
from codec_support import remade
from limits import begin, limited
from thinpipe.errors import PacketError

SPECS = [
    "none", "fp16", "bf16", "uniform:8", "sort:6+2", "kmeans:4", "block:4", "had:4", "nf:4", "wave:4",
    "wave:0.0078125/32", "topk:0.1", "topk:0.1|uniform:8", "downsample:2", "downsample:2|wave:4", "power:2",
    "svd:2|block:4", "block:4|zstd", "topk:0.1|uniform:8|zstd", "ef(wave:4)", "ef(power:2)",
]  # fmt: skip
HONEST = (2, 3, 16, 16)
_ENOUGH = 10

PRIMES = [1_000_003, 2**31 - 1, 999_999_999_989, 1_000_000_000_039, 67_280_421_310_721]
EVEN = [2**20, 2**31, 2**40, 2**59]
OVERFLOWING = [2**60, 2**61 - 1, 2**63 - 1, 2**63, 2**64 - 1]
SHAPES = [
    *((n,) for n in (*PRIMES, *EVEN, *OVERFLOWING)),
    *((2, n) for n in (*PRIMES, *EVEN, *OVERFLOWING)),
    *((n, 16) for n in PRIMES),
    *((2, n, 16) for n in (*PRIMES, *EVEN)),
    *((1, 1, n) for n in PRIMES),
    *((2, 3, n, 16) for n in PRIMES),
    *((2, 3, 16, n) for n in (*PRIMES, *EVEN)),
    *((n, 1, 1, 1) for n in (*PRIMES, *EVEN)),
    *((1, n, 1, 1) for n in PRIMES),
    (2, 3, 1_000_003, 1_000_033), (1_000_003, 1_000_033), (1_000_003, 1, 1_000_033), (2, 3, 5, 7, 11, 13, 1_000_003),
    (2**32, 2**32), (2**31, 2**31, 4), (2**21, 2**21, 2**21), (2**32, 2**31, 2), (2**63, 2), (2**64 - 1, 2**64 - 1),
    (2,) * 32, (3,) * 32, (1,) * 31 + (1_000_003,), (1_000_003,) + (1,) * 31, (2,) * 33, (1,) * 255,
    (0,), (0, 0), (3, 0, 5), (0, 1_000_000_000_039), (2**40, 0), (1, 0, 2**31, 2**28), (0, 2**63), (2**64 - 1, 0, 0),
    (0,) * 32,
]  # fmt: skip
"""Of more than a million elements, of none, or of no tensor at all: no packet of ``HONEST`` is long enough for the
first, or empty enough for the second, so none of them happens to be the right packet of another tensor."""

CODECS = [
    "block:99", "uniform:999999999", "sort:9999+1", "wave:99999", "had:4/1073741824", "nf:4/1000000000", "kmeans:64",
    "svd:1|" * 100 + "none", "power:1|" * 24 + "bf16", "topk:0.5|" * 40 + "none", "topk:1e-999999999",
    "topk:" + "1" * 900, "power:999999999", "downsample:999999999", "wave:" + "9" * 900, "n" * 1024,
    "ef(" * 100 + "none" + ")" * 100,
]  # fmt: skip
"""Texts that a packet may name its codec by."""


def forgeries(packet):
    """Makes messages of an honest packet."""
    for shape in SHAPES:
        yield f"{packet.spec} of the shape {shape}", remade(packet, shape=shape)
    for text in CODECS:
        yield f"{packet.spec} as {text:.40}", remade(packet, spec=text)
    for shape in SHAPES[::20]:
        for size in (0, 100):
            sections = [bytes(size)] * len(packet.sections)
            yield f"{packet.spec} of {shape} with {size} bytes", remade(packet, shape=shape, sections=sections)


def outcome(message, spec):
    """Tells in a word what came of a message; what costs too much raises."""
    with limited():
        try:
            packet = thinpipe.Packet.from_bytes(message)
            thinpipe.codec(spec).decode(packet)
        except PacketError:
            pass
        else:
            return "decoded by its codec"
    with limited():
        try:
            thinpipe.decode(thinpipe.Packet.from_bytes(message))
        except PacketError:
            return "refused"
    return "decoded"


def main():
    """Tries all forgeries of all codecs."""
    torch.set_num_threads(1)
    x = torch.randn(HONEST, generator=torch.Generator().manual_seed(0))
    packets = [thinpipe.codec(spec).encode(x) for spec in SPECS]
    for packet in packets:  # compiles what must be compiled
        thinpipe.decode(packet)
    begin()
    for packet in packets:  # what nobody changed is decoded within the same limits
        with limited():
            tensor = thinpipe.decode(thinpipe.Packet.from_bytes(remade(packet)))
        assert tensor.shape == HONEST and tensor.isfinite().all()
    wrong = []
    for packet in packets:
        refused = tried = 0
        for name, message in forgeries(packet):
            tried += 1
            try:
                found = outcome(message, packet.spec)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            refused += found == "refused"
            if found != "refused":
                wrong.append(f"{name}: {found}")
                if len(wrong) == _ENOUGH:
                    print(*wrong, sep="\n")  # noqa: T201
                    return 1
        print(f"{packet.spec}: {refused} of {tried} refused")  # noqa: T201
    print(*wrong, sep="\n", end="")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
