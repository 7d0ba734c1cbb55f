"""What codecs do to tensors is measured on real ones, recorded, and drawn; the last line is JSON."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import thinpipe
from thinpipe.bench.capture import save
from thinpipe.bench.codecs import FAST, quality, splits, synthetic, table_rows
from thinpipe.bench.codecs_command import parse_specs
from thinpipe.bench.codecs_methods import SPECS, default_specs, ours, peers, sorting
from thinpipe.bench.record import Record
from thinpipe.bench.svg import point_chart
from thinpipe.cli import app

SVG = "{http://www.w3.org/2000/svg}"
MEASURES = {"ratio", "bits", "error", "cosine", "signs", "sums", "encode", "decode"}


def bench(*words, fails=False):
    result = CliRunner().invoke(app, ["bench", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.replace("│", " ").split()) if fails else result.stdout


def test_without_tensors_of_its_own_it_measures_a_network_on_digits_and_a_gaussian():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    shown = bench("codecs", "--tiny", "--repeats", 1, "--json")
    run = json.loads(shown.splitlines()[-1])
    assert run["sort_encode_speedup"] > 0
    assert all(run[key][spec] > 0 for key in ("encode_gbs", "decode_gbs") for spec in FAST)
    assert list(run["tensors"]) == [
        *("digits-cut1-activation", "digits-cut1-gradient", "digits-cut2-activation", "digits-cut2-gradient"),
        "gaussian",
    ]
    for codecs in run["tensors"].values():
        assert set(default_specs()[0]) <= set(codecs)
        assert all(set(values) == MEASURES for values in codecs.values())
    assert all(spec in shown for spec in default_specs()[0])
    assert set(run["sort_splits"]["gaussian"]) == set(splits())
    assert "torch.sort" in shown and "recorded" not in shown


def test_a_folder_of_tensors_is_measured_recorded_and_drawn(tmp_path):
    pytest.importorskip("safetensors")
    draw = torch.Generator().manual_seed(1)
    captured = {
        f"{network}-{cut}": {kind: torch.randn(2, 4, 8, 8, generator=draw) for kind in ("activation", "gradient")}
        for network in ("mobilenetv2", "minilm")
        for cut in ("cut1", "cut2")
    }
    save(tmp_path / "tensors", captured, "a test")
    results, docs = tmp_path / "results", tmp_path / "docs"
    words = ("--tiny", "--repeats", 1, "--specs", "none,block:4,topk:0.1|uniform:8", "--output", results)
    bench("codecs", "--tensors", tmp_path / "tensors", *words)
    record = Record.load(results / "codecs" / "minilm-cut2-gradient.json")
    packet = thinpipe.codec("block:4").encode(captured["minilm-cut2"]["gradient"])
    assert table_rows(record)["block:4"]["ratio"] == pytest.approx(packet.nbytes / (4 * 512), rel=1e-5)
    assert len(record.samples["encode block:4"]) == 1
    bench("page", "--results", results, "--docs", docs)
    page = (docs / "benchmarks.md").read_text()
    assert r"topk:0.1\|uniform:8" in page and "sort:6+2 by torch.sort" in page
    tables = re.findall(r"(?:^\|.*\n)+", page[page.index("## Codecs") :], re.MULTILINE)
    assert len(tables) == 4  # two on tensors, one of splits, one of speed
    for table in tables:
        assert len({line.replace(r"\|", "").count("|") for line in table.splitlines()}) == 1
    for name in ("activations", "gradients", "splits", "speed"):
        picture = ElementTree.parse(docs / "img" / f"codecs-{name}.svg").getroot()
        assert picture.find(f"{SVG}desc").text


def test_a_device_is_timed_beside_a_clone(tmp_path):
    words = ("codecs", "--device", "cpu", "--tiny", "--repeats", 2, "--specs", "block:4,sort:6+2", "--output", tmp_path)
    shown = bench(*words, "--json")
    assert "in clones" in shown
    record = Record.load(tmp_path / "codecs" / "speed-cpu.json")
    assert record.results["block:4 encode over clone"] > 0 and len(record.samples["clone"]) == 2


def test_a_device_that_there_is_not_is_refused():
    assert "nonsense" in bench("codecs", "--device", "nonsense", "--tiny", fails=True)


def test_a_record_names_no_folders_of_its_machine(tmp_path):
    pytest.importorskip("safetensors")
    save(tmp_path / "mine", {"x": {"activation": torch.ones(40)}}, "a test")
    words = ["codecs", "--tensors", str(tmp_path / "mine"), "--tiny", "--specs=none", f"--output={tmp_path / 'there'}"]
    subprocess.run([sys.executable, "-m", "thinpipe", "bench", *words], check=True, capture_output=True, timeout=100)
    record = Record.load(tmp_path / "there" / "codecs" / "x-activation.json")
    assert record.command == "thinpipe bench codecs --tensors TENSORS --tiny --specs=none --output=OUTPUT"


def test_an_unknown_codec_is_pointed_at():
    message = bench("codecs", "--tiny", "--specs", "block:4,bloc:4", fails=True)
    assert "no codec is called 'bloc'" in message and "did you mean block:B/G?" in message


def test_a_folder_without_tensors_says_what_writes_some(tmp_path):
    assert "thinpipe bench capture writes some" in bench("codecs", "--tensors", tmp_path, fails=True)


def test_a_comma_before_an_option_does_not_end_a_codec():
    text = "block:4,sr, none,uniform:4,zero,sr,topk:0.1,own|uniform:8,ef(block:4,sr),none"
    assert parse_specs(text) == (
        *("block:4,sr", "none", "uniform:4,zero,sr", "topk:0.1,own|uniform:8"),
        "ef(block:4,sr)",
    )


def test_every_codec_of_the_catalogue_is_in_the_default_list():
    names = {name for spec in SPECS for name in re.findall(r"(?:^|\|)([a-z0-9]+)", spec)}
    assert names == set(thinpipe.codecs.CATALOGUE)


def test_every_split_of_the_bits_is_swept():
    assert len(splits()) == 3 + 5 + 7 + 8 + 8
    assert all(thinpipe.codec(spec).spec == spec for spec in splits())


def test_what_is_exact_has_no_error_and_what_is_zero_has_no_direction():
    x = torch.tensor([0.0, -1.0, 2.0, 0.5])
    exact = quality(x, ours("none"))
    assert (exact["error"], exact["signs"]) == (0, 1) and exact["cosine"] == pytest.approx(1)
    assert exact["ratio"] == thinpipe.codec("none").nbytes([4]) / 16 and exact["bits"] == 32 * exact["ratio"]
    assert quality(x, ours("topk:0.25"))["signs"] == pytest.approx(1 / 3)
    nothing = quality(torch.zeros(8), ours("block:4"))
    assert nothing["error"] is nothing["cosine"] is nothing["signs"] is nothing["sums"] is None


def test_errors_that_lean_to_one_side_are_told_by_the_sums_of_channels():
    x = torch.zeros(8, 4, 16, 16)
    x[0, :, 0, 0] = torch.tensor([1.0, 2.0, 3.0, -4.2])  # of a grid without a 0
    known = {spec: quality(x, ours(spec)) for spec in ("none", "uniform:8", "uniform:8,zero")}
    assert known["none"]["sums"] == 0
    assert known["uniform:8"]["sums"] > 1 > 0.1 > known["uniform:8,zero"]["sums"]


def test_the_encoder_that_sorts_does_the_same_work_as_ours():
    x = synthetic((2, 8, 16, 16))
    theirs, mine = quality(x, sorting()), quality(x, ours("sort:6+2"))
    assert theirs["error"] == pytest.approx(mine["error"], rel=0.01)
    assert sorting().nbytes(sorting().encode(x)) == x.numel() + 2 * 4 * 4


def test_bitsandbytes_is_compared_where_it_is_installed():
    found, missing = peers()
    if not found:
        assert missing == ["bitsandbytes was left out: it is not installed"]
    for method in found:
        assert quality(synthetic((2, 8, 16, 16)), method)["error"] < 0.02


def test_points_without_a_place_on_a_scale_of_powers_are_left_out():
    points = {"a < b": {"c & d": (4.0, 1e-3), "exact": (32.0, 0.0), "e": (4.0, 1e-3)}, "f": {}}
    root = ElementTree.fromstring(point_chart("t", "error", "bits", points, joined=False))
    assert len(root.findall(f"{SVG}circle")) == 2
    assert "exact: 0 at 32" in root.find(f"{SVG}desc").text
    heights = [text.get("y") for text in root.findall(f"{SVG}text") if text.text in ("c & d", "e")]
    assert len(heights) == 2


@pytest.mark.parametrize("command", ["codecs", "capture"])
def test_the_command_explains_itself(command):
    assert len(bench(command, "--help")) > 1000
