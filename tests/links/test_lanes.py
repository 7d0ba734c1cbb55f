"""Lanes between real processes: every byte in order, no failure that hangs. lanes_cases.py has the cases."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BETWEEN_TWO = [
    "random_sizes_both_ways_on_several_lanes",
    "messages_are_taken_in_the_lanes_own_thread",
    "who_takes_messages_is_told_once_that_no_more_come",
    "windows_of_one_and_of_many",
    "alternating_sizes_are_hardly_padded",
    "equal_sizes_are_not_padded",
    "a_full_window_holds_the_sender_back",
    "abort_wakes_whoever_waits_and_spares_other_lanes",
    "hostile_headers_are_refused",
    "a_short_message_is_no_message",
    "a_tail_that_never_comes_is_a_stall",
    "a_throttled_lane_keeps_to_its_rate_and_delay",
    "hanging_up_ends_the_threads",
]
WITH_A_PEER_IN_TROUBLE = ["a_killed_peer_is_lost", "a_stopped_peer_is_a_stall"]
RANKS = 4


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Starts all ranks once for all cases."""
    store = tmp_path_factory.mktemp("lanes") / "store"
    script = Path(__file__).parent / "lanes_rank.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=90) for rank in ranks[:2]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank, (_, errors) in zip(ranks, outputs, strict=False):
        assert rank.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("case", BETWEEN_TWO)
def test_between_two_ranks(verdicts, case):
    for of_rank in verdicts:
        assert of_rank[case] == "", of_rank[case]


@pytest.mark.parametrize("case", WITH_A_PEER_IN_TROUBLE)
def test_with_a_peer_in_trouble(verdicts, case):
    assert verdicts[0][case] == "", verdicts[0][case]


def test_every_case_ran(verdicts):
    assert set(verdicts[0]) == {*BETWEEN_TWO, *WITH_A_PEER_IN_TROUBLE}
    assert set(verdicts[1]) == {*BETWEEN_TWO}
