"""Every table's command runs, small, on CPU cores, and records what it ran."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from thinpipe.bench.cores import BENCH
from thinpipe.bench.devices import Devices, as_published
from thinpipe.bench.record import Record
from thinpipe.bench.rows import UNET_SPEED
from thinpipe.bench.speed import Length, measure_speed
from thinpipe.bench.timeline import covered
from thinpipe.bench.workload import tiny
from thinpipe.cli import app
from thinpipe.errors import DeviceError


def bench(*words, fails=False, verb="bench"):
    result = CliRunner().invoke(app, [verb, *words])
    assert fails == (result.exit_code != 0), result.output
    if fails:
        return " ".join(result.output.replace("│", " ").split())  # out of the box it is drawn in
    return json.loads(result.stdout.splitlines()[-1])


def small(command, *words, output):
    # By the other verb, under which every published table is: the commands are the same.
    return bench(command, "--tiny", "--devices", "cpu:8", "--json", "--output", str(output), *words, verb="reproduce")


@pytest.mark.parametrize("command", ["unet-memory", "amoebanet-memory"])
def test_memory_on_the_cpu_trains_and_counts_parameters_only(command, tmp_path):
    run = small(command, "--rows", "baseline,pipeline-1,pipeline-8", output=tmp_path)
    assert [row["row"] for row in run["rows"]] == [
        f"{row}-tiny-cpu" for row in ("baseline", "pipeline-1", "pipeline-8")
    ]
    for row in run["rows"]:
        assert row["parameters"] > 0 and len(row["samples"]["step"]) == 2
        assert row["reserved_gib"] is row["allocated_gib"] is None
        assert "not measurable on CPU" in row["notes"][0]
        assert row["settings"]["limit_gib"] is None, "the limit is of GPUs"
    record = Record.load(tmp_path / command / "pipeline-8-tiny-cpu.json")
    assert len(record.settings["balance"]) == 8 and not record.settings["gradients_cleared"]
    published = {"unet-memory": (154.1, None, None), "amoebanet-memory": (None, 20.62, 10.83)}[command]
    assert tuple(record.published.values()) == published


def test_a_limit_that_is_not_the_rows_own_is_in_the_name_of_its_record():
    words = ("amoebanet-memory", "--tiny", "--devices", "cpu:1", "--rows", "baseline,pipeline-1", "--json")
    for limit, names in (
        (0, ["baseline-tiny-no-limit", "pipeline-1-tiny"]),
        (22, ["baseline-tiny", "pipeline-1-tiny-limit-22"]),
    ):
        run = bench(*words, "--limit", str(limit))
        assert [row["row"].removesuffix("-cpu") for row in run["rows"]] == names


def test_memory_of_real_rows_is_refused_on_the_cpu():
    assert "not measurable on CPU" in bench("unet-memory", "--devices", "cpu:8", fails=True)


@pytest.mark.parametrize(
    ("command", "rows"),
    [("unet-speed", "baseline,pipeline-1,pipeline-4"), ("resnet-speed", "baseline,pipeline-2")],
)
def test_speed_is_set_beside_the_baseline_and_the_published(command, rows, tmp_path):
    run = small(command, "--rows", rows, "--steps", "1", "--epochs", "2", output=tmp_path)
    assert [line["row"] for line in run["table"]] == [f"{row}-tiny-2x1-cpu" for row in rows.split(",")]
    assert run["table"][0]["speed-up"] == "1.000x"
    assert all(float(line["speed-up"].removesuffix("x")) > 0 for line in run["table"])
    for row in run["rows"]:
        assert row["throughput"] > 0 and row["published"]["throughput"] > 0
        assert (row["settings"]["epochs"], row["settings"]["steps"]) == (2, 1)
        assert len(row["samples"]["epoch"]) == 1
        assert Record.load(tmp_path / command / f"{row['row']}.json").results["throughput"] == row["throughput"]


def test_rows_that_do_not_fit_the_devices_are_left_out_or_refused():
    run = bench("unet-speed", "--tiny", "--devices", "cpu:1", "--steps", "1", "--epochs", "2", "--json")
    fitting = ("baseline", "pipeline-1", "pipeline-1-cheap", "pipeline-1-torchgpipe")
    assert [row["row"] for row in run["rows"]] == [
        f"{row}{way}-tiny-2x1-cpu" for row in fitting for way in ("", "-in-place")
    ]
    assert "4 devices" in bench("unet-speed", "--tiny", "--devices", "cpu:2", "--rows", "pipeline-4", fails=True)
    assert "did you mean pipeline-" in bench("unet-speed", "--tiny", "--rows", "pipeline-3", fails=True)


def test_cells_on_cores_are_set_beside_their_ideal_and_torchgpipe(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "65536")
    words = ["--rows", "n2m1,n2m4", "--fixed-batch", "8", "--rounds", "1"]
    run = small("amoebanet-speed", *words, output=tmp_path)
    assert run["bench"] == BENCH
    by_row = {row["row"].partition("-")[0]: row for row in run["rows"]}
    assert {row["row"].partition("-")[2] for row in run["rows"]} == {
        "tiny-published-model-published-pixels-batch-8-published-checkpoint"
    }
    assert {row["settings"]["batch"] for row in run["rows"]} == {8}
    assert by_row["n2m4"]["ideal_equal_stages"] == pytest.approx(8 / 5)
    for row in run["rows"]:
        assert 0 < row["ideal_partition"] <= row["ideal_equal_stages"]
        assert row["speedup"] > 0 and row["of_ideal"] > 0 and row["total_over_largest"] >= 1
        assert len(row["settings"]["stage_forward_seconds"]) == len(row["settings"]["balance"])
        assert len(row["settings"]["stage_forward_seconds_at_once"]) == len(row["settings"]["balance"])
        assert min(row["settings"]["stage_backward_seconds_at_once"]) > 0
        # There is one round: the figures are of its samples.
        (bare,), (ours,), (ideal,) = (row["samples"][name] for name in ("bare", "thinpipe", "ideal at once"))
        assert row["ideal_at_once"] == pytest.approx(bare / ideal)
        assert row["of_ideal_at_once"] == pytest.approx(ideal / ours) and ideal > 0
        assert "torchgpipe" in row["machine"]["versions"]
        assert row["settings"]["workers"] == "processes"
        assert row["settings"]["environment"]["MALLOC_TOP_PAD_"] == "65536"
        assert {len(seconds) for seconds in row["samples"].values()} == {1}
    assert {name: row["settings"]["schedule"] for name, row in by_row.items()} == {"n2m1": "zb", "n2m4": "1f1b"}
    assert by_row["n2m1"]["settings"]["checkpoint"] == "always" and by_row["n2m1"]["notes"] == []
    # Processes cannot keep the last micro-batch's activations alone: all variants recompute it, and the record says so.
    assert by_row["n2m4"]["settings"]["checkpoint"] == "always"
    assert "not all but the last" in by_row["n2m4"]["notes"][0]
    assert "one core" in by_row["n2m4"]["samples"] and "one core" not in by_row["n2m1"]["samples"]
    assert (tmp_path / BENCH / f"{by_row['n2m4']['row']}.json").exists()
    assert run["table"][0]["ours over n2m1"] == "1.000x" and run["table"][1]["ours over n2m1"] != "-"


def test_threads_recompute_as_published(tmp_path):
    words = ["--rows", "n8m4", "--fixed-batch", "8", "--rounds", "1", "--workers", "threads"]
    run = small("amoebanet-speed", *words, output=tmp_path)
    row = run["rows"][0]
    assert row["settings"]["workers"] == "threads" and row["settings"]["pinned_to"] is None
    assert row["ideal_at_once"] is row["of_ideal_at_once"] is None
    assert run["table"][0]["ideal, at once"] == run["table"][0]["ours/at once"] == "-"
    assert row["settings"]["checkpoint"] == "except_last" and row["notes"] == []
    assert 0 < row["ideal_partition"] <= row["ideal_equal_stages"] and row["speedup"] > 0


def test_cells_take_another_model_size_of_images_and_checkpoint_mode():
    words = ["--rows", "n2m4", "--model", "6,16", "--pixels", "64", "--checkpoint", "never", "--rounds", "1"]
    row = bench("amoebanet-speed", "--tiny", "--devices", "cpu:2", "--json", *words)["rows"][0]
    assert row["settings"]["sizes"] == [6, 16] and row["settings"]["checkpoint"] == "never"
    assert row["row"] == "n2m4-tiny-6-16-64px-published-batch"
    assert "as 18,64" in bench("amoebanet-speed", "--model", "big", fails=True)
    assert "multiple of 3" in bench("amoebanet-speed", "--model", "4,16", fails=True)
    assert "none of always" in bench("amoebanet-speed", "--checkpoint", "often", fails=True)


def test_the_timeline_is_set_beside_the_published_four(tmp_path):
    run = small("unet-timeline", "--steps", "2", "--epochs", "2", output=tmp_path)
    assert [line["row"].split(",")[0] for line in run["table"]] == [
        *("baseline", "dep-x-x", "dep-str-x", "dep-str-ptl"),
        *("thinpipe-tiny-2x2-cpu", "thinpipe-in-place-tiny-2x2-cpu"),
    ]
    for row in run["rows"]:
        assert row["throughput"] > 0 and 0 < row["utilization"] <= 1
    assert [row["settings"]["in_place"] for row in run["rows"]] == [False, True]
    assert "rows that can be run" in bench("unet-timeline", "--rows", "dep-x-x", fails=True)


def test_a_row_is_measured_as_long_as_published_if_asked():
    table = tiny(UNET_SPEED)
    length = Length.of(3, 1, published=True)
    record = measure_speed(table, replace(table.rows[0], batch=16), [torch.device("cpu")], length=length)
    assert (record.settings["epochs"], record.settings["steps"], record.settings["samples_an_epoch"]) == (10, 3, 40)
    assert len(record.samples["epoch"]) == 9, "the first is not counted"
    usual = Length(3, 10)
    assert [Length.of(*each, published=False).different(usual) for each in ((3, 10), (3, 6), (5, 0))] == [
        *("", "3x6", "5-whole-epochs"),
    ]
    assert length.different(usual) == "published-epochs"


def test_covered_time_is_counted_once_where_kernels_overlap():
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert covered([]) == 0


def test_devices_are_read_as_they_are_written():
    assert Devices.parse("cpu:3").take(2) == [torch.device("cpu")] * 2
    with pytest.raises(DeviceError, match="4 stages need 4 devices"):
        Devices.parse("cpu:3").take(4)
    for text in ("cpu", "cpu:0", "cpu:x", "gpu", "cuda:99"):
        with pytest.raises(DeviceError, match="write"):
            Devices.parse(text)


def test_one_gpu_that_is_named_takes_all_stages_and_a_list_of_them_does_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    one, two = Devices.parse("cuda:1"), Devices.parse("cuda:0,cuda:1")
    assert one.fit(8) and one.take(2) == [torch.device("cuda", 1)] * 2
    assert not two.fit(8)
    with pytest.raises(DeviceError, match="list a device more than once"):
        two.take(3)


def test_surroundings_are_put_back():
    torch.set_num_threads(2)
    try:
        with as_published(autotune=True):
            assert torch.get_num_threads() == 1 and torch.backends.cudnn.benchmark
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_num_threads() == 2 and not torch.backends.cudnn.benchmark
    finally:
        torch.set_num_threads(1)
