"""``thinpipe reproduce page`` writes what was trained, and how it compares, from records and from nothing else."""

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from thinpipe.bench.labels import Box, Room, width_of
from thinpipe.bench.marks import Look, Mark, Series
from thinpipe.bench.panel import Frame, Panel, floor_of, ratios
from thinpipe.bench.record import Machine, Record
from thinpipe.cli import app
from thinpipe.reproduce.training.looks import LOOKS
from thinpipe.reproduce.training.run import figures_of
from thinpipe.reproduce.training.table import POOLED
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train import resolved

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
LOOK = Look(colour="#000", shape="circle")
FRAME = Frame(left=50, top=50, width=500, height=200)


def reproduce(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def page(results, docs):
    result = reproduce("page", "--results", results, "--docs", docs)
    assert result.exit_code == 0, result.output
    return (docs / "results.md").read_text()


def record(table, name, seed, value, *, ratio=0.1, cut=None, epochs=40, **settings):
    """What training a row leaves behind."""
    row = next(row for row in TABLES[table].rows if row.name == name)
    row = row if cut is None else row.at(cut)
    work = row.work
    recipe = resolved(work.recipe, {**work.changes, "cut": row.cut, "seed": seed, "epochs": epochs}).to_json()
    results = {"accuracy": value, work.measure: value, f"best_{work.measure}": value + 0.01, "epochs": epochs}
    results |= {f"float32_ratio{end}": ratio for end in ("", "_cut_1", "_cut_2")} | {"bytes_per_sample": 4e6 * ratio}
    results |= dict(zip(("train_rows", "test_rows"), work.samples, strict=True))
    said = {"row": row.name, "seed": seed, "stand_in": None, "tiny": False, "device": "cuda", "recipe": recipe}
    return Record(
        table,
        results,
        {work.measure: [value / 2, value]},
        said | {"what": work.label} | settings,
        Machine("a cpu", 16, ["a gpu"], "3.12", {"thinpipe": "0.1", "torch": "2"}),
        row=f"{row.name}-seed{seed}",
        published=figures_of(row),
        command=f"thinpipe reproduce {table}",
        commit="abc",
    )


def save(folder, *records):
    for each in records:
        each.save(folder)


def line_of(text, row):
    """The cells of a row by their heads."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    cells = next(line for line in lines if line[0] == row)
    heads = next(line for line in reversed(lines[: lines.index(cells)]) if "row" in line)
    return dict(zip(heads, map(str.strip, cells), strict=True))


def drawn(series, **words):
    """A panel's texts, marks and lines."""
    parts, _ = Panel(series=series, frame=FRAME, **words).drawn()
    return ElementTree.fromstring("<svg>" + "".join(parts) + "</svg>")


def named(root):
    """The boxes of names beside marks and in strips, as a reader sees them."""
    boxes = {}
    for text in root.iter():
        if "n" in text.get("class", "").split():
            x, y, width = float(text.get("x")), float(text.get("y")), 5.4 * len(text.text)
            left = x - width / 2 if text.get("text-anchor") == "middle" else x
            boxes[f"{text.text} at {x},{y}"] = Box(left, y - 8, left + width, y)
    return boxes


def some(table):
    """Records of all rows of a table, each worse than the one before; 4-bit ones of the documents collapse."""
    rows = TABLES[table].rows
    for number, row in enumerate(rows):
        value = 0.1 if row.codec in ("sort:3+1", "uniform:4") else 0.95 - 0.002 * number
        for seed in (0, 1):
            ratio = 1.0 if row.name.endswith("none") else (row.published.ratio or 0.9 / (number + 1))
            yield record(table, row.name, seed, value + 0.001 * seed, ratio=ratio)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_in_the_documentation_is_current():
    result = reproduce("page", "--results", ROOT / "results", "--docs", ROOT / "docs", "--check")
    assert result.exit_code == 0, f"run: make docs\n{result.output}"


def test_no_figure_on_the_page_is_written_by_hand():
    """Notes beside the records say how they came about; what came of it is for the tables, which are made of them."""
    for table in TABLES:
        for note in (ROOT / "results" / table).glob("README.md"):
            said = re.sub(r"`[^`]*`", "", note.read_text())
            assert not re.findall(r"\d+[.,]\d+|\d+ ?%", said), note


def test_codecs_of_several_data_sets_are_shown_at_a_glance(tmp_path):
    images, words = "sortquant-cifar10", "sortquant-cola"
    save(
        tmp_path / "results",
        *(record(images, "none", seed, 0.95) for seed in (0, 1)),
        *(record(images, "had4", seed, 0.94 - 0.02 * seed, ratio=0.13) for seed in (0, 1)),
        record(images, "wave0.6", 0, 0.93),
        record(images, "had4", 0, 0.5, cut=POOLED),
        record(words, "none", 0, 0.30),
        record(words, "had4", 0, 0.29, ratio=0.14),
        record(words, "linear75-had4", 0, 0.1),
        record(words, "uniform8", 0, 0.25, ratio=0.25),
        # Another table of the same images, with a row that has no codec of its own.
        record("ablation-bits", "cifar10-none", 0, 0.96),
        record("ablation-bits", "cifar10-uniform8", 0, 0.50, ratio=0.25),
    )
    text = page(tmp_path / "results", tmp_path / "docs")
    glance = text[text.index("## At a glance") : text.index("## Sort")]
    lines = [line.strip("| ").split(" | ") for line in glance.splitlines() if line.startswith("|")]
    assert lines[0] == ["codec, both ways", "of float32", "CIFAR-10", "CoLA"]
    # What one data set alone was trained with, another cut and bottlenecks are in the tables below.
    assert [cell.split(" of ")[-1] for cell in lines[2] if cell.endswith("epochs")] == ["40 epochs", "20 epochs"]
    assert lines[3][2:] == ["50,000 samples", "8,551 samples"]
    assert lines[4:] == [
        ["`had:4`", "0.1300", "-2.00 ± 1.41", "-1.00 (1 seed)"],
        ["`uniform:8`", "0.2500", "-46.00 (1 seed)", "-5.00 (1 seed)"],
    ]


def test_without_a_codec_in_common_there_is_nothing_to_see_at_a_glance(tmp_path):
    save(
        tmp_path / "results", record("sortquant-cifar10", "none", 0, 0.95), record("sortquant-cifar10", "had4", 0, 0.9)
    )
    assert "At a glance" not in page(tmp_path / "results", tmp_path / "docs")


def test_what_was_trained_is_on_the_page_and_a_change_of_it_makes_the_page_stale(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    words = ("--tiny", "--rows", "none,had4", "--epochs", 1, "--output", results)
    assert reproduce("sortquant-cifar10", *words).exit_code == 0
    text = page(results, docs)
    paths = {name: results / f"sortquant-cifar10/{name}-seed0.json" for name in ("none", "had4")}
    found = {name: json.loads(path.read_text()) for name, path in paths.items()}
    line = line_of(text, "had4")
    assert line["accuracy, %"] == f"{100 * found['had4']['accuracy']:.2f}"
    assert line["to none"] == f"{100 * (found['had4']['accuracy'] - found['none']['accuracy']):+.2f} (1 seed)"
    assert line["of float32"] == f"{found['had4']['float32_ratio']:.4f}"
    assert line["kB a sample"] == f"{found['had4']['bytes_per_sample'] / 1000:.1f}"
    assert "stand-in: a small network on handwritten digits" in text and "All rows: epochs 1 (published: 40)" in text
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", text):
        assert target.startswith("benchmarks.md") or (docs / target).exists(), target
    pictures = sorted(path.name for path in (docs / "img").iterdir())
    assert pictures == ["results-frontier.svg", "results-sortquant-cifar10.svg"]

    check = ("page", "--results", results, "--docs", docs, "--check")
    assert reproduce(*check).exit_code == 0
    paths["had4"].write_text(paths["had4"].read_text().replace('"accuracy": 0.', '"accuracy": 0.1'))
    (docs / "img/results-of-old.svg").write_text("")
    (docs / "img/another.svg").write_text("")
    result = reproduce(*check)
    assert result.exit_code == 1 and (docs / "results.md").read_text() == text, "a check writes nothing"
    assert all(name in result.output for name in ("results.md", "frontier.svg", "cifar10.svg", "results-of-old.svg"))
    page(results, docs)
    assert reproduce(*check).exit_code == 0 and (docs / "img/another.svg").exists()
    assert not (docs / "img/results-of-old.svg").exists()


def test_without_records_the_page_says_how_they_are_made(tmp_path):
    result = reproduce("page", "--results", tmp_path, "--docs", tmp_path)
    text = (tmp_path / "results.md").read_text()
    for said in (result.output, text):
        assert "No table has been trained: `thinpipe reproduce TABLE` trains one" in said
    assert not list((tmp_path / "img").iterdir()) and "| row |" not in text
    assert "`sortquant-cifar10`" in text[text.index("## Not run yet") :]


def test_short_trainings_have_a_page_of_their_own_without_published_figures_or_pictures_of_epipes_codecs(tmp_path):
    for name, value in (("none", 0.95), ("sort6+2", 0.9), ("had4", 0.94), ("wave4", 0.95)):
        save(tmp_path, *(record(f"short-{images}", name, 0, value, epochs=10) for images in ("cifar10", "food101")))
    text = page(tmp_path, tmp_path / "docs")
    assert "had4" not in text and "No table has been trained" in text
    short = (tmp_path / "docs/short-trainings.md").read_text()
    assert "No row has Epipe's settings" in short
    assert line_of(short, "sort6+2")["to none"] == "-5.00 (1 seed)" and "published" not in line_of(short, "had4")
    assert "`sort:6+2`" not in short[short.index("## At a glance") : short.index("| row |")]
    for name in ("results-frontier-short.svg", "results-short-cifar10.svg"):
        said = ElementTree.parse(tmp_path / "docs/img" / name).getroot().find(f"{SVG}desc").text
        assert "had:4" in said and "sort" not in said


def test_a_row_that_was_trained_elsewhere_than_none_is_named_at_a_glance(tmp_path):
    for table in ("sortquant-cifar10", "sortquant-cola"):
        save(tmp_path, record(table, "none", 0, 0.5), record(table, "had4", 0, 0.5))
    assert "the row without a codec on" not in page(tmp_path, tmp_path / "docs")
    save(tmp_path, record("sortquant-cola", "had4", 0, 0.5, device="cpu"))
    said = "- CoLA: `had:4` was trained on cpu, the row without a codec on cuda."
    text = page(tmp_path, tmp_path / "docs")
    assert said in text and text.count("the row without a codec on") == 1


def test_rows_and_tables_that_were_not_run_are_counted_and_named(tmp_path):
    save(tmp_path, record("sortquant-cifar100", "none", 0, 0.8), record("sortquant-cifar100", "had4", 0, 0.79))
    text = page(tmp_path, tmp_path / "docs")
    names = [row.name for row in TABLES["sortquant-cifar100"].rows]
    missing = [name for name in names if name not in ("none", "had4")]
    assert f"- 2 of {len(names)} rows have been run; not run: {', '.join(missing)}." in text
    assert missing[0] == "sort12+4" and "had2" in missing
    assert "| sort9+3 |" not in text
    rest = text[text.index("## Not run yet") :]
    assert "`sortquant-cifar10`" in rest and "`sortquant-cifar100`" not in rest


def test_a_file_of_no_row_is_named_and_left_out(tmp_path):
    save(tmp_path, record("sortquant-cifar100", "none", 0, 0.8))
    (tmp_path / "sortquant-cifar100" / "zip-seed0.json").write_text("{}")
    (tmp_path / "another-bench").mkdir()
    (tmp_path / "another-bench" / "row.json").write_text("{}")
    text = page(tmp_path, tmp_path / "docs")
    assert "Left out, for no row of the table has the name: zip-seed0.json." in text and "another-bench" not in text


def test_a_record_that_is_damaged_is_named(tmp_path):
    save(tmp_path, record("sortquant-cifar100", "none", 0, 0.8))
    path = tmp_path / "sortquant-cifar100" / "none-seed0.json"
    for text in (path.read_text()[:200], "{}", "[]"):
        path.write_text(text)
        result = reproduce("page", "--results", tmp_path, "--docs", tmp_path / "docs")
        assert result.exit_code == 1 and f"{path} is no record" in result.output
    assert not (tmp_path / "docs").exists()


# -- the tables -------------------------------------------------------------------------------------------------------


def test_a_difference_is_that_of_the_seeds_which_both_have(tmp_path):
    accuracies = {"none": (0.90, 0.92, 0.97), "had4": (0.89, 0.92), "had2": (0.85, 0.88, 0.91)}
    for name, values in accuracies.items():
        save(tmp_path, *(record("sortquant-cifar10", name, seed, value) for seed, value in enumerate(values)))
    save(tmp_path, record("sortquant-cifar10", "block4", 7, 0.95))
    text = page(tmp_path, tmp_path / "docs")
    # Were it that of all means, had4 would lose 2.5 points.
    assert line_of(text, "had4")["to none"] == "-0.50 ± 0.71 (2 seeds)"
    assert line_of(text, "had2")["to none"] == "-5.00 ± 1.00"
    assert line_of(text, "block4")["to none"] == "-", "no seed in common"
    assert line_of(text, "none")["to none"] == ""
    assert line_of(text, "none")["accuracy, %"] == "93.00 ± 3.61"
    assert re.findall(r"\[(\d)\]", line_of(text, "had4")["seeds"]) == ["0", "1"]
    assert line_of(text, "had4")["seeds"].startswith("2: ")


def test_trainings_that_differ_in_more_than_codecs_are_not_compared(tmp_path):
    save(
        tmp_path, record("sortquant-cifar10", "none", 0, 0.90), record("sortquant-cifar10", "had4", 0, 0.80, epochs=20)
    )
    other = record("sortquant-cifar10", "had2", 0, 0.80)
    other = replace(other, results=other.results | {"train_rows": 1000})
    save(tmp_path, other, record("sortquant-cifar10", "block4", 0, 0.80))
    text = page(tmp_path, tmp_path / "docs")
    differences = {name: line_of(text, name)["to none"] for name in ("had4", "had2", "block4")}
    assert differences == {"had4": "-", "had2": "-", "block4": "-10.00 (1 seed)"}
    assert "- had4: epochs 20 (published: 40); 50,000 samples" in text
    assert "- none, block4: epochs 40; 50,000 samples to train on, 10,000 to test with; batch 256; micro-" in text
    assert "- had2: epochs 40; 1,000 samples" in text and "where Epipe had 50,000 and 10,000" in text


def test_where_weights_lie_and_settings_that_are_younger_than_a_record_are_no_difference(tmp_path):
    there, here = (record("sortquant-cifar10", name, 0, 0.9) for name in ("none", "had4"))
    there.settings["recipe"]["weights"] = "/there/mobilenet.safetensors"
    here.settings["recipe"] |= {"weights": "/here/mobilenet.safetensors", "of_tomorrow": 1}
    save(tmp_path, there, here)
    assert line_of(page(tmp_path, tmp_path / "docs"), "had4")["to none"] == "+0.00 (1 seed)"


def test_a_cut_and_a_work_are_compared_with_their_own_none(tmp_path):
    save(
        tmp_path,
        record("sortquant-cifar10", "none", 0, 0.90),
        record("sortquant-cifar10", "none", 0, 0.80, cut=POOLED),
        record("sortquant-cifar10", "had4", 0, 0.79, cut=POOLED),
        record("ablation-bits", "cifar10-none", 0, 0.9),
        record("ablation-bits", "rte-none", 0, 0.6),
        record("ablation-bits", "rte-uniform8", 0, 0.5),
    )
    text = page(tmp_path, tmp_path / "docs")
    assert line_of(text, "had4-pooled")["to none"] == "-1.00 (1 seed)" and line_of(text, "had4-pooled")["cut"] == POOLED
    rows = len(TABLES["sortquant-cifar10"].rows)
    assert f"- 1 of {rows} rows have been run, and 2 with another cut; not run: " in text
    assert "| RTE | rte-uniform8 | uniform:8 |" in text
    assert re.search(r"\| rte-uniform8 .*\| -10\.00 \(1 seed\) \|", text)


def test_a_correlation_is_shown_with_its_best_epoch_and_an_accuracy_is_not(tmp_path):
    save(tmp_path, record("sortquant-cola", "none", 0, 0.28, stand_in="stand-in: little, not RoBERTa-base"))
    save(tmp_path, record("sortquant-rte", "none", 0, 0.7))
    text = page(tmp_path, tmp_path / "docs")
    lines = [line for line in text.splitlines() if line.startswith("| row")]
    rte, cola = sorted(lines, key=lambda line: "best epoch" in line)
    assert "accuracy, %" in rte and "MCC x 100" in cola and "best epoch" not in rte
    assert "| 28.00 |" in text and "| 29.00 |" in text and "64.50 ± 0.80" in text
    assert "## Sort quantization, RoBERTa-base on CoLA (stand-in: little, not RoBERTa-base)" in text


def test_beside_a_correlation_there_are_accuracies_and_losses(tmp_path):
    for name, correlations, accuracies in (("none", (0.30, 0.32), (0.73, 0.74)), ("had4", (0.31, 0.31), (0.72, 0.74))):
        for seed, (mcc, accuracy) in enumerate(zip(correlations, accuracies, strict=True)):
            each = record("sortquant-cola", name, seed, mcc)
            samples = each.samples | {"train_loss": [0.6, 0.1 + (name == "had4") * 0.01 * (1 + seed)]}
            save(tmp_path, replace(each, results=each.results | {"accuracy": accuracy}, samples=samples))
    save(tmp_path, record("sortquant-cola", "had2", 0, 0.0))  # a loss that was not finite is not recorded
    text = page(tmp_path, tmp_path / "docs")
    line = line_of(text, "had4")
    assert (line["MCC x 100"], line["to none"]) == ("31.00 ± 0.00", "+0.00 ± 1.41")
    assert (line["accuracy, %"], line["accuracy to none"]) == ("73.00 ± 1.41", "-0.50 ± 0.71")
    assert (line["last loss"], line["last loss to none"]) == ("0.115 ± 0.007", "+0.015 ± 0.007")
    lost = line_of(text, "had2")
    assert (lost["last loss"], lost["last loss to none"]) == ("-", "-")
    other = record("sortquant-cola", "had2", 1, 0.1)
    save(tmp_path, replace(other, samples=other.samples | {"train_loss": [0.6, 0.2]}))
    lost = line_of(page(tmp_path, tmp_path / "docs"), "had2")
    assert (lost["last loss"], lost["last loss to none"]) == ("-", "-"), "what one seed has is not that of both"


def test_runs_in_which_a_gradient_spiked_early_are_counted(tmp_path):
    calm = {"grad_norm": [5.0] * 8, "grad_norm_largest": [19.0] * 8}
    early, late = ({"grad_norm_largest": [*[19.0] * k, 21.0, *[19.0] * (7 - k)]} for k in (1, 7))
    curves = {("none", 0): calm, ("none", 1): calm | late, ("had4", 0): calm | early, ("had4", 1): calm}
    for (name, seed), samples in curves.items():
        each = record("sortquant-cifar10", name, seed, 0.9)
        save(tmp_path, replace(each, samples=each.samples | samples))
    save(tmp_path, record("sortquant-cifar10", "wave4", 0, 0.9))
    text = page(tmp_path, tmp_path / "docs")
    found = {name: line_of(text, name)["spikes"] for name in ("none", "had4", "wave4")}
    assert found == {"none": "0 of 2", "had4": "1 of 2", "wave4": "-"}


def test_ratios_of_cuts_are_told_where_they_differ(tmp_path):
    uneven = record("bottlenecks-cifar10", "conv20k4s4-conv320", 0, 0.9)
    uneven.results.update(float32_ratio_cut_1=0.02, float32_ratio_cut_2=0.25)
    save(tmp_path, record("bottlenecks-cifar10", "none", 0, 0.9), uneven, record("prune-vs-quant", "none", 0, 0.8))
    text = page(tmp_path, tmp_path / "docs")
    assert line_of(text, "conv20k4s4-conv320")["cut 1, cut 2"] == "0.0200, 0.2500"
    assert line_of(text, "none")["cut 1, cut 2"] == ""
    assert text.count("cut 1, cut 2") == 1, "from scratch there is nothing to tell"


def test_commands_are_told_once_and_with_their_rows_where_there_are_several(tmp_path):
    first = [record("sortquant-cifar10", "none", seed, 0.9) for seed in (0, 1)]
    save(tmp_path, *first)
    command = "- `thinpipe reproduce sortquant-cifar10` at abc, on 1 x a gpu, 16 cores of a cpu, torch 2"
    folded = re.findall(r"<details>.*?</details>\n", page(tmp_path, tmp_path / "docs"), re.DOTALL)
    assert [part.count(f"\n\n{command}\n\n") for part in folded] == [1], "markdown ends at a tag without a blank line"
    save(tmp_path, replace(first[1], commit="def"), record("sortquant-cifar10", "had4", 0, 0.9))
    text = page(tmp_path, tmp_path / "docs")
    assert (
        f"{command}: none (seed 0), had4\n" in text and "at def, on 1 x a gpu" in text and ": none (seed 1)\n" in text
    )
    assert "- All rows: Python 3.12, thinpipe 0.1, torch 2; trained on cuda." in text


# -- the pictures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in ("sortquant-cifar10", "sortquant-cifar100", "sortquant-cola", "ablation-bits"):
        save(folder, *some(name))
    page(folder, folder / "docs")
    return {path.name: ElementTree.parse(path).getroot() for path in (folder / "docs/img").iterdir()}


def test_names_in_pictures_do_not_overlap(pictures):
    assert len(pictures) == 6
    for picture, root in pictures.items():
        boxes = named(root)
        assert len(boxes) > 5, picture
        for one, other in combinations(boxes, 2):
            assert not boxes[one].meets(boxes[other]), (picture, one, other)
        width = float(root.get("width"))
        assert all(box.left >= 0 and box.right <= width for box in boxes.values())


def test_pictures_say_in_words_what_they_show(pictures):
    for root in pictures.values():
        assert root.find(f"{SVG}title").text and "sort:6+2" in root.find(f"{SVG}desc").text


def test_the_documents_figures_are_hollow_and_ours_have_bars(pictures):
    root = pictures["results-sortquant-cifar10.svg"]
    rows = TABLES["sortquant-cifar10"].rows
    hollow = [each for each in root if each.get("fill") == "none" and each.tag in (f"{SVG}path", f"{SVG}circle")]
    theirs = [row for row in rows if row.published.value is not None]
    keys = sum(", published" in (text.text or "") for text in root.iter(f"{SVG}text"))
    assert len([each for each in hollow if each.get("stroke", "").startswith("#")]) == len(theirs) + keys
    bars = [path for path in root.iter(f"{SVG}path") if path.get("stroke-opacity") and " V" in path.get("d")]
    shown = [row for row in rows if row.codec != "sort:3+1"]
    assert len(bars) == len(shown) + sum(bool(row.published.deviation) for row in shown)


def test_what_two_tables_have_in_common_is_seen_once(pictures):
    said = pictures["results-frontier.svg"].find(f"{SVG}desc").text
    first, *others = said.split(". ")
    assert first.startswith("CIFAR-10 ") and first.count("sort:6+2") == 1, "the table of codecs and that of bits"
    assert first.count("uniform:12") == 1, "which that of bits alone has"
    assert {other.split(" ")[0] for other in others} == {"CIFAR-100", "CoLA", "RTE"}
    assert all("none: none 0.00 at 1" in each for each in (first, *others))


def test_a_collapse_is_put_below_with_its_value_and_does_not_press_the_rest_flat():
    fine = [Mark(name=f"a{k}", x=0.1 * k, y=-0.3 * k) for k in range(1, 8)]
    sunk = Mark(name="lost", x=0.05, y=-84.6)
    root = drawn([Series(name="a", look=LOOK, marks=[*fine, sunk])], highest=0.0)
    heights = [float(circle.get("cy")) for circle in root.iter("circle")]
    assert len(heights) == len(fine) and max(heights) - min(heights) > 0.5 * FRAME.height
    strip = next(text for text in root.iter("text") if text.text == "lost -84.6")
    assert float(strip.get("y")) > FRAME.bottom
    (line,) = root.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert points[0][1] == pytest.approx(FRAME.bottom), "the line to it ends at the floor"
    assert len(points) == len(fine) + 1


def test_one_row_of_ours_is_no_picture_but_one_curve_by_epoch_is(tmp_path):
    save(tmp_path, record("sortquant-rte", "none", 0, 0.7), record("ablation-bits", "rte-none", 0, 0.7))
    save(tmp_path, *(record("ablation-bits", f"cifar10-{row}", 0, 0.9) for row in ("none", "uniform8")))
    save(tmp_path, record("cola-recipes", TABLES["cola-recipes"].rows[0].name, 0, 0.4))
    text = page(tmp_path, tmp_path / "docs")
    pictures = {path.name for path in (tmp_path / "docs/img").iterdir()}
    drawn = {"results-ablation-bits-cifar10.svg", "results-cola-recipes.svg"}
    assert pictures - {"results-frontier.svg"} == drawn == set(re.findall(r"img/(results-(?!frontier)[^)]+)", text))


def test_small_differences_look_small_where_a_panel_reaches_deep():
    marks = [Mark(name="", x=0.1 * k, y=0.1 * (k % 2)) for k in range(1, 5)]
    series = [Series(name="a", look=LOOK, marks=marks)]
    near, deep = (drawn(series, highest=0.0, depth=depth) for depth in (0.0, 5.0))
    heights = [[float(circle.get("cy")) for circle in root.iter("circle")] for root in (near, deep)]
    spread = [max(each) - min(each) for each in heights]
    assert spread[0] > 0.5 * FRAME.height and spread[1] < 0.05 * FRAME.height
    assert "-5" in {text.text for text in deep.iter("text")}
    assert floor_of([0, -0.1, -0.1, -7], 0.0) == -0.1
    assert floor_of([0, -0.1, -0.1, -7], 0.0, depth=5.0) == -7


def test_where_nothing_collapses_nothing_is_cut_off():
    assert floor_of([94.6, 94.5, 94.0, 93.2]) == 93.2
    assert floor_of([94.6, 94.5, 94.4, 10.0]) == 94.4
    assert floor_of([0, -0.2, -1, -2.2, -8], 0.0) == -2.2
    assert floor_of([-40, -50, -60], 0.0) == -60, "if all of it is low that is what there is to see"
    assert floor_of([]) == 0.0


def test_collapses_at_the_same_ratio_get_lines_of_their_own():
    marks = [Mark(name=f"lost {k}", x=0.1, y=-80.0 - k) for k in range(3)]
    fine = [Mark(name="", x=0.1 * k, y=-0.1) for k in range(1, 10)]
    root = drawn([Series(name="a", look=LOOK, marks=[*marks, *fine])], highest=0.0)
    heights = {float(text.get("y")) for text in root.iter("text") if text.text.startswith("lost")}
    assert len(heights) == 3


@given(
    st.lists(
        st.tuples(st.floats(0.001, 1), st.floats(-100, 5), st.floats(0, 3), st.booleans()), min_size=1, max_size=40
    )
)
def test_whatever_the_marks_their_names_do_not_overlap_and_the_marks_are_in_the_frame(found):
    marks = [Mark(name=f"name:{k}", x=x, y=y, deviation=d, matters=m) for k, (x, y, d, m) in enumerate(found)]
    root = drawn([Series(name="a", look=LOOK, marks=marks)])
    boxes = list(named(root).values())
    assert not any(one.meets(other) for one, other in combinations(boxes, 2))
    circles = list(root.iter("circle"))
    assert len(circles) + sum(path.get("d").endswith("h10l-5,8z") for path in root.iter("path")) == len(marks)
    for circle in circles:
        assert FRAME.left <= float(circle.get("cx")) <= FRAME.right
        assert FRAME.top - 0.1 <= float(circle.get("cy")) <= FRAME.bottom + 0.1


def test_a_name_that_has_no_room_is_left_out_unless_it_may_be_far():
    bounds, crowd = Box(0, 0, 400, 200), Box(80, 80, 120, 120)
    assert Room(bounds, [crowd]).beside("name", 100, 100, far=False) is None
    place = Room(bounds, [crowd]).beside("name", 100, 100, far=True)
    assert place is not None and not place.meets(crowd) and place.left > crowd.right
    assert place.right - place.left == pytest.approx(width_of("name"))
    assert Room(Box(0, 0, 10, 10), []).beside("long name", 5, 5, far=True) is None


def test_ratios_beside_an_axis_are_round():
    assert [tick for tick, said in ratios(0.0008, 1.2) if said] == pytest.approx([0.001, 0.01, 0.1, 1])
    assert [tick for tick, said in ratios(0.04, 0.6) if said] == pytest.approx([0.05, 0.1, 0.2, 0.5])


def test_every_series_of_a_table_has_a_look_and_no_two_in_a_plot_the_same():
    for table in TABLES.values():
        if not table.by_epoch:
            series = list(dict.fromkeys(row.series for row in table.rows))
            assert len({LOOKS[name] for name in series}) == len(series), table.name
