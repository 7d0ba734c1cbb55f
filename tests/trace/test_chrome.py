"""The file of a trace opens in Perfetto, and reads back as it was written."""

import json
from itertools import pairwise

import pytest

from thinpipe.errors import TraceError
from thinpipe.trace import Offset, Span, Trace, merge, read_chrome, write_chrome
from trace_support import recorded, simulated

TIDS = {"compute": 1, "encode": 2, "wire out": 3, "wire in": 13, "decode": 4, "bubble": 5}


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def threads(path):
    """The complete events of each thread, by rank and the thread's name."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(path) if e["name"] == "thread_name"}
    found = {(pid, name): [] for (pid, _), name in names.items()}
    for event in events(path):
        if event["ph"] == "X":
            found[event["pid"], names[event["pid"], event["tid"]]].append(event)
    return found


def test_a_process_for_each_rank_and_a_thread_for_each_track_in_order(tmp_path):
    trace, timeline = simulated()
    path = write_chrome(tmp_path / "trace.json", trace)
    meta = [event for event in events(path) if event["ph"] == "M"]
    processes = {event["pid"]: event["args"]["name"] for event in meta if event["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    for rank in range(3):
        tids = {e["args"]["name"]: e["tid"] for e in meta if e["name"] == "thread_name" and e["pid"] == rank}
        assert tids == TIDS
        order = {e["tid"]: e["args"]["sort_index"] for e in meta if e["name"] == "thread_sort_index"}
        assert sorted(order, key=order.get) == list(TIDS.values())
    first = threads(path)[0, "compute"][0]
    where = {"cat": "compute", "pid": 0, "tid": 1}
    assert first == {"ph": "X", "name": "F0.0", **where, "ts": 0.0, "dur": 1000.0, "args": {"step": 0}}
    idle = sum(event["dur"] for (_, name), all_of in threads(path).items() if name == "bubble" for event in all_of)
    assert idle == pytest.approx(timeline.bubble * timeline.length * 3 * 1000)


@pytest.mark.parametrize("trace", [simulated("zb", wire=3.3)[0], recorded()], ids=["simulated", "recorded"])
def test_a_file_reads_back_to_the_nanosecond(trace, tmp_path):
    again = read_chrome(write_chrome(tmp_path / "deep" / "trace.json", trace))
    key = lambda span: (span.rank, span.track, span.way, span.name, round(span.start, 8))  # noqa: E731
    for old, new in zip(sorted(trace.spans, key=key), sorted(again.spans, key=key), strict=True):
        assert (old.rank, old.track, old.name, old.details) == (new.rank, new.track, new.name, new.details)
        assert new.interval == pytest.approx(old.interval, abs=1.1e-9)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["trace.json"], "no half file is left"


def test_events_of_a_thread_never_overlap_since_perfetto_would_drop_them(tmp_path):
    spans = [Span(0, "decode", f"F0.{i}", 0.001 * i, 0.001 * i + 0.0025) for i in range(6)]
    path = write_chrome(tmp_path / "trace.json", Trace.of(spans))
    lanes = threads(path)
    assert [name for _, name in lanes] == ["decode", "decode 2", "decode 3"]
    for lane in lanes.values():
        assert len(lane) == 2
        assert all(round(1000 * (a["ts"] + a["dur"])) <= round(1000 * b["ts"]) for a, b in pairwise(lane))
    assert len(read_chrome(path).spans) == 6


def test_spans_that_touch_still_touch_when_they_are_read(tmp_path):
    ends = [0.1 * i / 3 for i in range(50)]
    spans = [Span(0, "compute", f"F0.{i}", *between) for i, between in enumerate(pairwise(ends))]
    again = read_chrome(write_chrome(tmp_path / "trace.json", Trace.of(spans)))
    assert all(a.end == b.start for a, b in pairwise(again.spans)) and again.bubbles(0) == []


def test_how_far_clocks_may_be_off_is_kept(tmp_path):
    spans = [Span(0, "compute", "F0.0", 0.0, 1.0), Span(1, "compute", "F1.0", 1.0, 2.0)]
    path = write_chrome(tmp_path / "trace.json", merge(spans, {1: Offset(0.0, 0.00025)}))
    assert read_chrome(path).uncertainty == {1: pytest.approx(0.00025)}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = write_chrome(tmp_path / "trace.json", recorded(1))
    before = path.read_text()
    broken = Trace((Span(0, "compute", "\ud800", 0.0, 1.0), Span(0, "wire", "F0.0", 0.0, 1.0)), {0: float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        write_chrome(path, broken)
    assert path.read_text() == before and len(list(tmp_path.iterdir())) == 1


def changed(**fields):
    def change(data):
        next(event for event in data["traceEvents"] if event["ph"] == "X").update(fields)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.pop("traceEvents"), "no list of traceEvents"),
        (lambda data: data.pop("otherData"), "not written by thinpipe"),
        (lambda data: data["otherData"].update(format=2), "another version"),
        (lambda data: data["otherData"].update(clock_uncertainty_us=[1]), "clock_uncertainty_us"),
        (lambda data: data["traceEvents"].clear(), "was anything recorded"),
        (lambda data: data["traceEvents"].insert(3, 17), "event 3 is no event: 17"),
        (changed(ts="soon"), "event 4 has ts=soon"),
        (changed(ts=float("nan")), "event 4 has ts=nan"),
        (changed(ts=10**400), "event 4 has ts=1000"),
        (changed(dur=-1), "goes from"),
        (changed(dur=None), "event 4 has dur=None"),
        (changed(pid="0"), "event 4 has pid=0"),
        (changed(cat="kernel"), "event 4 has cat=kernel"),
        (changed(args={"bytes": [1]}), "details are texts and finite numbers"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place_of_the_damage(damage, message, tmp_path):
    path = write_chrome(tmp_path / "trace.json", simulated()[0])
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(TraceError, match=message) as caught:
        read_chrome(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 100, 900, -3], ids=str)
def test_a_file_that_was_cut_off_is_refused(keep, tmp_path):
    path = write_chrome(tmp_path / "trace.json", simulated()[0])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TraceError, match="no JSON, or was cut off"):
        read_chrome(path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"null"], ids=["bytes", "deep", "list", "null"]
)
def test_what_is_no_trace_is_refused(content, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"trace\.json"):
        read_chrome(path)
