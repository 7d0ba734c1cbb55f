"""The tables of trainings from scratch: document 003's network and cut, and its plot of accuracy by epoch."""

import json

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.reproduce.training.ask import Ask, Job
from thinpipe.reproduce.training.picture import plots
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train import resolved


def recipe_of(table, row):
    ask = Ask(
        rows=(row,),
        seeds=(0,),
        epochs=None,
        chunks=None,
        changes={},
        data_dir=None,
        encoder=None,
        device="cpu",
        compile=False,
        tiny=False,
    )
    return Job.of(table, row, 0, ask, None).recipe


def test_every_row_trains_the_recipe_as_it_is_cut_where_the_document_cut_it():
    table = TABLES["prune-vs-quant"]
    expected = resolved("cifar10-scratch", {"on_nan": "continue"})
    assert expected.model == "mobilenet_v2_cifar" and expected.cut == "before-norm"
    assert all(recipe_of(table, row) == expected for row in table.rows)
    assert "topk0.4-uniform8" in [row.name for row in table.rows]


@pytest.mark.parametrize("name", ["short-scratch", "prune-vs-quant-small"])
def test_a_row_that_trains_another_network_is_cut_where_that_one_can_be(name):
    table = TABLES[name]
    found = {(recipe.model, recipe.cut) for recipe in (recipe_of(table, row) for row in table.rows)}
    assert ("mobilenet_v2_32px", "before-relu") in found
    assert found <= {("mobilenet_v2_32px", "before-relu"), ("mobilenet_v2_cifar", "before-norm")}


def test_rows_that_were_chosen_have_curves_by_epoch_beside_the_plot_by_ratio(tmp_path):
    rows = "none,uniform8,downsample2,topk0.2-uniform8"
    result = CliRunner().invoke(
        app, ["reproduce", "prune-vs-quant", "--tiny", "--rows", rows, "--output", str(tmp_path), "--json"]
    )
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1])
    by_ratio, by_epoch = ((tmp_path / "prune-vs-quant" / f"{name}.svg") for name in plots(TABLES["prune-vs-quant"]))
    assert said["pictures"] == [str(by_ratio), str(by_epoch)] and by_epoch.stem == "prune-vs-quant-by-epoch"
    drawn = by_epoch.read_text()
    assert "uniform:8: " in drawn and "topk:0.2|uniform:8: " in drawn and "downsample" not in drawn
    assert drawn.count("<polyline") == 3 and drawn.count("<circle") == 3 * 3 and "downsample" in by_ratio.read_text()
