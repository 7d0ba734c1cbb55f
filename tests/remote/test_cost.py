"""A batch's cost adds up what both halves measured, and believes nothing that came off a wire unread."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console

from thinpipe.errors import PacketError
from thinpipe.remote.cost import HalfCost, StepCost, as_table, summary

CLIENT = HalfCost(
    computed=0.2,
    stalled=0.5,
    encode=0.01,
    decode=0.02,
    sent=3_000_000,
    received=1_000_000,
    raw_sent=12_000_000,
    raw_received=4_000_000,
    peak_sent=9e6,
    peak_received=4e6,
)
SERVER = HalfCost(
    computed=0.6,
    stalled=0.3,
    encode=0.03,
    decode=0.04,
    sent=1_000_000,
    received=2_999_000,
    raw_sent=4_000_000,
    raw_received=12_000_000,
    peak_sent=5e6,
    peak_received=1.1e7,
)
NOTHING = HalfCost(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

seconds = some.floats(0, 1e12)
sizes = some.integers(0, 2**62)


def halves():
    kinds = {each.name: seconds if each.type == "float" else sizes for each in dataclasses.fields(HalfCost)}
    return some.builds(HalfCost, **kinds)


def test_a_batch_has_what_both_halves_measured():
    cost = StepCost.of(7, 32, 1.0, CLIENT, SERVER)
    assert (cost.step, cost.rows, cost.seconds) == (7, 32, 1.0)
    assert (cost.computed, cost.server_computed, cost.stalled, cost.server_stalled) == (0.2, 0.6, 0.5, 0.3)
    assert (cost.encode, cost.decode, cost.server_encode, cost.server_decode) == (0.01, 0.02, 0.03, 0.04)
    # Bytes are those at the client's socket, whatever the server counted.
    assert (cost.sent, cost.received, cost.raw_sent, cost.raw_received) == (3e6, 1e6, 12e6, 4e6)
    assert (cost.peak_sent, cost.peak_received, cost.server_peak_sent, cost.server_peak_received) == (
        9e6,
        4e6,
        5e6,
        11e6,
    )


def test_what_follows_from_it():
    cost = StepCost.of(7, 32, 1.0, CLIENT, SERVER)
    assert cost.bandwidth_over_computation == pytest.approx(4e6 / 0.8)
    assert cost.bandwidth_over_wall == 4e6
    assert cost.ratio == 0.25
    assert cost.peak == 1.1e7


def test_a_batch_of_nothing_divides_by_nothing():
    cost = StepCost.of(0, 0, 0.0, NOTHING, NOTHING)
    assert (cost.bandwidth_over_computation, cost.bandwidth_over_wall, cost.ratio, cost.peak) == (0, 0, 1, 0)
    assert all(math.isfinite(value) for value in summary([cost]).values())


@given(client=halves(), server=halves(), step=sizes, rows=sizes, wall=seconds)
def test_json_says_it_all(client, server, step, rows, wall):
    cost = StepCost.of(step, rows, wall, client, server)
    assert StepCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost
    assert HalfCost.from_json(json.loads(json.dumps(client.to_json()))) == client
    assert all(math.isfinite(value) for value in summary([cost, cost]).values())


@pytest.mark.parametrize("bad", [-1, -1e-9, math.nan, math.inf, -math.inf, True, "1", None, [1], 2**63, 10**400, 1e300])
@pytest.mark.parametrize("name", ["computed", "sent", "peak_received"])
def test_what_is_no_finite_number_from_0_on_is_refused(name, bad):
    with pytest.raises(PacketError, match=f"{name} of HalfCost is a finite"):
        HalfCost.from_json(CLIENT.to_json() | {name: bad})


def test_bytes_are_whole_numbers_and_seconds_may_be():
    with pytest.raises(PacketError, match=r"sent of HalfCost is a finite int from 0 on; got 1\.5"):
        HalfCost.from_json(CLIENT.to_json() | {"sent": 1.5})
    assert isinstance(HalfCost.from_json(CLIENT.to_json() | {"computed": 1}).computed, float)


@pytest.mark.parametrize("value", [None, [], 3, {}, {"computed": 1}, CLIENT.to_json() | {"more": 1}, {1: 2}])
def test_other_fields_are_refused(value):
    with pytest.raises(PacketError, match="HalfCost has the fields computed, stalled"):
        HalfCost.from_json(value)
    with pytest.raises(PacketError, match="StepCost has the fields step, rows"):
        StepCost.from_json(value)


@given(
    some.recursive(
        some.none() | some.floats() | some.text(), lambda x: some.lists(x) | some.dictionaries(some.text(), x)
    )
)
def test_a_strange_value_raises_nothing_else(value):
    with pytest.raises(PacketError):
        HalfCost.from_json(value)


def test_a_summary_has_means_and_the_largest_peaks():
    quiet = dataclasses.replace(CLIENT, sent=1_000_000, peak_sent=1e6, computed=0.6)
    costs = [StepCost.of(1, 32, 1.0, CLIENT, SERVER), StepCost.of(2, 16, 3.0, quiet, SERVER)]
    found = summary(costs)
    assert (found["batches"], found["rows"], found["seconds"], found["sent"]) == (2, 24, 2, 2e6)
    assert (found["peak_sent"], found["peak"]) == (9e6, 1.1e7)
    assert found["computed"] == pytest.approx(0.4)
    # Of all batches together: 6 MB in 4 seconds, of which 2 were computing; not the mean of 4 and 2/3.
    assert found["bandwidth_over_wall"] == pytest.approx(6e6 / 4)
    assert found["bandwidth_over_computation"] == pytest.approx(6e6 / 2)
    assert found["ratio"] == pytest.approx(6 / 32)
    assert "step" not in found
    with pytest.raises(ValueError, match="no batch to sum up"):
        summary([])


def test_a_table_has_units_for_people():
    console = Console(width=100)
    with console.capture() as captured:
        console.print(as_table([StepCost.of(1, 32, 1.5, CLIENT, SERVER)]))
    lines = [" ".join(line.replace("│", " ").split()) for line in captured.get().splitlines()]
    assert "computing 200.0 ms 600.0 ms 800.0 ms" in lines
    assert "sent 3.0 MB 1.0 MB 4.0 MB" in lines
    assert "peak sent 9.0 MB/s 5.0 MB/s 9.0 MB/s" in lines
    assert "time 1.50 s" in lines
    assert "sent, of tensors 25.0%" in lines
    assert "bandwidth over computation 5.0 MB/s" in lines
