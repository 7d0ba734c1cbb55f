"""Both ends of a lane forecast the same sizes, and padding stays small."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.errors import PacketError
from thinpipe.links.forecast import FIRST_SIZE, HEADER_SIZE, Forecast, read_length, write_header


def heads(lengths, window=4):
    """The sizes that a sender gives the heads of messages of these lengths."""
    forecast, sizes = Forecast(window), []
    for length in lengths:
        sizes.append(forecast.size())
        forecast.note(length)
    return sizes


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 9))
def test_a_receiver_that_asks_a_window_ahead_gets_the_sender_s_sizes(lengths, window):
    forecast = Forecast(window)
    posted = [forecast.size() for _ in range(window)]
    for length in lengths:
        forecast.note(length)
        posted.append(forecast.size())
    assert posted[: len(lengths)] == heads(lengths, window)


def padding(lengths):
    return sum(max(0, head - HEADER_SIZE - length) for head, length in zip(heads(lengths), lengths, strict=True))


def tails(lengths):
    return sum(head - HEADER_SIZE < length for head, length in zip(heads(lengths), lengths, strict=True))


def test_equal_lengths_need_neither_padding_nor_tails_after_the_first_window():
    assert heads([10**6] * 9) == [FIRST_SIZE] * 4 + [10**6 + HEADER_SIZE] * 5


def test_lengths_that_waver_are_padded_to_the_largest():
    lengths = [10**6 + 10**4 * (i * 7 % 5) for i in range(100)]
    assert tails(lengths) < 12 and padding(lengths) < 0.03 * sum(lengths)


def test_of_two_alternating_lengths_the_short_one_is_not_padded():
    lengths = [10**5, 10**6] * 50
    assert padding(lengths) == 0 and tails(lengths) < 60


def test_a_shorter_last_micro_batch_is_padded_and_its_fellows_have_no_tails():
    lengths = ([10**6] * 7 + [300_000]) * 10
    assert padding(lengths) <= sum(lengths) / 8 and tails(lengths) < 10


def test_a_lasting_drop_pads_the_window_and_one_more():
    sizes = heads([10**6] * 30 + [10] * 30)
    assert [size > 10**5 for size in sizes[30:]] == [True] * 5 + [False] * 25


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_any_bytes_are_refused_as_a_header(raw):
    with pytest.raises(PacketError):
        read_length(torch.frombuffer(bytearray(raw), dtype=torch.uint8), lane=0, window=4, sequence=0, most=10)


def test_sequence_numbers_go_round():
    head = torch.zeros(HEADER_SIZE, dtype=torch.uint8)
    write_header(head, lane=3, window=4, sequence=2**32 + 5, length=0, head=HEADER_SIZE)
    assert read_length(head, lane=3, window=4, sequence=2**32 + 5, most=0) == 0
