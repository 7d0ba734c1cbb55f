"""What tests of codecs and kernels share: specs of every family, tensors of every temper, packets remade by hand."""

import os
import struct
import subprocess
import sys
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from thinpipe import Packet, codec, decode
from thinpipe.codecs.checksum import checksum
from thinpipe.errors import PacketError

VALUES = [
    "none", "fp16", "bf16",
    "uniform:1", "uniform:4", "uniform:8", "uniform:11", "uniform:16", "uniform:8,zero", "uniform:4,sr",
    "uniform:8,zero,sr",
    "sort:3+1", "sort:4+2", "sort:8", "sort:9+3", "sort:16", "sort:4+2,exact",
    "kmeans:2", "kmeans:4",
    "block:1", "block:4", "block:5/24", "block:8/2", "block:12/1000", "block:4,sr",
    "had:1", "had:4", "had:8/16",
    "nf:4", "nf:4/10",
    "wave:0.1", "wave:2/8", "wave:6",
]  # fmt: skip
SHAPES = ["topk:0.1", "topk:0.7", "topk:0.25,own", "downsample:2", "downsample:5", "power:2", "power:2/3", "svd:2"]
CHAINS = [
    "topk:0.1|uniform:8",
    "power:3|block:8",
    "power:3/2|uniform:8",
    "svd:1|fp16",
    "downsample:2|sort:4",
    "topk:0.5|topk:0.5|block:4",
]
LOSSLESS = ["none|zstd", "block:4|zstd", "topk:0.1|uniform:8|zstd", "power:2|zstd"]
FEEDBACK = ["ef(block:4)", "ef(topk:0.1)", "ef(power:2|uniform:4)", "ef(sort:4|zstd)"]
SPECS = [*VALUES, *SHAPES, *CHAINS, *LOSSLESS, *FEEDBACK]
"""At least one of every codec of the catalogue, every option, and chains."""

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EXACT_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip


def _log_normal(shape, generator, dtype):
    sigma = 1.5 if dtype == torch.float16 else 3
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(sigma).exp() * signs


def _odd_one_out(shape, generator, dtype):
    x = torch.full(shape, 0.75, dtype=torch.float64)
    x.view(-1)[-1:] = -3.0
    return x


def _huge(shape, generator, dtype):
    # Of the working type: blocks are computed in float32, where a greater float64 is an infinity.
    most = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1) * most


def _normal(shape, generator, dtype):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


TEMPERS = {
    "gaussian": _normal,
    "relu": lambda *args: _normal(*args).relu(),
    "log-normal": _log_normal,
    "zero": lambda shape, *_: torch.zeros(shape, dtype=torch.float64),
    "constant": lambda shape, *_: torch.full(shape, -1.7, dtype=torch.float64),
    "odd one out": _odd_one_out,
    "ties": lambda shape, generator, dtype: torch.randint(-2, 3, shape, generator=generator).double(),
    "subnormal": lambda shape, generator, dtype: _normal(shape, generator, dtype) * torch.finfo(dtype).tiny / 8,
    "huge": _huge,
    "offset": lambda shape, generator, dtype: 1000 + _normal(shape, generator, dtype) * 1e-3,
}


def tensor_of(temper, shape, dtype=torch.float32, seed=0):
    """Makes a tensor of a temper."""
    return TEMPERS[temper](tuple(shape), torch.Generator().manual_seed(seed), dtype).to(dtype)


shapes = st.one_of(
    st.sampled_from([(), (0,), (1,), (3, 0, 2), (1, 1, 1, 1), (1000,), (2, 3000), (2, 3, 16, 16), (2, 2, 3, 4, 5)]),
    st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple),
)


def tensors(dtypes=DTYPES, tempers=tuple(TEMPERS), shapes=shapes):
    """Tensors of all tempers, shapes and types."""
    return st.builds(tensor_of, st.sampled_from(tempers), shapes, st.sampled_from(list(dtypes)), st.integers(0, 2**31))


def crossed(spec, x):
    """Sends a tensor over bytes, by a codec for each side."""
    return codec(spec).decode(Packet.from_bytes(bytes(codec(spec).encode(x))))


def same_bits(a, b):
    """Tells whether two tensors are the same, NaN and the sign of 0 included."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(x):
    """Returns a tensor's bytes."""
    return x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def ulps(x):
    """Tells a few units in the last place of a tensor's greatest value, in its type and in the type it is coded in."""
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    top = x.double().abs().max().item()
    return sum(top * torch.finfo(t).eps + torch.finfo(t).smallest_normal * torch.finfo(t).eps for t in (x.dtype, work))


# -- packets remade by hand ----------------------------------------------------------------------------------------


@cache
def packets():
    """Encodes one small tensor with every codec."""
    return {spec: codec(spec).encode(tensor_of("gaussian", (3, 5, 8))) for spec in SPECS}


def refused(message):
    """Demands that a message is refused by the reader, or by the codec it names."""
    with pytest.raises(PacketError) as caught:
        decode(Packet.from_bytes(message))
    assert str(caught.value)
    return str(caught.value)


def run_script(name, *arguments):
    """Runs a script of the codecs' tests in a process of its own, whose memory can be limited."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(tests / "codecs" / name), *arguments]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def with_checksum(message):
    """Gives a message a checksum that is right, so that what is read next is what must object."""
    message = bytearray(message)
    if len(message) >= 16:
        message[12:16] = bytes(4)
        message[12:16] = struct.pack("<I", checksum(*_header_and_sections(message)))
    return bytes(message)


def _header_and_sections(message):
    """Takes a message apart; what is of another length than it says is refused before anybody looks at its checksum."""
    dims, spec, count = message[6], *struct.unpack_from("<HH", message, 8)
    start = 16 + 8 * count + 9 * dims + spec
    if len(message) < start:
        return message, []
    ends = [start + end for end in accumulate(struct.unpack_from(f"<{count}Q", message, 16), initial=0)]
    body = np.frombuffer(message, dtype=np.uint8)
    return message[:start], [body[a:b] for a, b in pairwise(ends)] if ends[-1] == len(message) else []


def remade(packet, **changes):
    """Writes a packet with other fields than its codec would: spec, dtype (its number), shape, order, sections."""
    spec = changes.get("spec", packet.spec).encode()
    shape = changes.get("shape", tuple(packet.shape))
    order = changes.get("order", packet.order if len(packet.order) == len(shape) else range(len(shape)))
    sections = changes.get("sections", [raw(section) for section in packet.sections])
    number = changes.get("dtype", packet.header()[5])
    fixed = struct.pack("<4sBBBxHHI", b"TPKT", 3, number, len(shape), len(spec), len(sections), 0)
    numbers = struct.pack(f"<{len(sections) + len(shape)}Q", *map(len, sections), *shape)
    return with_checksum(fixed + numbers + bytes(order) + spec + b"".join(sections))
