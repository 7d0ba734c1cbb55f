"""Frames: any nesting comes back as it was, and a damaged frame is refused, never believed."""

import json
import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from thinpipe import Packet, codec
from thinpipe.errors import BatchError, PacketError
from thinpipe.runtime.frame import MOST_DEPTH, MOST_STRUCTURE, Frame
from thinpipe.runtime.parcel import Cargo

PLAIN = codec("none")

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
shapes = st.lists(st.integers(0, 4), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
tensors = st.builds(lambda shape, dtype: (torch.rand(shape) * 9).to(dtype), shapes, dtypes)
keys = st.text(max_size=5) | st.integers()


def grown(inner):
    return (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    )


nestings = st.recursive(plain | tensors, grown, max_leaves=8)


def framed(tree, *, cargo=Cargo.ACTIVATION, step=3, edge=2, micro=1, stashed=False):
    """Makes the one message of a nesting."""
    leaves, spec = tree_flatten(tree)
    leaves = [PLAIN.encode(x) if isinstance(x, Tensor) else x for x in leaves]
    wants = [isinstance(x, Packet) for x in leaves]
    return torch.cat(Frame(cargo, step, edge, micro, leaves, spec, wants, stashed).parts())


def opened(frame):
    return tree_unflatten([PLAIN.decode(x) if isinstance(x, Packet) else x for x in frame.leaves], frame.spec)


def as_bits(tree):
    """Makes tensors comparable, with their types and shapes."""
    return tree_map_only(Tensor, lambda x: (x.dtype, x.shape, x.double().tolist()), tree)


@given(
    nestings, st.sampled_from(Cargo), st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
)
def test_any_nesting_comes_back_as_it_was(tree, cargo, step, edge, micro):
    frame = Frame.read(framed(tree, cargo=cargo, step=step, edge=edge, micro=micro, stashed=step % 2 == 1))
    assert (frame.cargo, frame.step, frame.edge, frame.micro, frame.stashed) == (
        cargo,
        step,
        edge,
        micro,
        step % 2 == 1,
    )
    back = opened(frame)
    assert as_bits(back) == as_bits(tree)
    assert str(tree_flatten(back)[1]) == str(tree_flatten(tree)[1]), "tuples stay tuples, keys keep their order"
    assert frame.wants_grad == [isinstance(x, Tensor) for x in tree_flatten(tree)[0]]


MESSAGE = framed({"x": torch.arange(6.0), 3: ("text", None, [torch.ones(2, 2, dtype=torch.bool)])})


@given(st.integers(0, MESSAGE.numel() - 1), st.integers(1, 255))
@settings(max_examples=1000)
def test_a_frame_with_any_byte_changed_is_refused(place, change):
    damaged = MESSAGE.clone()
    damaged[place] ^= change
    with pytest.raises(PacketError):
        Frame.read(damaged)


@given(st.integers(0, MESSAGE.numel() - 1), st.binary(max_size=20))
def test_a_frame_that_is_cut_or_has_more_behind_it_is_refused(end, more):
    tail = torch.frombuffer(bytearray(more), dtype=torch.uint8) if more else torch.empty(0, dtype=torch.uint8)
    with pytest.raises(PacketError):
        Frame.read(torch.cat([MESSAGE[:end], tail]))
    if more:
        with pytest.raises(PacketError):
            Frame.read(torch.cat([MESSAGE, tail]))


json_values = st.recursive(
    plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from("xvtldq"), x, max_size=2), max_leaves=10
)


@given(json_values, st.integers(0, 3))
@settings(max_examples=500)
def test_a_frame_that_somebody_made_up_with_care_is_refused_or_makes_sense(structure, packets):
    """A right checksum around anything at all."""
    body = MESSAGE[:0]
    for _ in range(packets):
        packet = torch.cat(PLAIN.encode(torch.ones(2)).parts())
        body = torch.cat(
            [body, torch.frombuffer(bytearray(struct.pack("<QB", packet.numel(), 0)), dtype=torch.uint8), packet]
        )
    try:
        frame = Frame.read(torch.cat([made_up(json.dumps(structure).encode(), packets), body]))
    except PacketError:
        return
    assert len(frame.wants_grad) in (0, len(frame.leaves))
    tree_unflatten(list(frame.leaves), frame.spec)


def made_up(structure, packets):
    """The head of a frame around any structure."""
    fixed = bytearray(struct.pack("<4sBBBxQHIIII", b"TPFR", 2, 0, 0, 0, 0, 0, len(structure), packets, 0)) + structure
    struct.pack_into("<I", fixed, 30, zlib.crc32(fixed))
    return torch.frombuffer(fixed, dtype=torch.uint8)


@pytest.mark.parametrize(
    "structure",
    [
        b"",
        b"\xff",
        b"[",
        b"[" * 100_000,
        b"null",
        b"[1]",
        b'[{"x": -1}, []]',
        b'[{"x": true}, []]',
        b'[{"x": 0}, [1, 1]]',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_structures_that_make_no_sense_are_refused(structure):
    with pytest.raises(PacketError):
        Frame.read(made_up(structure, 0))


@pytest.mark.parametrize(
    ("structure", "packets"),
    [
        (b'[{"l": [{"x": 0}, {"x": 0}]}, []]', 1),
        (b'[{"l": [' + b", ".join([b'{"x": 0}'] * 50_000) + b"]}, []]", 1),
        (b'[{"x": 0}, []]', 2),
        (b'[{"l": [{"x": 1}, {"x": 0}]}, []]', 2),
        (b'[{"d": [["a", {"x": 0}], ["a", {"x": 1}]]}, []]', 2),
    ],
    ids=["twice", "often", "one is missing", "out of order", "under one key"],
)
def test_a_packet_stands_in_a_frame_once(structure, packets):
    """It is decoded wherever it stands: a thousand times, it would take the memory of a thousand tensors."""
    packet = torch.cat(PLAIN.encode(torch.ones(2)).parts())
    entry = torch.frombuffer(bytearray(struct.pack("<QB", packet.numel(), 0)), dtype=torch.uint8)
    message = torch.cat([made_up(structure, packets), *[entry, packet] * packets])
    with pytest.raises(PacketError, match="in another order"):
        Frame.read(message)


def deep(levels):
    tree = 1
    for _ in range(levels - 1):
        tree = [tree]
    return tree


def test_what_is_too_deep_or_too_long_is_refused_where_it_is_sent():
    """Not at the other end, where the message would speak of damage."""
    Frame.read(framed(deep(MOST_DEPTH)))
    with pytest.raises(BatchError, match="deep"):
        framed(deep(MOST_DEPTH + 1))
    with pytest.raises(BatchError, match="put what is large into tensors"):
        framed("x" * MOST_STRUCTURE)
