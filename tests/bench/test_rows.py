"""The published rows are data that fits the networks they are about."""

import pytest
import torch
from torch import nn

from thinpipe.bench.naming import compared_with, named
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.rows import AMOEBANET_MEMORY, AMOEBANET_SPEED, RESNET_SPEED, TABLES, UNET_SPEED, UNET_TIMELINE
from thinpipe.bench.speed import Length
from thinpipe.bench.table import Published
from thinpipe.bench.workload import build, layer_count, resized, stretched, tiny, with_batch

ROWS = [pytest.param(table, row, id=f"{table.bench}-{row.name}") for table in TABLES for row in table.rows]
LAYERS = {"unet": lambda B, C: 44 * B + 21, "amoebanetd": lambda L, D: L + 6, "resnet101": lambda: 370}


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_balance_covers_the_layers_of_its_network(table, row):
    layers = LAYERS[table.network](*row.sizes)
    assert sum(row.balance) in (0, layers)
    assert layer_count(table, row) == layers


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_pipeline_has_as_many_stages_as_its_name_says(table, row):
    if row.name.startswith("pipeline-"):
        assert row.n == int(row.name.split("-")[1])
    elif row.name.startswith("n"):
        n, m = map(int, row.name[1:].split("m"))
        assert (row.n, row.m) == (n, m)
        assert row.checkpoint == ("always" if m == 1 else "except_last")
    elif table is UNET_TIMELINE:
        assert (row.n, row.m) == (4, 8)
    else:
        assert (row.name.removesuffix("-in-place"), row.balance) == ("baseline", ())


def test_published_speedups_are_ratios_of_published_throughputs():
    for table in (UNET_SPEED, AMOEBANET_SPEED, RESNET_SPEED):
        base = next(row for row in table.rows if row.name == table.reference).published.throughput
        for row in table.rows:
            if row.published.throughput is None:
                assert row.name.endswith("-in-place" if row.in_place else "-torchgpipe" if row.rival else "-cheap")
                continue
            assert row.published.throughput / base == pytest.approx(row.published.speedup, abs=6e-4), row.name


@pytest.mark.parametrize(
    ("table", "name", "steps", "remainder"),
    [
        (UNET_SPEED, "baseline", 250, 0),
        (UNET_SPEED, "pipeline-2", 19, 272),
        (UNET_SPEED, "pipeline-8", 15, 400),
        (RESNET_SPEED, "baseline", 423, 86),
        (RESNET_SPEED, "pipeline-4", 8, 4944),
        (AMOEBANET_SPEED, "n8m1", 51, 4),
    ],
)
def test_a_published_epoch_ends_with_what_is_left_over(table, name, steps, remainder):
    row = next(row for row in table.rows if row.name == name)
    batches = Length(2, None).batches(row, table.dataset)
    assert batches == [row.batch] * steps + [remainder] * bool(remainder)
    assert Length(2, 1).batches(row, table.dataset) == [row.batch]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.bench)
def test_a_tiny_table_keeps_the_stages(table):
    small = tiny(table)
    assert [row.n for row in small.rows] == [row.n for row in table.rows]
    assert [bool(row.balance) for row in small.rows] == [bool(row.balance) for row in table.rows]
    for row in small.rows:
        assert sum(row.balance) in (0, layer_count(small, row)) and all(size > 0 for size in row.balance)
        assert row.batch >= 2 * row.m


def test_another_size_and_batch_reach_every_row():
    table = with_batch(resized(AMOEBANET_SPEED, (3, 16)), 12)
    assert {(row.sizes, row.batch, sum(row.balance)) for row in table.rows} == {((3, 16), 12, 9)}
    assert [row.chunks for row in table.rows] == [1, 4, 32] * 3


def test_a_stretched_balance_keeps_shares_and_leaves_no_stage_empty():
    assert stretched((10, 30), 8) == (2, 6)
    assert stretched((800, 140, 62, 36, 36, 36, 36, 987), 9) == (2, 1, 1, 1, 1, 1, 1, 1)
    assert stretched((), 9) == ()


@pytest.mark.parametrize("table", [table for table in TABLES if table.network == "unet"], ids=lambda table: table.bench)
def test_every_unet_is_beside_itself_in_place_and_only_what_is_not_in_place_was_published(table):
    own = {row.name: row for row in table.rows}
    for row in table.rows:
        with torch.device("meta"):
            network = build(tiny(table), next(each for each in tiny(table).rows if each.name == row.name))
        assert {layer.inplace for layer in network if isinstance(layer, nn.LeakyReLU)} == {row.in_place}
        if row.in_place:
            assert row.published == Published()
        elif table is not UNET_TIMELINE:
            twin = own[f"{row.name}-in-place"]
            assert (twin.sizes, twin.batch, twin.balance, twin.limit) == (row.sizes, row.batch, row.balance, row.limit)


def test_what_was_published_apart_is_not_summed():
    for row in AMOEBANET_MEMORY.rows:
        assert row.published.total is None and row.published.model and row.huang.activations.endswith("GB")


def measured(row, devices, seed=0, **environment):
    settings = {"devices": devices, "seed": seed, "environment": environment}
    return Record("bench", {}, {}, settings, Machine("CPU", 2, [], "3.12", {"torch": "2"}), row)


def test_rows_that_differ_in_anything_have_records_of_different_names():
    one, four = ["cuda:0"] * 4, [f"cuda:{k}" for k in range(4)]
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    names = [
        named(measured("pipeline-4", four)).row,
        named(measured("pipeline-4", one)).row,
        named(measured("pipeline-4", ["cuda:0", "cuda:0", "cuda:1", "cuda:1"])).row,
        named(measured("pipeline-4", ["cpu"] * 4)).row,
        named(measured("pipeline-4", four, seed=1)).row,
        named(measured("pipeline-4", four), "", "limit-17").row,
        named(measured("pipeline-4-in-place", one, **expandable), "cleared").row,
        named(measured("pipeline-4", four, CUDNN_CONV_WSCAP_DBG="4096")).row,
    ]
    assert names == [
        "pipeline-4",
        "pipeline-4-one-gpu",
        "pipeline-4-2-gpus",
        "pipeline-4-cpu",
        "pipeline-4-seed-1",
        "pipeline-4-limit-17",
        "pipeline-4-in-place-cleared-expandable-one-gpu",
        "pipeline-4-cudnn-conv-wscap-dbg-4096",
    ]


@pytest.mark.parametrize(
    ("table", "name", "row", "base"),
    [
        (UNET_SPEED, "pipeline-1", "pipeline-1", "baseline"),
        (UNET_SPEED, "pipeline-1-cheap-in-place-3x6", "pipeline-1-cheap-in-place", "baseline-in-place-3x6"),
        (UNET_SPEED, "pipeline-4-published-epochs-one-gpu", "pipeline-4", "baseline-published-epochs"),
        (UNET_SPEED, "pipeline-4-tiny-cpu", "pipeline-4", "baseline-tiny-cpu"),
        (AMOEBANET_SPEED, "n4m32-one-gpu", "n4m32", "n2m1-one-gpu"),
        (AMOEBANET_SPEED, "n4m32", "n4m32", "n2m1"),
    ],
)
def test_a_record_is_compared_with_the_one_that_is_alike_in_all_else(table, name, row, base):
    found = table.row_of(name)
    assert (found.name, compared_with(table, found, name)) == (row, base)


def test_a_record_of_no_row_is_found_to_be_of_none():
    assert UNET_SPEED.row_of("pipeline-16") is UNET_SPEED.row_of("baselines") is None
