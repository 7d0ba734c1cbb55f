"""The panel of a pipeline says what was measured, in the space that there is."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console

from thinpipe.remote.cost import HalfCost, StepCost
from thinpipe.train.log import StepLine
from thinpipe.train.panel import Panel, cells, chosen
from thinpipe.train.panel_shares import Averages
from thinpipe.train.side_costs import SideCost, SidedCost, SideTimes, rank_sides, sides_of, stage_sides
from thinpipe.train.step_costs import Bytes, RankCost, ranks_cost

WIRE = {"sent": 4_000_000, "received": 1_000_000, "raw_sent": 8_000_000, "raw_received": 8_000_000}
BUSY_CLIENT = HalfCost(computed=0.9, stalled=0.05, encode=0.2, decode=0.1, **WIRE, peak_sent=9e6, peak_received=4e6)
IDLE_SERVER = HalfCost(computed=0.1, stalled=0.85, encode=0.02, decode=0.3, **WIRE, peak_sent=5e6, peak_received=7e6)
CONNECTED = StepCost.of(1, 64, 1.0, BUSY_CLIENT, IDLE_SERVER).to_json()


def line(cost, *, seconds=1.0, step=0):
    return StepLine(step=step, epoch=0, rows=64, loss=0.5, seconds=seconds, cost=cost)


def staged(*sides, seconds=1.0):
    """The cost of a step whose stages spent their time so: computed, encode, decode, stalled."""
    names = ("computed", "encode", "decode", "stalled")
    found = [
        SideCost(name=f"stage {j}", times=SideTimes(**dict(zip(names, times, strict=True))))
        for j, times in enumerate(sides)
    ]
    whole = Bytes(4_000_000, 1_000_000).cost(Bytes(), step=1, rows=64, seconds=seconds)
    return SidedCost(whole, found).to_json()


def shown(*costs, width=80, height=24, colour=False, encoding="utf-8", seconds=1.0):
    """The lines that a panel shows after steps of these costs."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal = {"force_terminal": True, "color_system": "standard"} if colour else {"color_system": None}
    console = Console(file=file, width=width, height=height, **terminal)
    panel = Panel()
    for step, cost in enumerate(costs):
        panel.count(line(cost, step=step, seconds=seconds))
    console.print(panel)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def words(lines, name):
    """The numbers of a row."""
    (row,) = (each for each in lines if each.startswith(f"{name} "))
    return row.removeprefix(name).split()


def test_a_server_that_waits_for_its_client_shows_as_waiting():
    head, *lines = shown(CONNECTED)
    assert head.split() == ["█", "busy", "▓", "encode", "▒", "decode", "░", "waits", "·", "rest"]
    bar, *numbers = words(lines, "client")
    assert numbers == ["90%", "+20%", "+10%", "5%", "5%"] and bar.count("█") == 9 * len(bar) // 10
    bar, *numbers = words(lines, "server")
    assert numbers == ["10%", "+2%", "+30%", "85%", "5%"] and bar.count("░") > 0.8 * len(bar)
    # What is packed beside the computation is no part of the bar.
    assert "▓" not in bar and "▒" not in bar


def test_a_client_sees_what_it_sends_and_receives_now_on_average_and_at_its_peak():
    thrice = CONNECTED | {"sent": 12_000_000, "peak_sent": 3e7}
    lines = shown(CONNECTED, *[thrice] * 60, CONNECTED)
    # Of the last two steps one is slower; that the first of 62 was is forgotten by now, but not on average.
    assert " ".join(words(lines, "sent")) == "11.2 MB/s now 11.7 MB/s average 30.0 MB/s peak"
    # The peak of a way is that of its sending end.
    assert " ".join(words(lines, "received")) == "1.0 MB/s now 1.0 MB/s average 5.0 MB/s peak"


def test_stages_that_pack_in_their_own_thread_have_it_in_their_bar():
    lines = shown(staged((0.5, 0.2, 0, 0.2), (0.2, 0, 0.1, 0.6)))
    bar, *numbers = words(lines, "stage 0")
    assert numbers == ["50%", "20%", "0%", "20%", "10%"] and list(dict.fromkeys(bar)) == ["█", "▓", "░", "·"]
    bar, *numbers = words(lines, "stage 1")
    assert numbers == ["20%", "0%", "10%", "60%", "10%"] and list(dict.fromkeys(bar)) == ["█", "▒", "░", "·"]
    assert " ".join(words(lines, "forward")) == "4.0 MB/s now 4.0 MB/s average", "nobody measured a peak"
    assert " ".join(words(lines, "backward")) == "1.0 MB/s now 1.0 MB/s average"


def test_each_rank_has_a_row_and_each_way_the_peak_of_who_sends():
    first = RankCost(computed=0.6, stalled=0.3, up=100, down=0, peak_sent=3e6, peak_up=3e6)
    second = RankCost(computed=0.2, stalled=0.7, up=100, down=50, peak_sent=8e6, peak_up=8e6, peak_down=1e6)
    third = RankCost(computed=0.1, stalled=0.1, down=50, peak_sent=2e6, peak_down=2e6)
    costs = [first, second, third]
    whole = ranks_cost(costs, step=1, rows=64, seconds=1.0)
    lines = shown(SidedCost(whole, rank_sides(costs)).to_json())
    assert [words(lines, f"rank {rank}")[1] for rank in range(3)] == ["60%", "20%", "10%"]
    assert words(lines, "up")[-3:] == ["8.0", "MB/s", "peak"] and words(lines, "down")[-3:] == ["2.0", "MB/s", "peak"]


@pytest.mark.parametrize(
    "cost", [{}, Bytes(100, 100).cost(Bytes(), step=1, rows=64, seconds=1.0).to_json()], ids=["one device", "replicas"]
)
def test_where_there_are_no_sides_nothing_is_shown(cost):
    assert shown(cost) == []


