"""Malice: the checksum is right and the content is not. ``PacketError``, and no memory without reason."""

import re
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thinpipe
from codec_support import packets, refused, remade, run_script, with_checksum
from thinpipe import Packet, codec, decode
from thinpipe.codecs.packet import DTYPES
from thinpipe.errors import PacketError

PACKETS = packets()
every_packet = pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)


def test_a_packet_remade_without_changes_is_the_packet():
    for packet in PACKETS.values():
        assert remade(packet) == bytes(packet)


@every_packet
@pytest.mark.parametrize(
    "shape",
    [(3, 5, 9), (1000, 1000, 1000), (2**40, 2**15, 1), (2**63, 1, 1), (2**63 - 1, 2**63 - 1, 2), (2**64 - 1, 0, 0)],
    ids=str,
)
def test_a_shape_that_its_bytes_cannot_fill_is_refused(packet, shape):
    if packet.spec.startswith(("svd", "downsample")) and shape == (3, 5, 9):
        shape = (3, 7, 9)  # factors and averages of 5 x 9 and 5 x 8 may be as many
    refused(remade(packet, shape=shape))


@every_packet
def test_a_packet_of_nothing_that_has_something_is_refused(packet):
    refused(remade(packet, shape=(0, 5, 8)))
    refused(remade(packet, shape=(2**62, 2**62, 0), sections=[b""] * len(packet.sections)))


@every_packet
def test_an_order_that_is_none_is_refused(packet):
    for order in [(0, 0, 1), (0, 1, 3), (255, 1, 2)]:
        refused(remade(packet, order=order))


@every_packet
def test_sections_of_other_lengths_or_numbers_are_refused(packet):
    sections = [bytes(section.numpy()) for section in packet.sections]
    for k, section in enumerate(sections):
        refused(remade(packet, sections=[*sections[:k], section + b"\0", *sections[k + 1 :]]))
        if "zstd" not in packet.spec and section:
            refused(remade(packet, sections=[*sections[:k], section[:-1], *sections[k + 1 :]]))
    refused(remade(packet, sections=[*sections, b""]))
    refused(remade(packet, sections=[]))
    if len(sections) > 1:
        refused(remade(packet, sections=sections[:-1]))


@every_packet
@pytest.mark.parametrize("number", [*range(len(DTYPES)), 17, 255])
def test_another_type_is_refused_or_read_as_a_tensor_of_that_type(packet, number):
    message = remade(packet, dtype=number)
    try:
        tensor = thinpipe.decode(Packet.from_bytes(message))
    except PacketError:
        return
    assert tensor.shape == packet.shape
    assert tensor.dtype == DTYPES[number]


@every_packet
def test_a_packet_of_another_codec_is_refused_by_name(packet):
    for spec in ("bf16", "power:2"):
        if packet.spec != spec:
            with pytest.raises(PacketError, match="was expected"):
                codec(spec).decode(packet)
    for spec in ("", "blok:4", "mask", "adjoint:2", "block:4", "os.system", "x" * 1024):
        refused(remade(packet, spec=spec))


def test_a_header_that_claims_more_than_there_is_is_refused():
    message = bytes(PACKETS["block:4"])
    for at, form, numbers in ((6, "<B", (33, 255)), (8, "<H", (1025, 65535)), (10, "<H", (0, 256, 65535))):
        for number in numbers:
            damaged = bytearray(message)
            struct.pack_into(form, damaged, at, number)
            refused(with_checksum(damaged))
    for number in (2**32, 2**63, 2**64 - 1):
        damaged = bytearray(message)
        struct.pack_into("<Q", damaged, 16, number)
        refused(with_checksum(damaged))


@pytest.mark.parametrize(
    "section",
    [
        b"",
        b"\x02",
        b"\x00",
        b"\x01",
        b"\x01garbage",
        b"\x01\x28\xb5\x2f\xfd",
        b"\x01\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8,
    ],
)
def test_a_compressed_section_that_is_none_or_claims_too_much_is_refused(section):
    packet = codec("none|zstd").encode(torch.zeros(1000))
    refused(remade(packet, sections=[section]))


def test_a_bomb_is_refused_before_it_goes_off():
    """Ten kilobytes of frame hold a hundred megabytes, in a packet that wants four kilobytes."""
    zstandard = pytest.importorskip("zstandard")
    packet = codec("none|zstd").encode(torch.zeros(1000))
    bomb = b"\x01" + zstandard.ZstdCompressor(level=19).compress(bytes(10**8))
    assert len(bomb) < 20_000
    refused(remade(packet, sections=[bomb[:4000]]))
    refused(remade(packet, sections=[bomb]))
    streamed = zstandard.ZstdCompressor(level=19, write_content_size=False).compress(bytes(4000))
    refused(remade(packet, sections=[b"\x01" + streamed]))


@pytest.mark.parametrize("spec", ["topk:0.1", "topk:0.7", "topk:0.1|uniform:8"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_indices_out_of_order_out_of_range_or_of_another_number_are_refused(spec, data):
    n = data.draw(st.integers(2, 300))
    packet = codec(spec).encode(torch.randn(n))
    sections = [bytearray(section.numpy().tobytes()) for section in packet.sections]
    k = data.draw(st.sampled_from([part for part in (0, 1) if sections[part]]))
    sections[k][:] = data.draw(st.binary(min_size=len(sections[k]), max_size=len(sections[k])))
    try:
        tensor = thinpipe.decode(Packet.from_bytes(remade(packet, sections=sections)))
    except PacketError:
        return
    assert tensor.count_nonzero() <= codec(spec).coder.count(n)


def test_a_hundred_forged_shapes_of_every_codec_are_refused_at_once_and_for_little_memory():
    result = run_script("forge_packets.py")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    counts = [re.fullmatch(r"\S+: (\d+) of (\d+) refused", line) for line in result.stdout.splitlines()]
    assert len(counts) >= 12
    assert all(count is not None and count[1] == count[2] and int(count[2]) >= 100 for count in counts)


@pytest.mark.parametrize("spec", ["block:4|zstd", "none|zstd", "topk:1e-6"])
def test_an_honest_packet_of_few_bytes_is_opened_by_its_own_codec(spec):
    zeros = torch.zeros(3_000_000)
    packet = Packet.from_bytes(bytes(codec(spec).encode(zeros)))
    assert packet.nbytes < 3000
    assert torch.equal(codec(spec).decode(packet), zeros)


def test_a_packet_that_chooses_its_codec_may_not_make_much_of_few_bytes():
    packet = codec("topk:1e-7").encode(torch.zeros(20_000_000))
    with pytest.raises(PacketError, match="asks for 80000000 bytes of memory"):
        decode(packet)
