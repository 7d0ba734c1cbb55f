"""``thinpipe reproduce two-machines`` trains between real processes over real sockets, and its figures add up."""

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe.bench.network import obstacle
from thinpipe.bench.record import Record
from thinpipe.cli import app
from thinpipe.remote.cost import StepCost
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.reproduce.two_machines.computation import Computation, is_less
from thinpipe.reproduce.two_machines.documents import CHUNKS, CONV, PRINTED, printed
from thinpipe.reproduce.two_machines.figures import COMPUTATION, MEGABYTE, figures
from thinpipe.reproduce.two_machines.row import BOTTLENECKS, CODECS, Row, method, order
from thinpipe.reproduce.two_machines.sheet import bars, published_sheet
from thinpipe.reproduce.two_machines.work import Work
from thinpipe.train import resolved
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from train.small import WEIGHTS, write_files

WHY_NOT = obstacle()
TINY = ("reproduce", "two-machines", "--tiny")
NAMES = ["200mbit-before-relu-none-4", "200mbit-before-relu-uniform8-4", "200mbit-before-relu-block4-4"]
COLUMNS = {"ratio", "average", "peak, client", "peak, server", "computation", "total", "samples/s"}


def run(*words, fails=False):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.split())


def measure(*words):
    """Runs the command in a process of its own."""
    command = [sys.executable, "-m", "thinpipe", *TINY, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run over the loopback, in a folder; with it, what its last line said."""
    folder = tmp_path_factory.mktemp("results")
    words = ("--bandwidth", "200mbit", "--via", "emulated", "--codecs", "none,uniform:8,block:4", "--batches", 2)
    words += ("--bottlenecks", "none")
    done = measure(*words, "--output", folder, "--json")
    assert done.returncode == 0, done.stderr
    return folder, (*words, "--output", folder), json.loads(done.stdout.splitlines()[-1])


def test_a_batch_is_shorter_where_the_link_is_thin_and_the_tensors_are_packed(recorded):
    _, _, said = recorded
    # The bar is 4 where nothing else runs; here other tests may.
    assert said["none_over_block4"] > 2
    assert list(said["none_over_block4_by_row"]) == ["200mbit-before-relu-block4-4"]
    none = said["rows"][0]
    assert none["total_s"] > none["raw_sent_bytes"] * 8 / 200e6, "faster than the link"
    assert none["stalled_s"] > none["computation_s"], "the link is what limits it"


def test_the_wire_carries_what_the_codecs_promise(recorded):
    _, _, said = recorded
    elements = 64 * (32 * 42 * 42 + 160 * 7 * 7)
    for row, bits in zip(said["rows"], (32, 8, 4.25), strict=True):
        assert row["raw_sent_bytes"] == row["raw_received_bytes"] == 4 * elements
        for way in ("sent_bytes", "received_bytes"):
            assert elements * bits / 8 < row[way] < 1.01 * elements * bits / 8 + 10_000
        assert row["ratio"] == pytest.approx(bits / 32, rel=0.02)


def test_rows_have_the_documents_columns_and_the_raw_samples(recorded):
    folder, _, said = recorded
    assert [row["row"] for row in said["rows"]] == NAMES
    for line, row in zip(said["table"], said["rows"], strict=True):
        assert line.keys() > COLUMNS and "-" not in line.values()
        record = Record.load(folder / "two-machines" / f"{row['row']}.json")
        assert record.entries() == row
        assert {len(values) for name, values in record.samples.items() if name != COMPUTATION} == {2}
        assert row["total_s"] == pytest.approx(statistics.median(record.samples["seconds"]), rel=1e-3)
        assert record.command.startswith("thinpipe reproduce two-machines --tiny") and record.machine.versions["pyzmq"]
        one_way = (row["sent_bytes"] + row["received_bytes"]) / 2 / MEGABYTE
        assert row["average_mb_s"] == pytest.approx(one_way / row["computation_s"], rel=1e-3)
        assert row["average_wall_mb_s"] == pytest.approx(one_way / row["total_s"], rel=1e-3)
        assert row["throughput"] == pytest.approx(64 / row["total_s"], rel=1e-3)
        assert 0 < row["average_wall_mb_s"] <= row["peak_server_mb_s"]


SMALL = "conv:20k3s3/conv:40"


@pytest.fixture(scope="module")
def more(recorded):
    """What another run into the same folder said: over another link, with another codec, and with a bottleneck."""
    words = ("--via", "emulated", "--codecs", "had:4", "--bottlenecks", SMALL, "--batches", 1)
    done = measure(*words, "--output", recorded[0], "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["rows"]


def test_the_computation_is_one_measurement_for_all_codecs_and_links(recorded, more):
    folder, _, said = recorded
    names = sorted(path.name for path in (folder / "two-machines-computation").iterdir())
    assert names == ["before-relu-conv20k3s3-conv40-4.json", "before-relu-none-4.json"]
    alone = Record.load(folder / "two-machines-computation" / names[1]).samples[COMPUTATION]
    assert len(alone) >= 10
    for row in (*said["rows"], more[0]):
        # What was disturbed, so that a batch took less, is measured again.
        assert row["samples"][COMPUTATION] == alone or statistics.median(row["samples"]["seconds"]) < max(alone)
        assert row["computation_s"] == pytest.approx(statistics.median(row["samples"][COMPUTATION]), rel=1e-3)


def test_a_bottleneck_sends_what_it_makes_and_is_compared_with_what_there_was_before(more):
    row = more[1]
    assert row["row"] == "full-before-relu-conv20k3s3-conv40-4"
    plain, sent = 64 * (32 * 42 * 42 + 160 * 7 * 7), 64 * (20 * 14 * 14 + 40 * 7 * 7)
    assert row["raw_sent_bytes"] == row["raw_received_bytes"] == 4 * sent
    assert row["ratio"] == pytest.approx(sent / plain, rel=0.02)


def test_a_computation_longer_than_a_batch_is_measured_again_and_the_quicker_one_counts(tmp_path):
    seconds = iter([[0.5] * 3, [0.3] * 3, [0.4] * 3])
    found = Computation(lambda _: next(seconds), lambda _: {"chunks": 4}, tmp_path, is_again=False)
    row = Row("1gbit", "before-relu", "wave:4", 4)
    assert found.of(row) == [0.5] * 3 and is_less([0.35, 0.9, 0.35], found.of(row))
    assert found.again(row) == [0.3] * 3 and not is_less([0.35, 0.9, 0.35], found.of(row))
    assert found.again(row) == [0.3] * 3, "what is slower was disturbed"
    kept = Computation(lambda _: [9.0], lambda _: {"chunks": 4}, tmp_path, is_again=False)
    assert kept.of(Row("full", "before-relu", "none", 4)) == [0.3] * 3, "it is what is recorded, too"
    assert Computation(lambda _: [9.0], lambda _: {"chunks": 8}, tmp_path, is_again=False).of(row) == [9.0]


def test_real_images_are_the_first_that_a_training_would_see(tmp_path):
    write_files(tmp_path)
    weights = tmp_path / "weights"
    (weights / WEIGHTS).rename(weights / resolved("cifar10-finetune").weights)
    work = Work(cut="before-relu", images="cifar10", data_dir=str(tmp_path))
    inputs, targets = work.batch(4)
    assert inputs.shape == (4, 3, 224, 224) and targets.shape == (4,)
    assert work.name.startswith("cifar10-finetune?cut=before-relu&") and "momentum=0.1" in work.name


def test_the_recipe_has_the_step_of_the_report():
    recipe = resolved("two-machines")
    assert (recipe.cut, recipe.batch, recipe.chunks) == ("before-relu", 64, 4)
    assert (recipe.lr, recipe.momentum, recipe.weight_decay) == (0.005 * 4, 0.1, 0.0)


def test_a_row_that_is_recorded_is_not_measured_again(recorded):
    _, words, said = recorded
    began = time.monotonic()
    output = CliRunner().invoke(app, [*TINY, *map(str, words), "--json"]).stdout
    assert json.loads(output.splitlines()[-1])["rows"] == said["rows"]
    assert time.monotonic() - began < 5, "something was run"


def test_a_row_that_was_measured_in_another_way_is_not_overwritten(recorded):
    _, words, _ = recorded
    said = run(*TINY, *words, "--batch", 32, fails=True)
    assert "was recorded with batch=64, and it is 32 now" in said and "--again" in said


def test_the_page_draws_both_charts_of_the_documents(recorded, tmp_path):
    folder, _, said = recorded
    run("bench", "page", "--results", folder, "--docs", tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert f"| 200mbit | before-relu | none | 4 | 1.000 | {said['rows'][0]['average_mb_s']:.1f} |" in page
    names = {"two-machines.svg", "two-machines-average.svg", "two-machines-time.svg"}
    assert {picture.name for picture in (tmp_path / "img").iterdir()} == names
    assert all(f"(img/{name})" in page for name in names)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_wire_of_the_kernel_joins_them_with_keys():
    words = ("--bandwidth", "500mbit", "--via", "namespaces", "--bottlenecks", "none", "--batches", 1, "--json")
    done = measure(*words, "--codecs", "block:4")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    (row,) = said["rows"]
    assert row["settings"]["wire"] == "namespaces" and row["settings"]["encrypted"]
    assert said["none_over_block4"] is None


@contextmanager
def serving(*offers):
    words = [word for offer in offers for word in ("--offer", offer)]
    command = [sys.executable, "-u", "-m", "thinpipe", "serve", "--listen", "127.0.0.1:0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said = iter(process.stdout.readline, "")
        yield next(found[1] for line in said if (found := re.search(r"listens at (\S+:\d+)", line))), process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_rows_are_kept_when_a_server_that_was_there_goes_away(tmp_path):
    with serving(Work(cut="before-relu", tiny=True).factory) as (address, server):
        words = ("--connect", address, "--codecs", "block:4,none", "--batches", 1, "--output", tmp_path)
        words += ("--bottlenecks", "none")
        command = [sys.executable, "-m", "thinpipe", *TINY, *map(str, words), "--bandwidth", "500mbit"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        first = tmp_path / "two-machines" / "500mbit-before-relu-block4-4.json"
        deadline = time.monotonic() + 60
        while not first.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        server.kill()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors
    assert "row 500mbit-before-relu-none-4: PeerLost" in errors and "1 rows are recorded" in errors
    record = Record.load(first)
    assert record.results["computation_s"] is None
    assert Work(cut="before-relu", tiny=True, dry=True).factory in record.notes[0], "it says what the server must offer"


def test_nobody_at_the_address_is_an_error_and_no_wait():
    done = measure("--connect", "127.0.0.1:9", "--codecs", "none")
    assert done.returncode == 1 and "127.0.0.1:9" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--bandwidth", "fast"), "is not a rate"),
        (("--cut", "middle"), "there is no cut 'middle'; there are before-relu, pooled"),
        (("--codecs", "blok:4"), "blok"),
        (("--codecs", "none/none/none"), "there are two cuts"),
        (("--chunks", "0"), "whole numbers from 1"),
        (("--rows", "9gbit-*"), "no row matches"),
        (("--via", "pigeon"), "there is no way 'pigeon'"),
        (("--via", "emulated", "--connect", "10.0.0.7:5555"), "--connect has its own"),
        (("--key", "alice.key"), "add --connect"),
        (("--bottlenecks", "conv:20k3s3"), "there are two cuts; write a bottleneck for each"),
        (("--bottlenecks", "convolution:3"), "no bottleneck is called"),
        (("--images", "cifar10"), "--tiny has images of its own"),
        (("--data-dir", "data"), "add --images cifar10"),
        (("--device", "abacus"), "there is no device 'abacus'"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, why):
    # Typer draws a frame around what it says.
    assert why in re.sub(r"[│\s]+", " ", run(*TINY, *words, fails=True))


def test_the_list_names_every_table():
    assert "two-machines" in run("reproduce", "--list")


def test_rows_are_found_by_pattern(recorded):
    _, words, said = recorded
    output = CliRunner().invoke(app, [*TINY, *map(str, words), "--rows", "*-block4-*,*-none-*", "--json"]).stdout
    assert json.loads(output.splitlines()[-1])["rows"] == [said["rows"][0], said["rows"][2]]


def test_every_row_of_the_page_has_a_name_of_its_own():
    assert len(set(order())) == len(order()) == 5 * len(CHUNKS) * (2 * len(CODECS) + len(BOTTLENECKS))
    assert Row("1gbit", "before-relu", "power:3/3/power:7/3", 8).codecs == ("power:3/3", "power:7/3")
    assert {"none", "wave:4", "had:4"} < set(CODECS)
    assert Row("1gbit", "before-relu", "none", 8).codecs == (None, None)
    assert Row("1gbit", "before-relu", "block:4/32/none", 8).codecs == ("block:4/32", None)


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{method(row.codec, row.bottleneck)}-{row.chunks}")
def test_the_average_is_what_the_documents_mean_by_it(row):
    # Batches of 64: 401408 and 62720 elements a row at the two cuts, one way; theirs are nominal bytes.
    numbers = 401408 + 62720
    size = round(64 * numbers * 4 * row.ratio)
    zeros = dict.fromkeys(StepCost.__dataclass_fields__, 0.0)
    cost = StepCost(**zeros | {"step": 1, "rows": 64, "seconds": row.total, "sent": size, "received": size})
    found = figures([cost], [row.computation], 4 * numbers)
    # They print ratios of 0.070, 0.097 and 0.101, and compute with 0.0676, 0.0879 and 0.1013.
    assert found["average_mb_s"] == pytest.approx(row.average, rel=0.11 if row.bottleneck == CONV["0.097"] else 0.05)
    assert found["ratio"] == pytest.approx(row.ratio, abs=1e-4)
    assert printed(row.codec, row.bottleneck, row.chunks) is row


def test_theirs_stand_beside_ours_and_in_the_charts(recorded):
    folder, _, _ = recorded
    record = Record.load(folder / "two-machines" / f"{NAMES[0]}.json")
    both = Record(**{**record.__dict__, "published": printed("none", "none", 4).figures()})
    sheet = published_sheet([both])
    assert sheet.lines[0][sheet.heads.index("total")].endswith(" (2.150)")
    assert bars([both], "total_s")["none, published"] == {"1 chunk": 2.47, "4 chunks": 2.15, "8 chunks": 2.07}
    assert "none, published" not in bars([record], "total_s")


@pytest.mark.parametrize(("cut", "small"), [("before-relu", "none"), ("pooled", "none"), ("before-relu", SMALL)])
def test_without_anything_on_the_wire_all_of_it_is_still_computed(cut, small):
    wet, dry = (Work(cut=cut, bottleneck=small, tiny=True, dry=dry) for dry in (False, True))
    inputs, targets = wet.batch(4)
    parts = dry.parts()
    sent = parts.first(inputs)
    back = parts.middle(sent)
    assert sent.shape == back.shape == (4, 1)
    parts.loss_fn(parts.last(back), targets).backward()
    layers = lambda own: [type(x) for x in nn.Sequential(own.first, own.middle, own.last).modules()]  # noqa: E731
    real, idle = layers(wet.parts()), layers(parts)
    assert [kind for kind in idle if kind in real] == real
    assert all(p.grad is not None and p.grad.isfinite().all() for p in parts.first.parameters())
    assert all(p.grad is not None and p.grad.any() for p in parts.middle.parameters())
    assert torch.equal(parts.first(inputs), parts.first(inputs))


# -- accuracy: a client and a server that train from the first epoch to the last ---------------------------------------

ACCURATE = ("reproduce", "two-machines-accuracy", "--tiny")


@pytest.fixture(scope="module")
def accurate(tmp_path_factory):
    """Two rows trained with a server, in a folder; with it, what the last line said."""
    folder = tmp_path_factory.mktemp("accuracy")
    words = ("--rows", "chunks4-none,chunks4-conv20k3s3-*", "--epochs", 2, "--output", folder, "--json")
    result = CliRunner().invoke(app, [*ACCURATE, *map(str, words)])
    assert result.exit_code == 0, result.output
    return folder, json.loads(result.stdout.splitlines()[-1])


def test_a_server_trains_what_the_same_stages_in_one_process_train(accurate, tmp_path):
    folder, said = accurate
    record = Record.load(folder / "two-machines-accuracy" / "chunks4-none-seed0.json")
    assert record.entries() == said["rows"][0] and record.settings["served"]
    recipe = record.settings["recipe"]
    words = [f"--set={name}={recipe[name]}" for name in ("cut", "batch", "chunks", "epochs", "lr", "momentum", "seed")]
    run("train", "digits", "--stages", 3, *words, "--run", tmp_path / "run")
    alone = [line for line in RunFolder(tmp_path / "run").lines() if isinstance(line, EvaluationLine)]
    assert recipe["chunks"] == 4 and record.samples["accuracy"] == [line.accuracy for line in alone]
    assert record.samples["test_loss"] == pytest.approx([line.loss for line in alone])
    assert record.published["accuracy"] == 0.9604 and record.results["float32_ratio"] == pytest.approx(1, abs=0.01)


def test_both_sides_begin_with_the_bottlenecks_that_the_client_has_fitted(accurate):
    folder, said = accurate
    row = said["rows"][1]
    assert row["published"] == {"accuracy": 0.9601, "accuracy_deviation": None, "ratio": 0.097}
    assert row["float32_ratio"] == pytest.approx((12 * 4 * 4 + 18 * 4 * 4) / (16 * 8 * 8 + 64 * 4 * 4), rel=0.05)
    assert "ratio_cut_1" not in row, "a client counts both cuts together"
    run_folder = folder / "runs" / "two-machines-accuracy" / row["row"]
    assert (run_folder / "bottleneck.safetensors").exists()
    assert not (run_folder / "server").exists() and not (run_folder / "states").exists()


def test_a_training_that_was_interrupted_goes_on_with_both_sides(tmp_path):
    command = [sys.executable, "-m", "thinpipe", *ACCURATE, "--rows", "chunks1-none", "--epochs", "8"]
    command += ["--output", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    path = tmp_path / "runs" / "two-machines-accuracy" / "chunks1-none-seed0"
    deadline = time.monotonic() + 90
    while not any(isinstance(line, EvaluationLine) for line in RunFolder(path).lines(lenient=True)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "the same command goes on" in errors, errors
    before = [line.step for line in RunFolder(path).lines() if isinstance(line, StepLine)]
    assert (path / "server").exists() and len(before) < 96
    done = CliRunner().invoke(app, [*command[3:], "--json"])
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    steps = [line.step for line in RunFolder(path).lines() if isinstance(line, StepLine)]
    assert steps == list(range(row["steps"])) and len(row["samples"]["accuracy"]) == 8


def test_rows_train_with_the_step_of_the_report_and_have_its_accuracies():
    table = TABLES["two-machines-accuracy"]
    assert {row.name: row.published.value for row in table.rows if row.published.value is not None} == {
        **{f"chunks{m}-none": value for m, value in ((1, 0.9586), (4, 0.9604), (8, 0.9594))},
        **{f"chunks{m}-conv20k3s3-conv360": 0.9601 for m in (1, 4, 8)},
        **{f"chunks{m}-conv20k4s4-conv320": value for m, value in ((1, 0.9589), (4, 0.9589), (8, 0.9587))},
        **{f"chunks{m}-power3-3-power7-3": 0.9554 for m in (1, 4, 8)},
    }
    for row in table.rows:
        recipe = resolved(row.work.recipe, {**row.work.changes, "cut": row.cut})
        assert recipe.cut == "before-relu" and recipe.batch == 64 and recipe.epochs == 40
        assert (recipe.lr, recipe.momentum, recipe.weight_decay) == (0.005 * recipe.chunks, 0.1, 0.0)
    moved = next(row for row in table.rows if row.name == "chunks8-power3-3-power7-3")
    assert "printed with 4 chunks" in moved.published.note
