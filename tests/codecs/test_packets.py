"""Accidents: bytes that are not a packet, or a packet that was damaged on its way. The checksum notices."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thinpipe
from codec_support import packets, refused, run_script, same_bits, with_checksum
from thinpipe import Packet, codec
from thinpipe.errors import PacketError

MESSAGES = {spec: bytes(packet) for spec, packet in packets().items()}

any_message = st.sampled_from(list(MESSAGES.values()))


def test_a_packet_says_what_it_is_and_is_itself_alone():
    packet, other = (codec("block:4").encode(torch.ones(2, 3)) for _ in range(2))
    assert repr(packet) == f"Packet('block:4/128', torch.float32, (2, 3), {packet.nbytes} bytes on cpu)"
    assert packet != other and bytes(packet) == bytes(other)


@settings(deadline=None, max_examples=200)
@given(message=any_message, bit=st.integers(0, 2**20))
def test_a_flipped_bit_is_noticed(message, bit):
    damaged = bytearray(message)
    damaged[bit // 8 % len(message)] ^= 1 << bit % 8
    with pytest.raises(PacketError):
        Packet.from_bytes(damaged)


@settings(deadline=None, max_examples=60)
@given(message=any_message, data=st.data())
def test_a_message_cut_short_or_too_long_is_noticed(message, data):
    with pytest.raises(PacketError):
        Packet.from_bytes(message[: data.draw(st.integers(0, len(message) - 1))])
    with pytest.raises(PacketError):
        Packet.from_bytes(message + data.draw(st.binary(min_size=1, max_size=50)))


@settings(deadline=None, max_examples=200)
@given(noise=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: b"TPKT\x01" + tail)))
def test_noise_is_not_a_packet(noise):
    with pytest.raises(PacketError):
        Packet.from_bytes(noise)


def test_every_single_bit_of_a_packet_counts():
    message = MESSAGES["sort:3+1"]
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PacketError):
            Packet.from_bytes(damaged)


def test_damage_anywhere_in_a_long_section_is_noticed():
    """Long sections are summed by columns of words before the CRC is taken."""
    message = bytes(thinpipe.codec("none").encode(torch.randn(5000)))
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(message)
        at = rng.randrange(len(message))
        for k in range(at, min(len(message), at + rng.randrange(1, 4000))):
            damaged[k] = rng.randrange(256)
        if damaged != message:
            with pytest.raises(PacketError):
                Packet.from_bytes(damaged)


def test_a_section_shifted_by_a_byte_is_noticed():
    message = bytes(thinpipe.codec("none").encode(torch.randn(5000)))
    with pytest.raises(PacketError, match="checksum"):
        Packet.from_bytes(message[:-15_000] + message[-14_999:] + b"\0")


def test_a_newer_version_is_told_apart_from_damage():
    message = bytearray(MESSAGES["none"])
    message[4] = 4
    assert "version 4, but this thinpipe reads version 3; update it" in refused(with_checksum(message))
    assert "not a packet" in refused(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_and_kept_apart(buffer):
    message = bytearray(MESSAGES["block:4"])
    packet = Packet.from_bytes(buffer(message))
    before = thinpipe.decode(packet)
    message[:] = bytes(len(message))
    assert same_bits(thinpipe.decode(packet), before)
    assert packet.to("cpu").nbytes == packet.nbytes == len(message)


def test_three_thousand_mutated_packets_break_nothing():
    result = run_script("fuzz_packets.py", "--packets", "3000", "--seed", "7", "--processes", "1")
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert "        0  broke the rule" in result.stdout
