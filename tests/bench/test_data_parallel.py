"""A data parallel step is taken apart, and its parts are those of the whole."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe.bench.data_parallel import Plan, results
from thinpipe.bench.data_parallel_command import _documents
from thinpipe.bench.data_parallel_rank import Assignment
from thinpipe.bench.data_parallel_replica import OPTIMIZERS
from thinpipe.bench.data_parallel_sheet import data_parallel_sheet, documents_say, every_row
from thinpipe.bench.data_parallel_source import Source
from thinpipe.bench.documents import TIMED, timed
from thinpipe.bench.record import Record
from thinpipe.bench.seating import Seating
from thinpipe.bench.shapes import MOBILENET, NAMES, ROBERTA, VGG, Shape
from thinpipe.cli import app
from thinpipe.models import mobilenet_v2, resnet101, vgg13

PHASES = ("data", "forward", "backward", "optimizer")


def data_parallel(*words, fails=False):
    result = CliRunner().invoke(app, ["reproduce", "data-parallel", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.replace("│", " ").split()) if fails else json.loads(result.stdout.splitlines()[-1])


def test_the_command_takes_a_step_apart_and_records_it(tmp_path):
    words = ("--tiny", "--models", VGG, "--processes", 2, "--rounds", 2)
    run = data_parallel(*words, "--json", "--output", tmp_path)
    record = Record.load(tmp_path / "data-parallel" / "vgg13-2-b4-tiny.json")
    assert run["rows"][0]["samples"] == record.samples
    assert {len(seconds) for seconds in record.samples.values()} == {2}
    elements = sum(p.numel() for p in Shape.of(VGG, tiny=True).model().parameters())
    assert sum(record.settings["buckets"]) == elements  # every gradient is summed, once
    for name in OPTIMIZERS:
        assert all(record.results[f"{name}_{phase}_ms"] > 0 for phase in PHASES)
    lines = data_parallel_sheet([record]).lines
    assert [line[:3] for line in lines] == [["vgg13-2-b4-tiny", "4", name] for name in OPTIMIZERS]
    assert lines[0][-3:] == ["636", "64", "704, 64"]
    whole = every_row([record]).lines
    not_run = [(line[0], line[2]) for line in whole if line[1] == "not run"]
    others = [(f"{row.model}-{row.devices}", row.optimizer) for row in TIMED if (row.model, row.devices) != (VGG, 2)]
    assert not_run == others and len(TIMED) == 14


def test_without_a_number_of_processes_there_are_as_many_as_in_the_documents():
    assert [(name, _documents(name)) for name in NAMES] == [(MOBILENET, [2, 3, 4]), (VGG, [2, 4]), (ROBERTA, [2, 3, 4])]


def test_rows_of_other_batches_have_records_of_their_own():
    plan = Plan(Shape.of(VGG), 2, 64)
    others = [Plan(Shape.of(VGG), 2, 16), Plan(Shape.of(VGG), 2, 64, "cuda"), Plan(Shape.of(VGG), 2, 64, threads=4)]
    assert plan.name == "vgg13-2-b64" and len({each.name for each in (plan, *others)}) == 4


def test_the_parameters_that_are_told_are_those_of_the_models():
    (told,) = (note for note in every_row([]).notes if "Millions of parameters" in note)
    with torch.device("meta"):
        models = [mobilenet_v2(10), vgg13(10), vgg13(1000), resnet101()]
    for model in models:
        assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}" in told.replace(",", "")


def test_what_the_all_reduce_adds_is_the_median_of_differences_within_rounds():
    samples = {"backward alone": [1.0, 3.0, 5.0], "all-reduce alone": [2.0, 2.0, 2.0]}
    for name in OPTIMIZERS:
        samples |= {f"{name} {phase}": [1.0, 1.0, 1.0] for phase in PHASES}
        samples |= {f"{name} timer {part}": [1.0, 1.0, 1.0] for part in ("data", "forward", "backward")}
        samples[f"{name} whole"] = [8.0, 8.0, 8.0]
    samples["adamw backward"] = [3.0, 4.0, 5.5]
    samples["adamw optimizer"] = [3.0, 3.0, 3.0]
    found = results(samples)
    assert found["adamw_all_reduce_ms"] == 1000  # of 2, 1 and 0.5 s
    assert found["sgd_phases_over_whole"] == 0.5
    assert found["adamw_over_sgd_optimizer"] == 3


def test_texts_are_padded_and_images_normalised():
    pytest.importorskip("transformers")
    texts, targets = Source(Shape.of(ROBERTA, tiny=True), 4, torch.device("cpu"), 0).batch()
    assert texts["input_ids"].shape == (4, 8) and targets.shape == (4,)
    assert (texts["input_ids"][texts["attention_mask"] == 0] == 1).all()
    assert texts["attention_mask"].sum(1).min() >= 4
    images, _ = Source(Shape.of(MOBILENET, tiny=True), 4, torch.device("cpu"), 0).batch()
    assert images.shape == (4, 3, 64, 64) and abs(images.mean()) < 0.3 and 1 < images.std() < 2


def test_the_documents_conclusion_is_recalculated_from_their_own_tables():
    why, growth = documents_say()
    assert "149 ms less, 147 of them" in why and "adds 28 ms" in why
    assert "grows by 256 ms with AdamW and by 183 ms with SGD" in " ".join(growth.split())
    assert timed(ROBERTA, "adamw", 3).step == 0.519
    assert timed(ROBERTA, "sgd", 3) is None


def test_a_rank_reads_its_assignment_from_its_command_line():
    assignment = Assignment(Seating(0, 1, None, 1, "/some/file"), Shape.of(VGG), 4, "cpu", 2, 1, 0)
    assert Assignment.read(assignment.text()) == assignment


def test_an_unknown_device_is_refused():
    assert "write --device cpu" in data_parallel("--device", "tpu", fails=True)


def test_a_model_of_a_missing_package_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"thinpipe\[hf\]"):
        Shape.of(ROBERTA).model()
    assert isinstance(Shape.of(VGG, tiny=True).model(), nn.Sequential)
