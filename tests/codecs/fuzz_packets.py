"""Mutates packets of every codec and demands of each a tensor of the shape it claims, or PacketError; nothing else.

A packet that is refused may take 50 ms of processor time and 10 MB of memory. One that is decoded may take more where
its tensor is large: a second for 100 MB of it, and eight times its memory. Most mutations get a right checksum.

Run it for long as ``PYTHONPATH=tests python tests/codecs/fuzz_packets.py --packets 1000000``; tests do for a moment.
A packet that breaks the rule is printed in hexadecimal, with what came of it, and the exit status is 1.
"""

import argparse
import platform
import random
import struct
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import torch

import thinpipe
from codec_support import with_checksum
from limits import BYTES, SECONDS, begin, limited
from thinpipe.errors import PacketError

SPECS = [
    "none", "fp16", "bf16", "uniform:3", "uniform:8,zero", "uniform:16", "uniform:4,sr", "sort:3+1", "sort:9+3",
    "kmeans:2", "block:4/8", "block:5/3,sr", "had:3/8", "had:8/4", "nf:4/4", "wave:0.5/4",
    "wave:6", "wave:0.0078125/32", "topk:0.1", "topk:0.4,own",
    "downsample:2", "power:1", "svd:2", "topk:0.2|uniform:8", "power:2|block:8", "downsample:2|sort:4",
    "none|zstd", "block:4/8|zstd", "topk:0.1|uniform:8|zstd", "ef(block:2/8)", "ef(topk:0.3|zstd)",
]  # fmt: skip
SHAPES = [(), (0,), (1,), (9,), (40,), (3, 7), (2, 3, 4), (1, 2, 4, 3), (600,)]
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.float8_e5m2]
ODD_NUMBERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**59, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PRIMES = [13, 257, 65_537, 1_000_003, 2**31 - 1, 999_999_999_989, 1_000_000_000_039, 67_280_421_310_721]
OTHERS = [
    "block:16/1048575", "nf:4/1048576", "mask", "ef(", "zstd|zstd", "sort:1+8",
    "svd:1|" * 100 + "none", "power:1|" * 7 + "bf16", "topk:0.9|" * 40 + "sort:8", "topk:" + "1" * 1000,
]  # fmt: skip
FIXED = 16
BATCH = 2_000
PROCESSES = 2


def seeds(rng):
    """Encodes small tensors, one of each codec and several shapes and types."""
    generator = torch.Generator().manual_seed(0)
    messages = []
    for spec in SPECS:
        for shape in SHAPES:
            x = torch.randn(shape, generator=generator).mul(3).to(rng.choice(TYPES))
            if x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            messages.append(bytes(thinpipe.codec(spec).encode(x)))
    # Zeros compress into real frames, where small random tensors are stored as they are.
    messages += [bytes(thinpipe.codec(spec).encode(torch.zeros(3000))) for spec in SPECS if "zstd" in spec]
    return messages


def counted(message):
    """Reads how many sections and dimensions a message has; none if an earlier mutation left it too short for them."""
    sections, dims = struct.unpack_from("<H", message, 10)[0], message[6]
    return (sections, dims) if FIXED + 8 * (sections + dims) <= len(message) else (0, 0)


def with_length(message):
    """Makes the last section as long as the rest of the message, so that the sum of lengths is right."""
    sections, dims = counted(message)
    start = FIXED + 8 * sections + 9 * dims + struct.unpack_from("<H", message, 8)[0]
    if sections and start <= len(message):
        before = sum(struct.unpack_from(f"<{sections - 1}Q", message, FIXED))
        struct.pack_into("<Q", message, FIXED + 8 * (sections - 1), max(0, len(message) - start - before))
    return message


def flip_bits(message, rng, others):
    for _ in range(rng.randint(1, 4)):
        if message:
            message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
    return message


