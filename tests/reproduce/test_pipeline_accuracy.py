"""The accuracy columns of pipelines and data parallel training are rows with the documents' batches and steps."""

import json

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train import resolved

CIFAR10, RTE = "pipelines-cifar10", "pipelines-rte"


def recipes(name):
    return {row.name: resolved(row.work.recipe, row.work.changes) for row in TABLES[name].rows}


def test_pipelines_sum_micro_batches_without_momentum_and_data_parallel_training_takes_their_mean():
    found = {name: (r.batch, r.chunks, r.lr, r.momentum) for name, r in recipes(CIFAR10).items()}
    assert found == {
        "ddp-2-none": (128, 2, 0.005, 0.9),
        "pipeline-b64-c4-none": (64, 4, 0.02, 0.0),
        "pipeline-b256-c4-none": (256, 4, 0.08, 0.0),
        "pipeline-b256-c8-none": (256, 8, 0.16, 0.0),
        "ddp-4-none": (256, 4, 0.02, 0.9),
    }
    assert {(r.epochs, r.last_batch, r.lr_schedule) for r in recipes(CIFAR10).values()} == {(40, "drop", "cosine")}


def test_data_parallel_training_of_rte_decays_weights_and_warms_up_for_500_steps():
    found = recipes(RTE)
    told = {name: (r.batch, r.chunks, r.lr, r.weight_decay) for name, r in found.items()}
    assert told == {
        "ddp-2-none": (32, 2, 2e-5, 0.01),
        "pipeline-b32-c4-none": (32, 4, 2e-5, 0.0),
        "pipeline-b64-c4-none": (64, 4, 4e-5, 0.0),
        "pipeline-b64-c2-none": (64, 2, 4e-5, 0.0),
        "ddp-4-none": (64, 4, 4e-5, 0.01),
    }
    for name, steps in (("ddp-2-none", 20 * 77), ("ddp-4-none", 20 * 38)):
        assert found[name].warmup * steps == pytest.approx(500)


def test_rows_are_trained_in_their_micro_batches_and_shown_with_what_was_published(tmp_path):
    words = ("--tiny", "--epochs", "1", "--rows", "ddp-4*,pipeline-b256-c8*", "--output", str(tmp_path), "--json")
    result = CliRunner().invoke(app, ["reproduce", CIFAR10, *words])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1])
    assert [line["published"] for line in said["table"]] == ["96.07 ± 0.05", "95.94 ± 0.09"]
    assert [row["settings"]["recipe"]["chunks"] for row in said["rows"]] == [8, 4]
    assert [row["settings"]["codec"] for row in said["rows"]] == ["none", "none"]
    page = CliRunner().invoke(app, ["reproduce", "page", "--results", str(tmp_path), "--docs", str(tmp_path)])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "results.md").read_text()
    assert "DistributedDataParallel keeps those of its first process" in text and "codecs at both cuts" not in text
