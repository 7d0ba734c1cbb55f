"""The page of a report: its numbers are the figures', its words are escaped, and it needs nothing but itself."""

import html
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.runs import CONNECTED, DATA_PARALLEL, IN_PROCESS, ONE_DEVICE, RANKS, cost, untimed, write_run, write_trace
from thinpipe.report.entry import read_entries
from thinpipe.report.figures import Figures
from thinpipe.report.headline import headline_of
from thinpipe.report.markup import element
from thinpipe.report.page import as_page, write_report
from thinpipe.report.points import Spot, point_chart
from thinpipe.report.run import Run
from thinpipe.report.scale import Linear, Log
from thinpipe.report.thin import thinned
from thinpipe.report.timeline import typical_step
from thinpipe.trace import Span, Trace, read_chrome
from thinpipe.train.log import RunError
from thinpipe.train.settings import Settings


class Reader(HTMLParser):
    """Reads a page: its elements, its tables' rows, and whether everything that was opened was closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = ""

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(self.cell)
            self.cell = None

    def row(self, name):
        return next(row for row in self.rows if row and row[0] == name)[1:-1]


def page(*paths):
    return as_page(read_entries(paths), "thinpipe report")


def pair(tmp_path, **other):
    """Writes a run without codecs, and one with; ``other`` says how the second one differs."""
    settings = Settings(connect="10.0.0.7:5555", bandwidth="20mbit")
    write_run(tmp_path / "none", settings, epochs=3, accuracy=0.3, costs=lambda k: cost(k, scale=4), seconds=1.0)
    about = {"settings": replace(settings, codec="had:4", grad_codec="had:4"), "epochs": 3, "accuracy": 0.3} | other
    write_run(tmp_path / "packed", **about)
    return tmp_path / "none", tmp_path / "packed"


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_table_are_those_of_the_figures(tmp_path):
    paths = pair(tmp_path, mcc=0.25)
    read = Reader(page(*paths))
    figures = [Figures.of(Run.read(path)) for path in paths]
    network = [each.network for each in figures]
    assert read.row("accuracy") == [f"{each.accuracy:.2%}" for each in figures]
    assert read.row("Matthews") == ["-not measured", f"{figures[1].mcc:.4f}"]
    assert read.row("client to server kB") == [f"{each['sent'] / 1e3:,.1f}" for each in network]
    assert read.row("server to client kB") == [f"{each['received'] / 1e3:,.1f}" for each in network]
    assert read.row("ratio") == [f"{each['ratio']:.2%}" for each in network]
    assert read.row("average over computation Mbit/s") == [
        f"{8e-6 * each['bandwidth_over_computation']:,.2f}" for each in network
    ]
    assert read.row("average over wall time Mbit/s") == [
        f"{8e-6 * each['bandwidth_over_wall']:,.2f}" for each in network
    ]
    assert read.row("peak sent, client Mbit/s") == [f"{8e-6 * each['peak_sent']:,.2f}" for each in network]
    assert read.row("time ms") == [f"{1e3 * each.seconds:,.1f}" for each in figures]
    assert read.row("stall, server ms") == [f"{1e3 * each['server_stalled']:,.1f}" for each in network]


def test_the_page_carries_its_figures_for_programs(tmp_path):
    paths = pair(tmp_path)
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page(*paths))[1]
    said = json.loads(text)["runs"]
    for each, path in zip(said, paths, strict=True):
        assert {key: each[key] for key in each if key not in ("label", "run")} == Figures.of(Run.read(path)).to_json()


# -- the headline ------------------------------------------------------------------------------------------------------


def said(paths):
    return headline_of(read_entries(paths))


def test_the_headline_compares_what_can_be_compared(tmp_path):
    assert said(pair(tmp_path)) == (
        "had:4 sends 4.0 times fewer bytes than none and is 2.0 times faster over 20 Mbit/s, "
        "at the same accuracy, 90.00%"
    )


@pytest.mark.parametrize(
    ("other", "ending"),
    [
        ({"accuracy": 0.2}, ", at 60.00% accuracy instead of 90.00%"),
        ({"epochs": 2}, ", at the same accuracy, 60.00% after 2 epochs"),
        ({"seconds": 0.99}, " and is as fast over 20 Mbit/s, at the same accuracy, 90.00%"),
        ({"seconds": 2.0}, " and is 2.0 times slower over 20 Mbit/s, at the same accuracy, 90.00%"),
        ({"settings": Settings(connect="10.0.0.7:1", codec="had:4")}, "bytes than none, at the same accuracy, 90.00%"),
        ({"settings": replace(CONNECTED, connect="10.0.0.8:1")}, "bytes than none, at the same accuracy, 90.00%"),
    ],
    ids=["worse", "shorter", "as fast", "slower", "another link", "another server"],
)
def test_the_headline_says_no_more_than_is_true(tmp_path, other, ending):
    assert said(pair(tmp_path, **other)).endswith(ending)


def test_runs_of_other_schedules_of_the_rate_are_not_compared_after_the_same_epoch(tmp_path):
    fields = {"lr_schedule": "cosine"}
    for name, epochs in (("long", 5), ("short", 3)):
        about = {"fields": fields | {"epochs": epochs}, "epochs": 3, "accuracy": 0.3}
        write_run(tmp_path / name, costs=lambda k, epochs=epochs: cost(k, scale=epochs), **about)
    assert said([tmp_path / "long", tmp_path / "short"]) == "2 runs of digits, all at 90.00% accuracy"


def test_runs_that_cannot_be_compared_are_only_counted(tmp_path):
    paths = pair(tmp_path, fields={"lr": 0.05}, accuracy=0.2)
    assert said(paths) == "2 runs of digits: accuracy from 60.00% (had:4) to 90.00% (none)"
    assert "The recipes differ in lr: 0.1 (none), 0.05 (had:4)." in html.unescape(page(*paths))


def test_the_one_that_sends_least_loses_to_one_that_keeps_its_accuracy(tmp_path):
    paths = pair(tmp_path)
    bad = write_run(
        tmp_path / "bad",
        replace(CONNECTED, codec="block:2"),
        epochs=3,
        accuracy=0.1,
        costs=lambda k: cost(k, scale=0.1),
    )
    assert said([*paths, bad]).startswith("had:4 sends")


def test_two_recipes_are_told_apart(tmp_path):
    other = write_run(tmp_path / "other")
    about = json.loads((other / "recipe.json").read_text())
    about["recipe"] |= {"name": "two-machines", "pixels": 224}
    (other / "recipe.json").write_text(json.dumps(about))
    text = html.unescape(page(write_run(tmp_path / "one"), other))
    assert "The runs are of different recipes: digits, two-machines." in text
    assert "<h1>2 runs of digits and two-machines.</h1>" in text


# -- all kinds of runs -------------------------------------------------------------------------------------------------

KINDS = {
    "connected": (CONNECTED, cost),
    "ranks": (RANKS, cost),
    "in process": (IN_PROCESS, untimed),
    "data parallel": (DATA_PARALLEL, untimed),
    "one device": (ONE_DEVICE, None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_runs_of_every_way_make_a_page_alone(tmp_path, kind, epochs):
    settings, costs = KINDS[kind]
    text = page(write_run(tmp_path / "run", settings, costs=costs, epochs=epochs))
    read = Reader(text)
    assert read.open == []
    assert ('id="bandwidth"' in text) == (costs is not None and epochs > 0)
    assert ('id="time"' in text) == (costs is cost and epochs > 0)
    assert (f"run is not finished: {epochs} of 3 epochs" in text) == (epochs == 1)
    assert ("run has no steps yet" in text) == (epochs == 0)


def test_runs_of_all_ways_stand_beside_each_other(tmp_path):
    paths = [write_run(tmp_path / name, settings, costs=costs) for name, (settings, costs) in KINDS.items()]
    text = page(*paths)
    read = Reader(text)
    assert read.open == [] and "The runs were trained in different ways" in text
    assert read.row("way") == ["connected", "ranks", "in process", "data parallel", "one device"]
    assert read.row("peak sent, second side Mbit/s") == ["24.00", "24.00", *3 * ["-not measured"]]
    assert read.row("computation, server ms") == ["100.0", *4 * ["-not measured"]]
    assert read.row("computation, other ranks ms") == ["-not measured", "100.0", *3 * ["-not measured"]]


def test_stages_are_told_apart_where_the_log_has_their_times(tmp_path):
    path = write_run(tmp_path / "run", IN_PROCESS, costs=untimed)
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    times = {"computed": 0.012, "encode": 0.001, "decode": 0.002, "stalled": 0.005}
    for line in lines:
        if line["kind"] == "step":
            line["cost"]["sides"] = [{"name": f"stage {k}", **times} for k in range(2)]
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = page(path)
    assert Reader(text).row("computation, stage 1 ms") == ["12.0"] and 'id="time"' in text
    assert "thin bars" not in text  # its threads pack and unpack between computing, not beside it


def test_logs_of_the_first_version_are_read(tmp_path):
    path = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("lr", None)
        line.pop("mcc", None)
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    about = json.loads((path / "recipe.json").read_text())
    about["recipe"] = {name: about["recipe"][name] for name in ("name", "cut", "batch", "epochs", "lr")}
    about["settings"] = {name: about["settings"][name] for name in ("connect", "codec", "grad_codec")}
    about["versions"] = {}
    del about["machine"]
    (path / "recipe.json").write_text(json.dumps(about))
    read = Reader(page(path))
    assert read.row("accuracy") == ["80.00%"] and read.open == []


def test_losses_that_are_no_numbers_leave_gaps(tmp_path):
    path = write_run(tmp_path / "run")
    log = (
        (path / "log.jsonl")
        .read_text()
        .replace('"loss": 0.1,', '"loss": NaN,')
        .replace('"loss": 0.5,', '"loss": Infinity,')
    )
    assert "NaN" in log and "Infinity" in log
    (path / "log.jsonl").write_text(log)
    text = page(path)
    told = re.search(r'id="figures">(.*?)</script>', text)[1]
    assert json.loads(told, parse_constant=pytest.fail)["runs"][0]["test_loss"] is None
    assert 'd="M' in text and not re.search(r'[ "](d|x|y|width|height|transform)="[^"]*(nan|inf)', text)


# -- strangers' words --------------------------------------------------------------------------------------------------


@given(st.text())
def test_any_text_comes_back_from_markup_as_it_was_or_visibly_changed(text):
    found = element("p", text, title=text)
    reader = Reader(str(found))
    assert [tag for tag, _ in reader.tags] == ["p"]
    kept = all(sign.isprintable() or sign == "\n" for sign in text)
    assert (reader.tags[0][1]["title"] == text) == kept
    assert len(reader.tags[0][1]["title"]) == len(text)


def test_words_from_the_files_of_a_run_are_never_markup(tmp_path):
    evil = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>'
    path = write_run(tmp_path / "run<b>&")
    about = json.loads((path / "recipe.json").read_text())
    about["command"], about["started"], about["machine"] = evil, evil, evil
    about["versions"] = {evil: evil}
    about["settings"] |= {"codec": evil, "grad_codec": evil, "connect": evil, "device": evil}
    (path / "recipe.json").write_text(json.dumps(about))
    (path / "trace.json").write_text(json.dumps({"traceEvents": [], "otherData": {"producer": evil}}))
    for paths in ([path], [path, write_run(tmp_path / "plain")]):
        text = page(*paths)
        read = Reader(text)
        assert "<img" not in text and "<b>" not in text and read.open == []
        assert sum(tag == "script" for tag, _ in read.tags) == 2
        assert html.escape(evil) in text


def test_a_page_needs_nothing_but_itself(tmp_path):
    path = write_run(tmp_path / "run")
    write_trace(path / "trace.json")
    text = write_report([path], tmp_path / "deep" / "page.html").read_text()
    assert not re.search(r"https?://|//\w|@import|url\((?!#)", text.replace("// A page from a disk", ""))
    for tag, attributes in Reader(text).tags:
        assert "src" not in attributes and tag not in ("iframe", "object", "embed", "img")
        assert attributes.get("href", "#").startswith(("#", "data:"))
    assert "default-src 'none'" in text


# -- traces ------------------------------------------------------------------------------------------------------------


def test_the_step_that_is_drawn_is_a_usual_one_that_trains(tmp_path):
    trace = read_chrome(write_trace(tmp_path / "trace.json", steps=12))
    step = typical_step(trace)
    assert 3 <= step.number <= 11 and {"forward", "backward", "encode", "wire", "decode"} == step.kinds
    assert typical_step(Trace.of([Span(0, "compute", "F0.0", 0, 1)])) is None


def test_a_trace_is_drawn_with_a_lane_for_each_side(tmp_path):
    path = write_run(tmp_path / "run")
    write_trace(path / "trace.json", micros=3)
    text = page(path)
    assert 'id="step"' in text and text.count(">client</text>") >= 3 and text.count(">server</text>") >= 3
    assert "forward F1.2" in text and "on the wire B2.0\n" in text


def test_hundreds_of_micro_batches_are_drawn_with_few_boxes(tmp_path):
    path = write_run(tmp_path / "run")
    write_trace(path / "trace.json", steps=2, micros=300)
    text = page(path)
    assert len(text) < 2e6 and "one after the other" in text


@pytest.mark.parametrize("damage", ["{", "[]", '{"traceEvents": [{"ph": "X"}]}', ""])
def test_a_damaged_trace_is_left_out_with_a_note(tmp_path, damage):
    path = write_run(tmp_path / "run")
    (path / "trace.json").write_text(damage)
    text = page(path)
    assert "The trace of run cannot be read, and its timeline is left out" in text and 'id="step"' not in text


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(RunError, match="one run at least"):
        write_report([], tmp_path / "page.html")


# -- the parts of charts -----------------------------------------------------------------------------------------------

NUMBERS = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(st.lists(NUMBERS, max_size=20), st.booleans(), st.integers(2, 9))
def test_a_linear_scale_has_all_values_and_few_ticks_inside(values, zero, most):
    scale = Linear.around(values, 300, 20, zero=zero)
    room = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - room <= value <= scale.high + room for value in values)
    ticks = scale.ticks(most)
    assert 1 <= len(ticks) <= most + 1 and all(19.9 <= scale(tick) <= 300.1 for tick in ticks)


@given(st.lists(st.floats(1, 1e15), min_size=1, max_size=20), st.integers(4, 9))
def test_a_logarithmic_scale_has_all_values_and_few_ticks_inside(values, most):
    scale = Log.around(values, 20, 300)
    assert all(20 <= scale(value) <= 300 for value in values)
    assert len(scale.ticks(most)) <= most and all(20 <= scale(tick) <= 300 for tick in scale.ticks(most))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200), st.integers(1, 50))
def test_thinned_points_are_few_and_within_what_they_stand_for(values, most):
    points = thinned(list(enumerate(values)), most)
    known = [value for value in values if math.isfinite(value)]
    assert len(points) == min(most, len(known)) and points == sorted(points, key=lambda point: point[0])
    if known and max(map(abs, known)) < 1e300:
        slack = 1e-9 * max(map(abs, known))
        assert all(min(known) - slack <= value <= max(known) + slack for _, value in points)


@given(st.lists(st.tuples(st.floats(1e3, 1e8), st.floats(0.5, 1)), min_size=2, max_size=12))
def test_names_of_points_never_cover_each_other(places):
    spots = [Spot(f"codec:{k}", k, size, value, "") for k, (size, value) in enumerate(places)]
    for drawing in re.findall(r"<svg.*?</svg>", point_chart("a", "b", spots, str, share=True)):
        found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="ink halo">([^<]+)<', drawing)
        boxes = [(float(x), float(x) + 6 * len(words), float(y) - 9, float(y) + 2) for x, y, words in found]
        for k, (left, right, top, bottom) in enumerate(boxes):
            for other in boxes[:k]:
                assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
