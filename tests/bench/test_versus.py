"""Pipelines and data parallel processes train the same batch, and their bytes are counted."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe.bench.documents import COMPARED, compared
from thinpipe.bench.page import write_page
from thinpipe.bench.record import Record
from thinpipe.bench.seating import Seating
from thinpipe.bench.shapes import MOBILENET, ROBERTA, Shape, Whole, loss
from thinpipe.bench.versus_cut import Cut, Manner, cut, unit_seconds
from thinpipe.bench.versus_rank import Assignment
from thinpipe.bench.versus_sheet import versus_sheet
from thinpipe.bench.versus_variants import ddp_bytes
from thinpipe.cli import app

VARIANTS = ["alone", "ddp", "even", "even+had:4", "client", "client+had:4"]


def versus(*words, fails=False):
    result = CliRunner().invoke(app, ["reproduce", "dp-vs-pipeline", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.replace("│", " ").split()) if fails else json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("results")
    versus("--tiny", "--models", ROBERTA, "--processes", 2, "--rounds", 1, "--json", "--output", folder)
    return folder


@pytest.fixture(scope="module")
def record(folder):
    return Record.load(folder / "pipeline-vs-dp" / "roberta-base-2.json")


def test_all_variants_train_the_same_model_on_the_same_batch(record):
    losses = record.settings["losses"]
    assert list(losses) == VARIANTS
    for name in ("ddp", "even", "client"):  # the second loss is that of the first step's gradients, in all processes
        assert losses[name] == pytest.approx(losses["alone"], rel=1e-5)
    assert losses["client+had:4"] == pytest.approx(losses["alone"], rel=1e-2)
    assert len(set(losses["alone"])) == 2


def test_bytes_are_those_of_gradients_and_of_what_crosses_a_cut(record):
    sent = {name: 1e6 * record.results[f"{name}_megabytes"] for name in VARIANTS}
    hidden = 8 * 8 * 32 * 4  # rows, tokens, width, bytes; at one cut, there and back
    assert 2 * hidden < sent["even"] < 1.2 * 2 * hidden
    assert sent["client"] == pytest.approx(2 * sent["even"])
    assert sent["even+had:4"] < sent["even"] / 4
    model = Shape.of(ROBERTA, tiny=True).model()
    assert sent["ddp"] == ddp_bytes(model, 2) > 2 * 4 * sum(p.numel() for p in model.parameters())
    assert sent["alone"] == 0


def test_the_sheet_has_the_documents_beside_ours_and_says_what_can_be_concluded(record):
    sheet = versus_sheet([record])
    assert [line[1] for line in sheet.lines] == VARIANTS
    documents = dict(zip(VARIANTS, (line[-1] for line in sheet.lines), strict=True))
    assert documents["client"] == "61.53/s (0.81x)" and documents["even"] == "-"
    assert any("What cannot" in note for note in sheet.notes)


def test_the_page_has_a_picture_of_the_rows_and_what_they_do_not_tell(folder, tmp_path):
    page = write_page(folder, tmp_path).read_text()
    assert "![Pipeline and data parallel: speed-up over one process](img/pipeline-vs-dp.svg)" in page
    assert "What cannot: which way is faster on GPUs" in page
    assert "client+had:4" in (tmp_path / "img" / "pipeline-vs-dp.svg").read_text()


def test_a_client_has_both_ends_and_an_even_cut_is_by_time():
    names, costs = list("bcdefgh"), [1, 1, 1, 1, 4, 4, 1, 1]
    assert cut(Manner.EVEN, names, costs, 2, 1) == Cut(("f",), (0, 1))
    assert cut(Manner.CLIENT, names, costs, 2, 1) == Cut(("b", "h"), (0, 1, 0))
    assert cut(Manner.CLIENT, names, costs, 4, 1) == Cut(("b", "e", "f", "h"), (0, 1, 2, 3, 0))


def test_the_units_of_a_model_are_its_blocks():
    shape = Shape.of(MOBILENET, tiny=True)
    model = shape.model()
    names = shape.units(model)
    assert names[0] == "features_1_conv_0_0" and names[-1] == "avgpool" and len(names) == 19
    inputs, targets = shape.batch(2, torch.Generator())
    assert len(unit_seconds(shape, model, inputs, 0.0)) == 20
    assert loss(Whole(model)(inputs), targets).isfinite()


def test_data_parallel_bytes_are_those_of_a_ring():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    gradients, buffers = 4 * (16 + 8), 4 * 8 + 8
    # Each of four sends three quarters of the gradients twice.
    assert ddp_bytes(model, 4) == 4 * 2 * 3 / 4 * gradients + 3 * buffers


def test_a_figure_of_the_documents_is_over_data_parallel_with_the_same_batch():
    row, ratio = compared(MOBILENET, "client", 4)
    assert (row.chunks, row.batch) == (4, 256)
    assert ratio == 400.30 / 627.22
    assert compared(ROBERTA, "even", 2) is None
    assert compared(MOBILENET, "client", 3) is None
    assert len(COMPARED) == 12


def test_a_rank_reads_its_assignment_from_its_command_line():
    assignment = Assignment(
        seating=Seating(1, 2, (3, 4), 2, "/some/file"),
        shape=Shape.of(MOBILENET),
        rows=8,
        chunks=4,
        schedule="1f1b",
        cuts={"even": Cut(("a",), (0, 1))},
        variants=("ddp",),
        rounds=1,
        warm_up=1,
        seed=0,
    )
    assert Assignment.read(assignment.text()) == assignment


def test_what_cannot_be_run_is_refused_with_advice():
    assert "--batch 8" in versus("--batch", 6, "--processes", "4", fails=True)
    assert "no model is called 'vgg'" in versus("--models", "vgg", fails=True)
    assert "2 or more" in versus("--processes", "1", fails=True)
    assert "hat:4" in versus("--codec", "hat:4", fails=True)