def set_bytes(message, rng, others):
    for _ in range(rng.randint(1, 8)):
        if message:
            message[rng.randrange(len(message))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return message


def truncate(message, rng, others):
    return message[: rng.randrange(len(message) + 1)]


def extend(message, rng, others):
    return message + rng.randbytes(rng.randint(1, 64))


def splice(message, rng, others):
    other = rng.choice(others)
    return message[: rng.randrange(len(message) + 1)] + other[rng.randrange(len(other) + 1) :]


def edit_number(message, rng, others):
    """Puts another number in the place of a section's length or a dimension."""
    if count := sum(counted(message)):
        at = FIXED + 8 * rng.randrange(count)
        old = struct.unpack_from("<Q", message, at)[0]
        number = rng.choice([*ODD_NUMBERS, *PRIMES, old + 1, max(0, old - 1), old * 2, old * 1000])
        struct.pack_into("<Q", message, at, number % 2**64)
    return message


def edit_shape(message, rng, others):
    """Gives the packet another shape of as many dimensions."""
    sections, dims = counted(message)
    for k in range(dims):
        size = rng.choice([0, 1, 2, 3, 5, 30, 600, 10**6, 2**30, *PRIMES])
        struct.pack_into("<Q", message, FIXED + 8 * (sections + k), size)
    return message


def edit_rank(message, rng, others):
    """Gives the packet more dimensions, of which most are 1, or fewer."""
    (sections, dims), length = counted(message), struct.unpack_from("<H", message, 8)[0]
    start = FIXED + 8 * sections
    end = start + 9 * dims + length
    rank = rng.choice([0, 1, 2, 3, 4, 5, 8, 31, 32, 33, 255])
    shape = [rng.choice([1, 1, 1, 1, 2, 16, rng.choice(PRIMES)]) for _ in range(rank)]
    message[6] = rank
    return message[:start] + struct.pack(f"<{rank}Q", *shape) + bytes(range(rank)) + message[end - length :]


def edit_type(message, rng, others):
    message[5] = rng.randrange(18)
    return message


def edit_codec(message, rng, others):
    """Names another codec, and says how long its name is."""
    (sections, dims), length = counted(message), struct.unpack_from("<H", message, 8)[0]
    end = FIXED + 8 * sections + 9 * dims + length
    spec = rng.choice([*SPECS, *OTHERS]).encode()
    message[8:10] = struct.pack("<H", len(spec))
    return message[: end - length] + spec + message[end:]


def edit_sections(message, rng, others):
    """Moves the border between two sections."""
    count, _ = counted(message)
    if count > 1:
        k = rng.randrange(count - 1)
        a, b = struct.unpack_from("<2Q", message, FIXED + 8 * k)
        moved = rng.randint(0, a + b)
        struct.pack_into("<2Q", message, FIXED + 8 * k, moved % 2**64, (a + b - moved) % 2**64)
    return message


def noise(message, rng, others):
    return bytearray(rng.randbytes(rng.randrange(200)))


MUTATIONS = [
    flip_bits, set_bytes, truncate, extend, splice, noise,
    edit_number, edit_shape, edit_rank, edit_type, edit_codec, edit_sections,
]  # fmt: skip


def mutated(messages, rng):
    """Changes one of the messages in a way or two; most get a right checksum, and of those most a right length."""
    message = bytearray(rng.choice(messages))
    for _ in range(rng.choice([1, 1, 2])):
        if len(message) >= FIXED:
            message = rng.choice(MUTATIONS)(message, rng, messages)
    if len(message) >= FIXED and rng.random() < 0.7:
        message = with_length(message)
    return bytes(with_checksum(message) if rng.random() < 0.85 else message)


def outcome(message):
    """Feeds a message to the reader and to both decoders; returns what came of it, in a word or two."""
    with limited():
        try:
            packet = thinpipe.Packet.from_bytes(message)
        except PacketError:
            return "refused by the reader"
    try:
        with limited():
            tensor = thinpipe.decode(packet)
    except PacketError:
        return "refused by the codec"
    except (MemoryError, RuntimeError, AssertionError):
        tensor = None
    size = packet.shape.numel() * packet.dtype.itemsize
    more = {"seconds": SECONDS + size / 1e8, "size": BYTES + 8 * size}
    with limited(**more):
        tensor = thinpipe.decode(packet) if tensor is None else tensor  # or it was refused, and took too much
    with limited(**more):
        again = thinpipe.codec(packet.spec).decode(packet)
    if tensor.shape != packet.shape or tensor.dtype != packet.dtype or again.shape != packet.shape:
        raise AssertionError(f"{tuple(tensor.shape)} came of a packet of {tuple(packet.shape)}")
    return "decoded"


def batch(seed, count):
    """Tries so many packets; returns how many ended in which way, and the first that broke the rule."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    messages = seeds(random.Random(0))
    for message in messages:  # compiles what must be compiled
        thinpipe.decode(thinpipe.Packet.from_bytes(message))
    begin()
    counts, broken = Counter(), None
    for _ in range(count):
        message = mutated(messages, rng)
        try:
            counts[outcome(message)] += 1
        except Exception as error:
            counts["broke the rule"] += 1
            broken = broken or f"{message.hex()}\n{type(error).__name__}: {error}"
    return counts, broken


def main():
    """Reads the command line, spreads the batches over processes, prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--packets", type=int, default=1_000_000, help="how many to try")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; the same seed makes the same packets")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    sizes = [min(BATCH, options.packets - at) for at in range(0, options.packets, BATCH)]
    counts, broken, begun = Counter(), [], time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        firsts = range(options.seed * 10**6, options.seed * 10**6 + len(sizes))
        for found, example in pool.map(batch, firsts, sizes):
            counts += found
            broken += [example] if example else []
            sys.stderr.write(f"\r{counts.total()} of {options.packets} after {time.monotonic() - begun:.0f} s")
    sys.stderr.write("\n")
    print(f"fuzz_packets.py --packets {options.packets} --seed {options.seed}")  # noqa: T201
    print(f"torch {torch.__version__}, python {platform.python_version()}, thinpipe {thinpipe.__version__}")  # noqa: T201
    for name in ("refused by the reader", "refused by the codec", "decoded", "broke the rule"):
        print(f"{counts[name]:>9}  {name}")  # noqa: T201
    print(f"{counts.total():>9}  packets in {time.monotonic() - begun:.0f} s")  # noqa: T201
    for example in broken[:5]:
        print(example)  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
