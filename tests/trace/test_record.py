"""A tracer notes what happens when, from any thread."""

import json
import threading
import time

import pytest

from thinpipe.errors import TraceError
from thinpipe.trace import NO_TRACE, SAME, Span, Tracer, from_json, merge


def test_spans_are_as_long_as_what_they_surround():
    tracer = Tracer(3)
    before = time.perf_counter()
    with tracer.span("compute", "F3.0", step=1):
        time.sleep(0.02)
    tracer.add("wire", "F3.0", before, before + 1.5, bytes=10, peer=4)
    compute, wire = tracer.lines()
    assert (compute.rank, compute.track, compute.name, compute.step) == (3, "compute", "F3.0", 1)
    assert before <= compute.start <= compute.end - 0.02 <= time.perf_counter()
    assert wire == Span(3, "wire", "F3.0", before, before + 1.5, {"bytes": 10, "peer": 4})


def test_what_is_known_only_inside_is_noted_there():
    tracer = Tracer(0)
    with tracer.span("encode", "F0.0") as span:
        span.note(bytes=17)
    assert tracer.lines()[0].bytes == 17


def test_a_span_that_fails_is_recorded_and_the_error_passes():
    tracer = Tracer(0)
    with pytest.raises(KeyError), tracer.span("decode", "B0.0"):
        raise KeyError("lost")
    assert tracer.lines()[0].details == {"failed": "KeyError"}


def test_threads_lose_nothing_while_another_takes():
    tracer, taken, done = Tracer(0), [], threading.Event()

    def record(thread):
        for number in range(2000):
            with tracer.span("encode", f"{thread}.{number}"):
                pass

    def take():
        while not done.is_set():
            taken.extend(tracer.take())

    threads = [threading.Thread(target=record, args=(k,)) for k in range(4)]
    taker = threading.Thread(target=take)
    for thread in (*threads, taker):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    taker.join()
    taken.extend(tracer.take())
    assert sorted(span.name for span in taken) == sorted(f"{k}.{number}" for k in range(4) for number in range(2000))
    assert tracer.lines() == []


def test_a_null_tracer_has_the_same_interface_and_nothing_in_it():
    with NO_TRACE.span("compute", "F0.0", step=1) as span:
        span.note(bytes=1)
    NO_TRACE.add("wire", "F0.0", 0.0, 1.0)
    NO_TRACE.clear()
    assert NO_TRACE.lines() == NO_TRACE.take() == from_json(NO_TRACE.to_json()) == []
    public = {name for name in dir(Tracer) if not name.startswith("_")}
    assert public <= {name for name in dir(NO_TRACE) if not name.startswith("_")}
    with pytest.raises(KeyError), NO_TRACE.span("compute", "F0.0"):
        raise KeyError("an error passes here, too")


def test_plain_data_survives_json_and_clearing():
    tracer = Tracer(2)
    tracer.add("wire", "F2.0", 0.1, 0.7, bytes=3, way="in")
    data = json.loads(json.dumps(tracer.to_json()))
    kept = tracer.lines()
    tracer.clear()
    assert from_json(data) == kept and tracer.lines() == []
    assert merge(from_json(data), {2: SAME}).length == pytest.approx(0.6)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"rank": 0},
        {"rank": -1, "spans": []},
        {"rank": True, "spans": []},
        {"rank": 0, "spans": [["wire", "F0.0", 0, 1]]},
        {"rank": 0, "spans": [["wire", "F0.0", "0", 1, {}]]},
        {"rank": 0, "spans": [["wire", "F0.0", float("nan"), 1, {}]]},
        {"rank": 0, "spans": [["wire", "F0.0", 2, 1, {}]]},
        {"rank": 0, "spans": [["lunch", "F0.0", 0, 1, {}]]},
        {"rank": 0, "spans": [["wire", "F0.0", 0, 1, {"a": []}]]},
    ],
    ids=str,
)
def test_what_another_machine_sent_is_read_with_care(data):
    with pytest.raises(TraceError):
        from_json(data)


def test_a_track_that_does_not_exist_is_refused_where_it_is_named():
    with pytest.raises(TraceError, match="no track 'encod'; there are compute, encode, wire, decode"):
        Tracer(0).span("encod", "F0.0")
    with pytest.raises(TraceError, match="there are compute"):
        Tracer(0).add("lunch", "F0.0", 0.0, 1.0)


@pytest.mark.parametrize("value", [[1], float("inf"), float("nan"), object()], ids=["list", "inf", "nan", "object"])
def test_a_detail_is_a_plain_value(value):
    tracer = Tracer(0)
    tracer.add("wire", "F0.0", 0.0, 1.0, bytes=value)
    with pytest.raises(TraceError, match="bytes="):
        tracer.lines()
