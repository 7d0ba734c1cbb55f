"""The published rows are data that fits the networks they are about."""

import pytest

from thinpipe.bench.rows import AMOEBANET_SPEED, RESNET_SPEED, TABLES, UNET_SPEED, UNET_TIMELINE
from thinpipe.bench.speed import Length
from thinpipe.bench.workload import layer_count, resized, stretched, tiny, with_batch

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
        assert (row.name, row.balance) == ("baseline", ())


def test_published_speedups_are_ratios_of_published_throughputs():
    for table in (UNET_SPEED, AMOEBANET_SPEED, RESNET_SPEED):
        base = next(row for row in table.rows if row.name == table.reference).published.throughput
        for row in table.rows:
            if row.published.throughput is None:
                assert row.name.endswith("-torchgpipe" if row.rival else "-cheap")
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
