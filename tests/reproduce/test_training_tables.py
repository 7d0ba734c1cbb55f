"""``thinpipe reproduce`` trains the rows of the documents' tables, small here, and sets theirs beside ours."""

import io
import json
import math
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers
from rich.console import Console
from typer.testing import CliRunner

from thinpipe.bench.command import bench_app
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet
from thinpipe.bench.svg import Curve, plot
from thinpipe.cli import app
from thinpipe.reproduce.command import reproduce_app
from thinpipe.reproduce.entries import ENTRIES
from thinpipe.reproduce.training.ask import Ask, Job, reads_texts
from thinpipe.reproduce.training.crossed import Crossed, read_crossed
from thinpipe.reproduce.training.figures import Ran
from thinpipe.reproduce.training.rows import records_in
from thinpipe.reproduce.training.run import recorded
from thinpipe.reproduce.training.show import _grids
from thinpipe.reproduce.training.table import NONE
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.runtime.crossing import Flow
from thinpipe.train import resolved
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from train.small import write_glue
from train.test_encoders import BERT, SIZES, save

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["sortquant-cifar10", "sortquant-cifar100", "sortquant-food101", "sortquant-rte", "sortquant-cola"]
NAMES += ["sortquant-cifar10-small", "sortquant-cifar10-mean", "bottlenecks-cifar10", "ablation-bits"]
NAMES += ["sortquant-cola-simulated", "prune-vs-quant", "prune-vs-quant-small", "cola-recipes", "dp-vs-pipeline"]
NAMES += ["two-machines", "two-machines-accuracy", "unet-memory"]
NAMES += ["amoebanet-memory", "unet-speed", "amoebanet-speed", "resnet-speed", "unet-timeline", "transparency"]
NAMES += [f"short-{name}" for name in ("cifar10", "cifar100", "food101", "scratch", "cola")]
NAMES += ["pipelines-cifar10", "pipelines-rte", "data-parallel"]
# All rows of two tables, and of the others one of each kind.
ROWS = {
    "sortquant-cifar10": "*",
    "sortquant-cifar100": "none,sort6+2",
    "sortquant-food101": "none,had4",
    "sortquant-rte": "none,sort3+1",
    "sortquant-cola": "none,power16-2,had2,linear150,linear75-had4,none-linear50",
    "sortquant-cola-simulated": "none,sort6+2",
    "ablation-bits": "cifar10-none,*-sort3+1,cifar10-uniform8,rte-none,rte-uniform4",
    "sortquant-cifar10-small": "*none,*sort6+2",
    "sortquant-cifar10-mean": "none,sort6+2",
    "bottlenecks-cifar10": "*",
    "prune-vs-quant": "none,topk0.1,downsample2,topk0.2-uniform8",
    "cola-recipes": "*",
}
# Bits a number, of what a codec promises; a choice of the greatest costs about as many more as it takes to say which.
BITS = {"none": 32, "block:4": 4.25, "had:4": 4.25, "had:2": 2.25, "wave:4": 4, "wave:2": 2, "downsample:2": 8}