def test_what_a_gpu_does_is_not_told_by_the_clock_of_its_host():
    # Its host has only asked for it: bytes are known, shares are not.
    whole = Bytes(4_000_000, 1_000_000).cost(Bytes(), step=1, rows=64, seconds=1.0)
    lines = shown(SidedCost(whole, stage_sides([None, None], [None, None])).to_json())
    assert [each.split()[0] for each in lines] == ["forward", "backward"]
    ranks = [RankCost(computed=0.01, peak_up=3e6, timed=False), RankCost(computed=0.01, timed=False)]
    lines = shown(SidedCost(whole, rank_sides(ranks)).to_json())
    assert [each.split()[0] for each in lines] == ["up", "down"]


times = some.floats(0, 3)


@given(some.lists(some.tuples(times, times, times, times), min_size=1, max_size=6), some.booleans())
def test_shares_add_up_to_the_whole_whatever_the_clocks_said(steps, beside):
    averages = Averages()
    for computed, encode, decode, stalled in steps:
        own = SideTimes(computed=computed, encode=encode, decode=decode, stalled=stalled, beside=beside)
        whole = Bytes().cost(Bytes(), step=1, rows=64, seconds=1.0)
        averages.count(line(SidedCost(whole, [SideCost(name="stage 0", times=own)]).to_json()))
    (side,) = averages.shares()
    parts = [side.busy, side.waits, side.rest, *(() if beside else (side.encode, side.decode))]
    assert sum(parts) == pytest.approx(1) and all(0 <= part <= 1 for part in parts)
    assert sum(cells(parts, 25)) == 25 and min(cells(parts, 25)) >= 0


def test_one_slow_step_does_not_make_the_numbers_jump():
    usual, slow = staged((0.08, 0, 0, 0.02), seconds=0.1), staged((0.02, 0, 0, 0.28), seconds=0.3)
    averages = Averages()
    for _ in range(50):
        averages.count(line(usual, seconds=0.1))
    averages.count(line(slow, seconds=0.3))
    (side,) = averages.shares()
    assert 0.6 < side.busy < 0.8, "of 80% in all steps but the last, which had 7%"
    for _ in range(50):
        averages.count(line(usual, seconds=0.1))
    assert averages.shares()[0].busy == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("width", [12, 20, 30, 40, 60, 80, 200])
@pytest.mark.parametrize("cost", [CONNECTED, staged(*[(0.3, 0.1, 0.1, 0.4)] * 32)], ids=["connected", "stages"])
def test_nothing_is_wider_than_the_terminal(width, cost):
    lines = shown(cost, width=width)
    assert len(lines) <= 8 + 3 and all(len(each) <= width for each in lines)
    # What there is room for is there: numbers give way to the bar, not the bar to them.
    if width >= 20:
        assert sum(each.count("█") for each in lines[1:]) >= 2
    if width >= 30:
        assert "busy" in lines[0] and ("encode" in lines[0]) == (width >= 80)
        assert all(each.endswith(("now", "average", "peak")) for each in lines[-2:])


def test_of_many_stages_the_first_the_busiest_and_all_of_them_are_shown():
    sides = [(0.1, 0, 0, 0.8)] * 32
    for j, busy in ((7, 0.5), (19, 0.9), (30, 0.7), (31, 0.6)):
        sides[j] = (busy, 0, 0, 0.05)
    lines = shown(staged(*sides))
    names = [each[:8].strip() for each in lines[1:-2]]
    assert names == ["stage 0", "stage 1", "stage 2", "stage 7", "stage 19", "stage 30", "stage 31", "all 32"]
    assert words(lines, "all 32")[1] == f"{(28 * 0.1 + 2.7) / 32:.0%}"
    # In a terminal that is not high enough, fewer.
    lines = shown(staged(*sides), height=10)
    assert [each[:8].strip() for each in lines[1:-2]] == ["stage 0", "stage 19", "stage 30", "all 32"]
    assert len(chosen(Averages().shares(), 1)) == 0


def test_colours_repeat_what_shapes_say(monkeypatch):
    plain = shown(staged((0.5, 0.2, 0.1, 0.1)))
    coloured = "\n".join(shown(staged((0.5, 0.2, 0.1, 0.1)), colour=True))
    assert "\x1b[32m█" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    without = "\n".join(shown(staged((0.5, 0.2, 0.1, 0.1)), colour=True))
    assert "\x1b[32m" not in without and "█" in without
    bar = words(plain, "stage 0")[0]
    assert [bar.count(mark) for mark in "█▓▒░·"] == cells([0.5, 0.2, 0.1, 0.1, 0.1], len(bar))
    bar = words(shown(staged((0.5, 0.2, 0.1, 0.1)), encoding="ascii"), "stage 0")[0]
    assert [bar.count(mark) for mark in "#ed-."] == cells([0.5, 0.2, 0.1, 0.1, 0.1], len(bar))


def test_a_side_is_read_as_it_was_written():
    cost = staged((0.5, 0.25, 0, 0.125), (0.25, 0, 0.5, 0))
    assert [side.to_json() for side in sides_of(cost)] == cost["sides"]
    times = SideTimes(computed=0.5, encode=0.25, decode=0.125, stalled=0.5, beside=True)
    side = SideCost(name="rank 3", times=times, peak_up=3e6)
    assert SideCost.from_json(side.to_json()) == side
    assert SideCost.from_json(SideCost(name="stage 0").to_json()) == SideCost(name="stage 0")
    # The whole is read without them, as it was before there were any.
    assert StepCost.from_json(cost) == StepCost.from_json({k: v for k, v in cost.items() if k != "sides"})
