"""Pipelines, torchgpipe and data parallel processes train the documents' batches, and their bytes are counted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe.bench.documents import COMPARED, DDP, base_of
from thinpipe.bench.measure import Samples
from thinpipe.bench.page import write_page
from thinpipe.bench.record import Record
from thinpipe.bench.seating import Seating
from thinpipe.bench.shapes import MOBILENET, ROBERTA, Shape, Whole, loss, optimizer_of
from thinpipe.bench.versus import results
from thinpipe.bench.versus_command import _Asked, _plans
from thinpipe.bench.versus_cut import Cut, Manner, documents_cut, timed_cut, unit_seconds
from thinpipe.bench.versus_plan import ALONE, PIPELINE, Plan, Training, Variant, documents_variants, own_variants
from thinpipe.bench.versus_rank import Assignment
from thinpipe.bench.versus_sheet import earlier_sheet, every_row, versus_sheet
from thinpipe.bench.versus_variants import ddp_bytes
from thinpipe.cli import app

ROOT = Path(__file__).parents[2]
VARIANTS = ["alone-b8", "ddp-2-b8", "client-b8-c4", "even-timed-b8-c4", "client-b8-c4+had:4", "even-timed-b8-c4+had:4"]
OWN = "roberta-base-2-b8-c4-client-even-timed-had4-tiny"
DOCUMENTS = "mobilenetv2-2-documents-by8-none-tiny"


def versus(*words, fails=False):
    result = CliRunner().invoke(app, ["reproduce", "dp-vs-pipeline", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    return " ".join(result.output.replace("│", " ").split()) if fails else json.loads(result.stdout.splitlines()[-1])


def column(sheet, head, rows=None):
    return [line[sheet.heads.index(head)] for line in sheet.lines][:rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("results")
    words = ("--tiny", "--models", ROBERTA, "--processes", 2, "--rounds", 1, "--batch", 8, "--codec", "had:4")
    versus(*words, "--pipelines", "client,even-timed", "--json", "--output", folder)
    return folder


@pytest.fixture(scope="module")
def record(folder):
    return Record.load(folder / "pipeline-vs-dp" / f"{OWN}.json")


@pytest.fixture(scope="module")
def documents(folder):
    pytest.importorskip("torchgpipe")
    words = ("--tiny", "--models", MOBILENET, "--processes", 2, "--rounds", 1, "--codec", "none")
    versus(*words, "--json", "--output", folder)
    return Record.load(folder / "pipeline-vs-dp" / f"{DOCUMENTS}.json")


def test_all_variants_train_the_same_model_on_the_same_batch(record):
    losses = record.settings["losses"]
    assert list(losses) == VARIANTS
    for name in VARIANTS[1:4]:  # the second loss is that of the first step's gradients, in all processes
        assert losses[name] == pytest.approx(losses["alone-b8"], rel=1e-5)
    assert losses["client-b8-c4+had:4"] == pytest.approx(losses["alone-b8"], rel=1e-2)
    assert len(set(losses["alone-b8"])) == 2


def test_bytes_are_those_of_gradients_and_of_what_crosses_a_cut(record):
    sent = {name: 1e6 * record.results[f"{name}_megabytes"] for name in VARIANTS}
    hidden = 8 * 8 * 32 * 4  # rows, tokens, width, bytes; at one cut, there and back
    assert 2 * hidden < sent["even-timed-b8-c4"] < 1.2 * 2 * hidden
    assert sent["client-b8-c4"] == pytest.approx(2 * sent["even-timed-b8-c4"])
    assert sent["even-timed-b8-c4+had:4"] < sent["even-timed-b8-c4"] / 4
    model = Shape.of(ROBERTA, tiny=True).model()
    assert sent["ddp-2-b8"] == ddp_bytes(model, 2) > 2 * 4 * sum(p.numel() for p in model.parameters())
    assert sent["alone-b8"] == 0


def test_the_documents_rows_have_their_own_batches_and_torchgpipe_among_them(documents):
    ours = ["alone-b8", "ddp-2-b16", "ddp-2-b8", "client-b8-c4", "torchgpipe-b8-c4", "halves-b8-c4"]
    assert sorted(documents.samples) == sorted(ours) and documents.settings["base"] == "ddp-2-b16"
    assert documents.settings["schedule"] == "gpipe" and documents.settings["pipeline_momentum"] == 0
    assert documents.settings["cuts"]["halves"]["ranks"] == [0, 1, 0]
    for name in ours[3:]:  # with BatchNorm of micro-batches; dropout draws apart
        assert documents.settings["losses"][name][0] == pytest.approx(
            documents.settings["losses"][ours[3]][0], rel=0.01
        )
    sheet = versus_sheet([documents])
    assert column(sheet, "experiment", 4) == [row.name for row in COMPARED[:4]]
    assert column(sheet, "variant", 4) == [ours[1], ours[3], ours[4], ours[5]]
    assert column(sheet, "published", 4) == ["1.00x", "0.61x", "0.57x", "0.85x"]
    assert column(sheet, "over ddp-2")[0] == "1.00x" and column(sheet, "equal batch")[0] == "-"
    assert column(sheet, "equal batch")[1] == f"{documents.results['client-b8-c4_over_equal_batch']:.2f}x"
    assert any("divided by 8" in note for note in sheet.notes)


def test_batch_norm_sees_the_rows_of_its_process_unless_it_is_asked_to_see_all(documents, tmp_path):
    words = ("--tiny", "--models", MOBILENET, "--processes", 2, "--rounds", 1, "--batch", 8, "--chunks", 2)
    asked = ("--codec", "none", "--pipelines", "client-timed", "--sync-batch-norm", "--schedule", "1f1b")
    versus(*words, *asked, "--json", "--output", tmp_path)
    name = "mobilenetv2-2-b8-c2-client-timed-none-1f1b-synced-tiny"
    losses = Record.load(tmp_path / "pipeline-vs-dp" / f"{name}.json").settings["losses"]
    assert losses["ddp-2-b8"] == pytest.approx(losses["alone-b8"], rel=1e-4)
    alone, own = (documents.settings["losses"][name][0] for name in ("alone-b8", "ddp-2-b8"))
    assert own != pytest.approx(alone, rel=1e-4)


def test_a_speed_up_is_over_two_data_parallel_processes_with_the_documents_batch():
    alone, base, equal, piped = variants = (
        Variant(ALONE, 64),
        Variant(DDP, 128, 2),
        Variant(DDP, 64, 2),
        Variant(PIPELINE, 64, 2, 4, "client"),
    )
    seconds = {alone.name: [8.0], base.name: [8.0], equal.name: [5.0], piped.name: [6.0]}
    found = results(Samples(seconds), dict.fromkeys(seconds, 1e6), variants, base)
    assert found["client-b64-c4_over_base"] == (64 / 6) / (128 / 8)
    assert found["client-b64-c4_over_equal_batch"] == pytest.approx(5 / 6)
    assert found["client-b64-c4_over_one"] == pytest.approx(8 / 6) and found["ddp-2-b128_over_one"] == 2
    assert found["ddp-2-b128_over_equal_batch"] is None


def test_a_published_row_that_was_not_run_is_shown_with_its_figures(record):
    sheet = every_row([record])
    assert len(COMPARED) == 19 and column(sheet, "experiment", 19) == [row.name for row in COMPARED]
    assert set(column(sheet, "variant", 19)) == {"not run"}, "8 rows are nobody's"
    nine = {"76.19", "90.56", "94.12", "98.46", "111.67", "121.93", "64.03", "62.19", "69.57"}
    assert nine <= {word for cell in column(sheet, "rows/s, published") for word in cell.split(" and ")}
    assert column(sheet, "variant")[19:] == VARIANTS


def test_published_speed_ups_follow_from_published_throughputs():
    printed = [1, 0.607, 0.566, 0.847, 1.07, 1.11, 1.06, 1.66, 1, 0.80, 0.90, 1.40, 1.27, 1.25]
    for row, ratio in zip(COMPARED, printed, strict=False):
        assert row.over_base == pytest.approx(ratio, abs=0.011), row
    assert base_of(MOBILENET).batch == 128
    assert COMPARED[1].at_equal_batch is None and COMPARED[4].at_equal_batch == 400.30 / 627.22


def test_rows_that_differ_in_anything_have_records_of_their_own():
    shape, usual = Shape.of(MOBILENET), documents_variants(MOBILENET, 2, codec="wave:4")
    plan = Plan(shape, 2, usual, Variant(DDP, 128, 2), "documents")
    others = [
        replace(plan, processes=4),
        replace(plan, divided=4),
        replace(plan, label="b64-c4"),
        replace(plan, label="b64-c8"),
        replace(plan, variants=documents_variants(MOBILENET, 2)),
        replace(plan, variants=documents_variants(MOBILENET, 2, codec="had:4")),
        replace(plan, training=Training(schedule="1f1b")),
        replace(plan, training=Training(pipeline_momentum=0.9)),
        replace(plan, training=Training(ddp_momentum=0.5)),
        replace(plan, training=Training(synced=True)),
        replace(plan, shape=Shape.of(MOBILENET, pixels=96)),
        replace(plan, threads=2),
        replace(plan, seed=1),
        replace(plan, device="cuda"),
    ]
    assert plan.name == "mobilenetv2-2-documents"
    assert len({each.name for each in (plan, *others)}) == 1 + len(others)


def test_records_of_earlier_settings_are_shown_apart_as_what_they_are(tmp_path):
    page = write_page(ROOT / "results", tmp_path).read_text()
    _, _, earlier = page.partition("## Pipeline and data parallel, earlier settings\n")
    assert "schedule 1f1b" in earlier and "| roberta-base-4 | client | 8 (4 chunks) | 3.42 | 1.10x |" in earlier
    first, _, _ = page.partition("## Data parallel, parts of a step")
    assert "| mobilenetv2-2 | client | 32" not in first and "(origin code)" in first


def test_the_page_has_a_picture_of_the_rows_and_what_they_do_not_tell(folder, record, tmp_path):
    page = write_page(folder, tmp_path).read_text()
    assert "![Pipeline and data parallel: throughput over data parallel on two](img/pipeline-vs-dp.svg)" in page
    assert "What cannot: which way is faster on GPUs" in page and "the wait for a data loader" in page
    assert "client-b8-c4+had:4" in (tmp_path / "img" / "pipeline-vs-dp.svg").read_text()


def test_ratios_within_one_round_are_not_called_medians():
    once = [Record.load(path) for path in sorted((ROOT / "results" / "pipeline-vs-dp").glob("*-[24].json"))]
    assert any("in one round, so a ratio has the noise of two" in note for note in earlier_sheet(once).notes)
    thrice = [replace(each, samples={name: times * 3 for name, times in each.samples.items()}) for each in once]
    assert any("medians of those within 3 rounds" in note for note in earlier_sheet(thrice).notes)


def test_the_documents_cuts_are_those_of_their_programs():
    names = Shape.of(MOBILENET).units(Shape.of(MOBILENET).model())

    def features(cut):
        return [name.split("_")[1] if "_" in name else name for name in cut.at]

    def cut(manner, processes):
        return documents_cut(manner, MOBILENET, names, processes)

    assert features(cut(Manner.CLIENT, 2)) == ["1", "avgpool"] and cut(Manner.CLIENT, 2).ranks == (0, 1, 0)
    assert features(cut(Manner.CLIENT, 4)) == ["1", "3", "7", "avgpool"]
    assert features(cut(Manner.HALVES, 2)) == ["3", "17"] and cut(Manner.HALVES, 2).ranks == (0, 1, 0)
    layers = [*map(str, range(12)), "head"]
    assert documents_cut(Manner.CLIENT, ROBERTA, layers, 4) == Cut(("1", "5", "9", "11"), (0, 1, 2, 3, 0))
    assert documents_cut(Manner.CLIENT, ROBERTA, layers, 2) == Cut(("1", "11"), (0, 1, 0))


def test_a_client_has_both_ends_and_an_even_cut_is_by_time():
    names, costs = list("bcdefgh"), [1, 1, 1, 1, 4, 4, 1, 1]
    assert timed_cut(Manner.EVEN_TIMED, names, costs, 2, 1) == Cut(("f",), (0, 1))
    assert timed_cut(Manner.CLIENT_TIMED, names, costs, 2, 1) == Cut(("b", "h"), (0, 1, 0))
    assert timed_cut(Manner.CLIENT_TIMED, names, costs, 4, 1) == Cut(("b", "e", "f", "h"), (0, 1, 2, 3, 0))


def test_every_published_row_is_measured_by_a_command():
    for model in (MOBILENET, ROBERTA):
        for processes in (2, 3, 4):
            found = documents_variants(model, processes)
            ours = {(each.published_way, each.processes, each.rows, each.chunks) for each in found}
            rows = [row for row in COMPARED if (row.model, row.devices) == (model, processes)]
            assert {(row.way, row.devices, row.batch, row.chunks) for row in rows} <= ours
    assert documents_variants(MOBILENET, 3) == ()
    assert {each.rows for each in own_variants(4, 8, 2, pipelines=["client-timed"])} == {8}


def test_a_momentum_is_that_of_the_way(record):
    model = nn.Linear(1, 1)
    assert [optimizer_of("sgd", model.parameters(), momentum=m).defaults["momentum"] for m in (0.0, 0.9)] == [0.0, 0.9]
    assert (record.settings["pipeline_momentum"], record.settings["ddp_momentum"]) == (0.0, 0.9)


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


def test_a_rank_reads_its_assignment_from_its_command_line():
    assignment = Assignment(
        seating=Seating(1, 2, (3, 4), 2, "/some/file"),
        cores=(1, 2, 3, 4),
        shape=Shape.of(MOBILENET),
        training=Training(synced=True),
        device="cpu",
        cuts={"client": Cut(("a",), (0, 1))},
        variants=(Variant(DDP, 8, 2), Variant(PIPELINE, 8, 2, 4, "client", "had:4")),
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
    assert "write --batch 64 for rows of your own" in versus("--models", MOBILENET, "--processes", "3", fails=True)
    assert "not by 3" in versus("--divide", 3, fails=True)
    assert "write --batch 64 as well" in versus("--chunks", 2, fails=True)
    assert "leave it out with --batch" in versus("--divide", 2, "--batch", 64, fails=True)
    assert "did you mean client" in versus("--pipelines", "clint", fails=True)
    alone = ("--models", ROBERTA, "--processes", "3", "--batch", 6, "--pipelines")
    assert "--pipelines client-timed,even-timed" in versus(*alone, "client", fails=True)


def test_without_torchgpipe_a_row_is_another_one(monkeypatch, capsys):
    asked = _Asked(batch=None, chunks=None, divide=1, pipelines=None, codec=None)
    pytest.importorskip("torchgpipe")
    (whole,) = _plans(asked, Shape.of(MOBILENET), 2)
    monkeypatch.setattr("thinpipe.bench.versus_command.has_torchgpipe", lambda: False)
    (rest,) = _plans(asked, Shape.of(MOBILENET), 2)
    assert {each.name for each in whole.variants} - {each.name for each in rest.variants} == {"torchgpipe-b64-c4"}
    assert rest.name == "mobilenetv2-2-documents-without-torchgpipe-none"
    assert "pip install 'thinpipe[bench]'" in capsys.readouterr().err