def reproduce(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def said_by(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def trained(folder):
    """Trains a table, small, the first time that it is asked for; tells its last line, and all that it printed."""

    @cache
    def train(name):
        result = reproduce(name, "--tiny", "--rows", ROWS[name], "--output", folder, "--json")
        return said_by(result), result.output

    return train


def row_of(table, name):
    return next(row for row in TABLES[table].rows if row.name == name)


@pytest.mark.parametrize("name", ROWS)
def test_a_table_has_its_rows_with_the_documents_figures_beside_them(name, trained):
    said, output = trained(name)
    names = [line["row"] for line in said["table"]]
    if ROWS[name] == "*":
        assert names == [row.name for row in TABLES[name].rows]
    assert len(names) == len(set(names)) == len(said["rows"]) and not said["skipped"]
    for line, entries in zip(said["table"], said["rows"], strict=True):
        row = row_of(name, line["row"])
        assert (line["codec, cut 1"], line["codec, cut 2"]) == row.codecs and line["cut"] == row.cut
        theirs = row.published
        assert line["published"].startswith("-" if theirs.value is None else f"{100 * theirs.value:.2f}")
        assert line["ratio"] == f"{entries['ratio']:.4g}" and line["cut 2"] == f"{entries['ratio_cut_2']:.4g}"
        assert line["published ratio"] == ("-" if theirs.ratio is None else f"{theirs.ratio:.4g}")
        measure = row.work.measure
        assert entries["published"].get(measure) == theirs.value
        head = "MCC x 100" if measure == "mcc" else "accuracy, %"
        assert line[head] == f"{100 * entries[measure]:.2f}"
    assert "stand-in:" in output and TABLES[name].source in " ".join(output.split())


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_recorded_with_all_it_takes_to_repeat_it(name, trained, folder):
    said, _ = trained(name)
    for entries in said["rows"]:
        path = folder / name / f"{entries['row']}.json"
        record = Record.load(path)
        assert record.entries() == entries and path.name.endswith("-seed0.json")
        assert record.machine.versions["torch"] and record.machine.cores
        settings = record.settings
        assert settings["tiny"] and settings["stand_in"].startswith("stand-in: ") and settings["stages"] == 3
        assert settings["recipe"]["seed"] == 0 and settings["recipe"]["epochs"] == record.results["epochs"]
        epochs = settings["recipe"]["epochs"]
        assert {len(curve) for curve in record.samples.values()} == {epochs}
        assert record.samples["accuracy"][-1] == record.results["accuracy"] <= record.results["best_accuracy"]
        assert record.results["samples_per_second"] > 0 and record.results["seconds"] > 0
        assert not (folder / "runs" / name / entries["row"] / "states").exists(), "nobody goes on from a finished run"


@pytest.mark.parametrize("name", ROWS)
def test_the_bytes_are_those_that_the_codecs_promise(name, trained):
    said, _ = trained(name)
    for entries in said["rows"]:
        codec = entries["settings"]["codec"]
        bits = BITS.get(codec)
        if "bottleneck" in entries["settings"]["recipe"]:
            continue
        if bits is None and (found := re.fullmatch(r"(?:sort|uniform):(\d+)(?:\+(\d+))?", codec)):
            bits = int(found[1]) + int(found[2] or 0)
        if bits is None:
            continue
        for ratio in ("ratio", "ratio_cut_1", "ratio_cut_2"):
            # Headers and masks are a larger share of what is small.
            assert bits / 32 <= entries[ratio] < 1.13 * bits / 32, (codec, ratio)


# What is left of 16 x 8 x 8 and of 64 x 4 x 4 numbers, and of 32 features.
LEFT = {
    "conv20k3s3-conv360": (12 / 64, 18 / 64),
    "conv20k4s4-conv320": (10 / 64, 16 / 64),
    "conv20k4s4-conv320-unfitted": (10 / 64, 16 / 64),
    "conv32k4s4+16-conv360+100": (8 / 64, 5 / 64),
    "conv32k4s4+4-conv400+100": (4 / 64, 5 / 64),
    "conv32k8s8+16-conv300+50": (8 / 256, 4 / 64),
    "conv32k8s8+8-conv300+30": (4 / 256, 3 / 64),
    "linear150": (8 / 32, 8 / 32),
    "linear75": (6 / 32, 6 / 32),
    "none-linear50": (1, 4 / 32),
}


@pytest.mark.parametrize("name", ["bottlenecks-cifar10", "sortquant-cola"])
def test_the_bytes_of_bottlenecks_are_counted_against_the_tensors_before_them(name, trained):
    said, _ = trained(name)
    narrowed = [entries for entries in said["rows"] if "bottleneck" in entries["settings"]["recipe"]]
    assert len(narrowed) == (13 if name == "bottlenecks-cifar10" else 3)
    for entries in narrowed:
        row, codec = entries["row"].removesuffix("-seed0"), entries["settings"]["codec"]
        bits = BITS[codec]
        for number, left in enumerate(LEFT[row.removesuffix(f"-{codec.replace(':', '')}")], 1):
            # A mask crosses the cuts of an encoder, too; headers are a larger share of what is small.
            assert left * bits / 32 <= entries[f"ratio_cut_{number}"] < 1.06 * left * bits / 32 + 0.02, entries["row"]
        assert entries["float32_ratio"] == pytest.approx(entries["ratio"], rel=0.02)


def test_a_row_says_whether_its_bottlenecks_were_fitted_and_where_a_table_has_none_nothing_is_said(trained):
    said, _ = trained("bottlenecks-cifar10")
    shown = {line["row"]: line["bottlenecks"] for line in said["table"]}
    assert shown["none"] == "none" and shown["conv20k4s4-conv320"] == "conv:10k2s2/conv:16"
    assert shown["conv20k4s4-conv320-unfitted"] == "conv:10k2s2/conv:16, not fitted"
    recipes = {entries["row"]: entries["settings"]["recipe"] for entries in said["rows"]}
    assert recipes["conv20k4s4-conv320-seed0"]["bottleneck_fit"] > 0
    assert recipes["conv20k4s4-conv320-unfitted-seed0"]["bottleneck_fit"] == 0
    assert not [key for key in recipes["none-seed0"] if key.startswith("bottleneck")]
    assert "bottlenecks" not in trained("sortquant-cifar100")[0]["table"][0]


def test_each_cut_has_the_codec_that_the_row_says(trained):
    (row,) = (
        row for row in trained("sortquant-cifar10")[0]["rows"] if row["settings"]["codec"] == "power:3/3/power:7/3"
    )
    # 16 maps of 8 x 8, and 64 of 4 x 4: a rank has as many numbers as the matrix has rows and columns.
    assert row["ratio_cut_1"] == pytest.approx(3 * (16 + 64) / (16 * 64), rel=0.01)
    assert row["ratio_cut_2"] == pytest.approx(7 * (64 + 16) / (64 * 16), rel=0.01)
    assert row["float32_ratio"] == pytest.approx(row["ratio"], rel=1e-6)


def test_gradients_may_have_a_codec_of_their_own(trained, folder):
    trained("sortquant-cifar10")
    one, both = (
        json.loads((folder / "sortquant-cifar10" / f"{row}-seed0.json").read_text())
        for row in ("wave0.6-back-wave0.15", "wave0.6")
    )
    assert (one["settings"]["codec"], one["settings"]["grad_codec"]) == ("wave:0.6", "wave:0.15")
    assert "grad_codec" not in both["settings"], "what is the same both ways is said once"
    assert one["float32_ratio"] < both["float32_ratio"]


@pytest.mark.parametrize("name", ROWS)
def test_something_is_learned_even_so(name, trained):
    for entries in trained(name)[0]["rows"]:
        if "bottleneck" in entries["settings"]["recipe"]:
            # So few steps are too few for the statistics that a test needs, with weights that move so much.
            first, *_, last = entries["samples"]["train_loss"]
            assert last < 0.85 * first, entries["row"]
            continue
        measure = entries["settings"]["measure"]
        chance = 0.0 if measure == "mcc" else 0.5 if entries["settings"]["recipe"]["max_length"] else 0.1
        assert entries[f"best_{measure}"] > chance + 0.1, entries["row"]


@pytest.mark.parametrize("name", ROWS)
def test_the_documents_plots_are_drawn(name, trained):
    said, output = trained(name)
    table = TABLES[name]
    works = 1 if table.by_epoch else len(table.works)
    assert len(said["pictures"]) == works + bool(table.curves)
    for path in said["pictures"]:
        assert f"drawn in {path}" in output
        root = ElementTree.parse(path).getroot()
        assert root.find(f"{SVG}title").text.startswith(TABLES[name].title)
        assert "stand-in: " in root.find(f"{SVG}desc").text
        drawn, legend = root.findall(f"{SVG}polyline"), [text.text for text in root.findall(f"{SVG}text")]
        dashed = [line for line in drawn if line.get("stroke-dasharray")]
        assert len(dashed) == sum(", published" in text for text in legend)
        has_published = any(row.published.value is not None for row in table.rows)
        assert bool(dashed) == (has_published and not path.endswith("-by-epoch.svg"))
        assert len(drawn) > len(dashed)


def test_what_another_table_has_recorded_is_not_trained_again(folder):
    def train(name, rows):
        result = reproduce(name, "--tiny", "--rows", rows, "--output", folder, "--json")
        return said_by(result), result.output

    first, _ = train("sortquant-cifar10", "none")
    second, output = train("ablation-bits", "cifar10-none")
    (theirs,), (ours,) = first["rows"], second["rows"]
    assert "epoch 1/" not in output and ours["samples"] == theirs["samples"]
    assert (ours["bench"], ours["row"]) == ("ablation-bits", "cifar10-none-seed0")
    assert theirs["published"]["accuracy"] == 0.9587 and not ours["published"], "their plot has no such point"


def test_a_row_that_is_recorded_is_not_trained_again(trained, folder):
    said, _ = trained("sortquant-cifar100")
    result = reproduce("sortquant-cifar100", "--tiny", "--output", folder, "--json", "--rows", "none,sort6+2")
    assert said_by(result)["rows"] == said["rows"]
    assert "1 of" not in result.output and "epoch 1/" not in result.output


def test_a_plot_shows_all_that_is_recorded_and_not_what_was_asked_for_alone(trained, folder):
    before = Path(trained("sortquant-cifar10")[0]["pictures"][0]).read_text()
    said = said_by(reproduce("sortquant-cifar10", "--tiny", "--output", folder, "--rows", "had4", "--json"))
    assert len(said["rows"]) == 1 and Path(said["pictures"][0]).read_text() == before


def test_a_row_that_was_trained_otherwise_is_kept_unless_it_is_asked_for_again(tmp_path):
    words = ("sortquant-food101", "--tiny", "--rows", "none", "--output", tmp_path, "--json", "--epochs")
    before = said_by(reproduce(*words, 2))
    result = reproduce(*words, 1)
    assert result.exit_code == 1 and "with recipe.epochs=2, and it is 1 now" in result.output
    assert said_by(reproduce(*words, 2)) == before
    assert len(said_by(reproduce(*words, 1, "--again"))["rows"][0]["samples"]["accuracy"]) == 1


def test_a_record_of_a_version_whose_recipes_had_fewer_fields_is_still_the_rows(tmp_path):
    words = ("sortquant-cifar10", "--tiny", "--rows", "none", "--epochs", 1, "--output", tmp_path)
    assert reproduce(*words).exit_code == 0
    path = tmp_path / "sortquant-cifar10/none-seed0.json"
    record = json.loads(path.read_text())
    assert record["settings"]["recipe"].pop("last_batch") == "keep"
    path.write_text(json.dumps(record))
    assert reproduce(*words).exit_code == 0 and json.loads(path.read_text()) == record, "it was trained again"
    refused = reproduce(*words, "--set", "last_batch=drop")
    assert refused.exit_code == 1 and "last_batch=keep, and it is drop now" in " ".join(refused.output.split())


def test_a_row_that_another_process_trains_is_left_to_it(tmp_path):
    words = ("sortquant-food101", "--tiny", "--rows", "none,had4", "--epochs", 1, "--output", tmp_path, "--json")
    place = tmp_path / "runs" / "sortquant-food101" / "none-seed0"
    with RunFolder(place).owned():
        result = reproduce(*words)
        assert "none-seed0 is left to another process" in result.output
        assert [row["settings"]["row"] for row in said_by(result)["rows"]] == ["had4"]
        assert place.is_dir(), "it is empty, and another's"
        alone = reproduce(*words[:3], "none", *words[4:])
        assert alone.exit_code == 0, "there is nothing to do, and nothing is wrong"
    assert [row["settings"]["row"] for row in said_by(reproduce(*words))["rows"]] == ["none", "had4"]


def test_what_is_asked_to_be_different_is_trained_and_recorded_so(tmp_path):
    words = ("sortquant-cifar10", "--tiny", "--rows", "none", "--epochs", 1, "--chunks", 4, "--set", "lr=0.02")
    said_by(reproduce(*words, "--output", tmp_path, "--json"))
    recipe = Record.load(tmp_path / "sortquant-cifar10" / "none-seed0.json").settings["recipe"]
    assert (recipe["epochs"], recipe["chunks"], recipe["lr"]) == (1, 4, 0.02)


def test_seeds_are_summed_up(tmp_path):
    words = ("sortquant-cifar10", "--tiny", "--rows", "none", "--seeds", "0,1", "--epochs", 2)
    said = said_by(reproduce(*words, "--output", tmp_path, "--json"))
    first, second = (row["accuracy"] for row in said["rows"])
    mean, deviation = (first + second) / 2, abs(first - second) / math.sqrt(2)
    (line,) = said["table"]
    assert line["accuracy, %"] == f"{100 * mean:.2f} ± {100 * deviation:.2f}" and line["seeds"] == "2"
    files = sorted(path.name for path in (tmp_path / "sortquant-cifar10").glob("*.json"))
    assert files == ["none-seed0.json", "none-seed1.json"]


def test_an_interrupted_row_goes_on_and_ends_as_if_it_had_not_been(trained, folder, tmp_path):
    trained("sortquant-cifar10")
    words = ["sortquant-cifar10", "--tiny", "--rows", "sort6+2", "--output", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "thinpipe", "reproduce", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "epoch 1/3" in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=100)
    assert process.returncode == 130 and "the same command goes on" in rest
    path = tmp_path / "sortquant-cifar10" / "sort6+2-seed0.json"
    assert not path.exists()
    result = reproduce(*words, "--json")
    assert "epoch 1/3" not in result.output and said_by(result)
    whole = Record.load(folder / "sortquant-cifar10" / path.name)
    curves = [record.samples["accuracy"] for record in (whole, Record.load(path))]
    assert curves[0] == pytest.approx(curves[1])
    assert Record.load(path).results["ratio"] == pytest.approx(whole.results["ratio"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sortquant-cifar10", "--rows", "none,had4"), "cifar10 is not there"),
        (("sortquant-rte", "--rows", "none"), "there is no encoder 'roberta-base'"),
    ],
)
def test_a_row_whose_inputs_are_not_here_is_skipped_with_the_reason(words, why, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path))
    result = reproduce(*words, "--seeds", "0", "--output", tmp_path / "results", "--json")
    assert result.exit_code == 1, "nothing was trained"
    said = json.loads(result.stdout.splitlines()[-1])
    assert list(said["skipped"]) == words[2].split(",") and not said["rows"]
    assert all(why in reason for reason in said["skipped"].values())
    assert [line["row"] for line in said["table"]] == words[2].split(",")
    assert "skipped" in said["table"][0].values() and why in " ".join(result.stdout.split())


def test_an_encoder_that_stands_in_is_called_so_everywhere(tmp_path):
    encoder = save("bert", tmp_path / "little-bert")
    sizes = {**SIZES, "max_position_embeddings": 160}
    transformers.BertModel(transformers.BertConfig(**sizes, **BERT)).save_pretrained(encoder)
    write_glue(tmp_path / "glue")
    words = ("sortquant-cola", "--rows", "had4", "--seeds", 0, "--epochs", 1, "--encoder", encoder)
    words += ("--data-dir", tmp_path, "--device", "cpu", "--set", "batch=6", "--output", tmp_path / "results", "--json")
    result = reproduce(*words)
    said, label = said_by(result), "stand-in: little-bert, not RoBERTa-base"
    assert label in " ".join(result.output.split())
    (row,) = said["rows"]
    assert row["settings"]["stand_in"] == label and row["settings"]["recipe"]["padding"] == "full"
    assert label in (tmp_path / "results/sortquant-cola/sortquant-cola.svg").read_text()
    assert "12 samples to train on and 11 to test with, where Epipe had 8,551 and 1,043" in result.output
    # Moved elsewhere it is the same encoder; with other weights it is another.
    moved = encoder.rename(tmp_path / "moved")
    assert said_by(reproduce(*words[:8], moved, *words[9:]))["rows"] == said["rows"]
    transformers.BertModel(transformers.BertConfig(**sizes, **BERT)).save_pretrained(moved)
    assert "was recorded with recipe.model=" in reproduce(*words[:8], moved, *words[9:]).output


def test_the_page_shows_what_was_recorded_and_nothing_of_the_rest(trained, folder, tmp_path):
    for name in ("sortquant-cifar10", "ablation-bits", "cola-recipes"):
        trained(name)
    for results, docs in ((folder, tmp_path / "some"), (tmp_path / "nothing", tmp_path / "none")):
        assert reproduce("page", "--results", results, "--docs", docs).exit_code == 0
    page = (tmp_path / "some" / "results.md").read_text()
    for name, table in TABLES.items():
        drawn = list((folder / name).glob("*.svg"))
        assert (f"## {table.title}" in page) == bool(drawn)
        for picture in drawn:
            assert f"(img/results-{picture.name})" in page
            assert (tmp_path / "some/img" / f"results-{picture.name}").read_text() == picture.read_text()
    assert sum((folder / name).exists() for name in TABLES) >= 3
    record = Record.load(folder / "sortquant-cifar10" / "had2-seed0.json")
    ratio = f"{record.results['float32_ratio']:.4f}"
    assert f"| had2 | had:2 | {ratio} |  | {100 * record.results['accuracy']:.2f} |" in page
    assert not any(table.title in (tmp_path / "none" / "results.md").read_text() for table in TABLES.values())


def callbacks(group):
    return {command.name: command.callback for command in group.registered_commands}


def test_every_table_is_under_the_verb_and_those_of_the_benches_are_the_same_commands():
    ours, benches = callbacks(reproduce_app), callbacks(bench_app)
    assert set(ours) - {"page", "next"} == set(NAMES) == {entry.name for entry in ENTRIES}
    shared = {name: name for name in NAMES if name in benches} | {"dp-vs-pipeline": "pipeline-vs-dp"}
    assert len(shared) == 9 and all(ours[name] is benches[other] for name, other in shared.items())


def test_the_list_tells_what_a_table_needs_and_whether_its_time_was_measured():
    output = " ".join(re.sub(r"[│┃]", " ", reproduce("--list").output).split())
    assert all(name in output for name in NAMES)
    assert all(re.search("estimated|H200|[0-9] cores", entry.time) for entry in ENTRIES)


def test_a_table_that_there_is_not_is_answered_with_the_nearest():
    result = reproduce("sortquant-cifar1O")
    assert result.exit_code == 2 and "sortquant-cifar10" in result.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--rows", "zip*"), "no row matches 'zip*'; there are none, sort12+4"),
        (("--seeds", "one"), "--seeds are whole numbers, as 0,1,2; got 'one'"),
        (("--cut", "middle"), "sortquant-cifar10 has no cut 'middle'; use after-relu, before-relu, pooled"),
        (("--device", "abacus"), "there is no device 'abacus'"),
        (("--data-dir", "."), "--tiny has data and models of its own"),
        (("--set", "momentm=1"), "a recipe has no field 'momentm'; did you mean momentum?"),
        (("--set", "seed=3"), "--set seed would make other rows of these; use --seeds"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, why):
    result = reproduce("sortquant-cifar10", "--tiny", *words)
    # Typer draws a frame around what it says.
    assert result.exit_code == 2 and why in re.sub(r"[│\s]+", " ", result.output)


def test_a_table_of_images_has_no_use_for_an_encoder():
    result = reproduce("sortquant-cifar10", "--encoder", "somewhere")
    assert result.exit_code == 2 and "has no encoder" in re.sub(r"[│\s]+", " ", result.output)


@pytest.mark.parametrize("width", [60, 80, 130, 200])
def test_a_table_that_is_wider_than_the_screen_is_cut_between_columns(width):
    heads = ["trained", "row", *(f"column {k}" for k in range(12))]
    sheet = Sheet("a title", heads, [["CIFAR-10", "sort6+2", *map(str, range(12))]], [], "")
    grids = list(_grids(sheet, width))
    assert (len(grids) == 1) == (width == 200) and [grid.title for grid in grids[1:]] == [None] * (len(grids) - 1)
    shown = [[column.header for column in grid.columns] for grid in grids]
    assert all(each[0] == "row" for each in shown)
    assert [head for each in shown for head in each[1:]] == [head for head in heads if head != "row"]
    console = Console(width=width, file=io.StringIO())
    for grid in grids:
        console.print(grid)
    assert "…" not in console.file.getvalue()


def test_our_own_cut_is_a_row_of_its_own_without_figures_of_theirs(tmp_path):
    words = ("sortquant-cifar10", "--tiny", "--rows", "none*", "--cut", "after-relu,pooled", "--epochs", 1)
    said = said_by(reproduce(*words, "--output", tmp_path, "--json"))
    assert [(line["row"], line["published"]) for line in said["table"]] == [("none", "95.87"), ("none-pooled", "-")]
    unpooled, pooled = (row["bytes_per_sample"] for row in said["rows"])
    assert unpooled == pytest.approx(2 * 4 * (16 * 64 + 64 * 16)) and pooled == pytest.approx(2 * 4 * (16 * 64 + 64))


# -- the documents' figures, as their tables print them --------------------------------------------------------------

PRINTED = {
    "sortquant-cifar10": {"sort:12+4": 96.0, "sort:9+3": 95.9, "sort:6+2": 95.7, "sort:3+1": 87.10},
    "sortquant-cifar100": {NONE: 80.92, "sort:12+4": 80.85, "sort:9+3": 80.61, "sort:6+2": 78.83},
    "sortquant-food101": {NONE: 83.76, "sort:12+4": 83.77, "sort:9+3": 83.72},
    "sortquant-rte": {"sort:12+4": 79.6, "sort:9+3": 79.6, "sort:6+2": 79.4, "sort:3+1": 52.2},
    "sortquant-cola": {"sort:12+4": 64.5, "sort:9+3": 63.93, "sort:6+2": 63.20, "sort:3+1": 0},
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_figures_are_the_documents(name):
    rows = {row.codec: row for row in TABLES[name].rows if row.learned is None and not row.work.prefix}
    for codec, percent in PRINTED[name].items():
        assert rows[codec].published.value == pytest.approx(percent / 100)
        bits = 32 if codec == NONE else sum(map(int, re.findall(r"\d+", codec)))
        assert rows[codec].published.ratio == bits / 32
    assert {"none", "block:4", "had:4", "had:2"} <= rows.keys()


def test_rows_are_trained_as_the_documents_did():
    expected = {
        "sortquant-cifar10": (256, 8, 40, 0.08),
        "sortquant-rte": (32, 4, 20, 2e-5),
        "sortquant-cola": (32, 4, 20, 2e-5),
        "prune-vs-quant": (1024, 4, 200, 0.4),
    }
    for name, numbers in expected.items():
        work = TABLES[name].works[0]
        recipe = resolved(work.recipe, {**work.changes, "cut": work.cuts[0]})
        assert (recipe.batch, recipe.chunks, recipe.epochs, recipe.lr) == numbers


def test_texts_are_trained_by_their_recipes_as_they_are_with_five_seeds():
    names = ("sortquant-rte", "sortquant-cola", "sortquant-cola-simulated", "cola-recipes")
    assert all(TABLES[name].seeds == (0, 1, 2, 3, 4) for name in names)
    texts = [work for name in (*names, "ablation-bits") for work in TABLES[name].works if reads_texts(work.recipe)]
    assert {work.recipe for work in texts} >= {"rte", "cola", "cola-simulated", "cola-fairseq", "cola-lora"}
    for work in texts:
        assert not work.changes and resolved(work.recipe).cut == work.cuts[0], work.label


def test_the_figures_of_bottlenecks_are_the_documents():
    figures = {row.name: row.published for row in TABLES["bottlenecks-cifar10"].rows if row.learned is not None}
    printed = {"conv20k3s3-conv360": (0.9601, 0.097), "conv20k4s4-conv320": (0.9587, 0.070)}
    printed["conv32k4s4+16-conv360+100"] = (0.9570, 0.038)
    assert {name: (said.value, said.ratio) for name, said in figures.items() if said.value is not None} == printed
    texts = {row.learned.text: row.published.value for row in TABLES["sortquant-cola"].rows if row.learned is not None}
    figures = {text: value for text, value in texts.items() if value is not None}
    assert figures == {"none/linear:150": 0.633, "none/linear:50": 0.648}
    assert {"linear:384", "linear:150", "linear:192", "linear:75"} <= texts.keys()


def test_short_trainings_are_trained_again_as_they_were_recorded():
    results, nothing = Path(__file__).parents[2] / "results", dict.fromkeys(("epochs", "chunks", "data_dir", "encoder"))
    asked = Ask(rows=(), seeds=(), changes={}, device="cpu", compile=False, tiny=False, **nothing)
    found = 0
    for table in (table for name, table in TABLES.items() if name.startswith("short-") and name != "short-cola"):
        rows = {row.name: row for row in table.cut_at()}
        for record in records_in(table, results):
            job = Job.of(table, rows[record.settings["row"]], record.settings["seed"], asked, None)
            assert recorded(job, results) == record, "a record of other settings would be refused"
            found += 1
    assert found == 91


def test_every_row_of_a_table_has_a_name_of_its_own():
    for table in TABLES.values():
        rows = sum(1 if row.learned is not None else len(row.work.cuts) for row in table.rows)
        assert len(table.cut_at()) == len({row.name for row in table.cut_at()}) == rows


# -- the parts -------------------------------------------------------------------------------------------------------


def test_a_count_that_was_interrupted_is_added_to(tmp_path):
    path = tmp_path / "crossed.json"
    line = EvaluationLine(step=1, epoch=1, rows=1, loss=0.0, accuracy=0.0, seconds=0.0)
    for _ in range(2):
        Crossed(path, lambda: [(Flow(packed=10, raw=40, elements=20), Flow(packed=30, raw=40, elements=20))]).evaluated(
            line
        )
    (cut,) = read_crossed(path)
    assert (cut.packed, cut.raw, cut.elements) == (80, 160, 80)
    assert cut.ratio == 0.5 and cut.float32_ratio == 0.25, "bfloat16 has half the bytes already"


def test_a_loss_that_is_not_finite_is_told_and_leaves_json_alone():
    steps = [StepLine(step=k, epoch=k, rows=2, loss=[1.0, math.nan][k], seconds=1.0) for k in range(2)]
    tests = [
        EvaluationLine(step=k + 1, epoch=k + 1, rows=4, loss=math.nan, accuracy=0.1, seconds=1.0) for k in range(2)
    ]
    ran = Ran(steps, tests, [])
    json.dumps([ran.results(), ran.samples()], allow_nan=False)
    assert "train_loss" not in ran.samples() and ran.notes() == ["the loss was not finite, first in epoch 2"]


def test_a_row_that_diverges_is_recorded_like_any_other(tmp_path):
    words = ("sortquant-cifar10", "--tiny", "--rows", "none,had4", "--set", "lr=1e6", "--output", tmp_path, "--json")
    said = said_by(reproduce(*words))
    for row in said["rows"]:
        assert row["epochs"] == 3 and row["notes"] == ["the loss was not finite, first in epoch 1"]
        assert "train_loss" not in row["samples"] and "on_nan" not in row["settings"]["recipe"]
    assert len(said["rows"]) == 2
    again = reproduce(*words)
    assert said_by(again)["rows"] == said["rows"], "they are not trained again"


@pytest.mark.parametrize(
    "values", [[], [(0.5, 90.0, 0.0)], [(0.1, -3.0, 0.2), (1.0, 97.0, 0.0)], [(1, 1e-9, 0), (2, 2e-9, 0)]]
)
def test_a_plot_is_drawn_of_whatever_there_is(values):
    root = ElementTree.fromstring(plot("a < b", "share", "across", [Curve("x & y", values, 12)], remark="<remark>"))
    points = root.findall(f"{SVG}circle")
    assert len(points) == len(values) and root.find(f"{SVG}title").text == "a < b: share"
    assert all(70 <= float(point.get("cx")) <= 700 for point in points)
    assert "<remark>" in [text.text for text in root.findall(f"{SVG}text")]
