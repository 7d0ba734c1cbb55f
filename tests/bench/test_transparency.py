"""The same network with and without a pipe: both curves, from the same seeds."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from thinpipe.bench.cifar import find_cifar10, load_cifar10
from thinpipe.bench.transparency import Plan, compare, few
from thinpipe.cli import app


def write_cifar(folder, rows=12):
    """Writes two small training files and a test file in the official layout, and returns their labels."""
    folder.mkdir()
    labels = {}
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        records = torch.randint(256, (rows, 3073), dtype=torch.uint8)
        records[:, 0] = torch.arange(rows) % 10
        labels[name] = records[:, 0]
        (folder / f"{name}.bin").write_bytes(bytes(records.flatten().tolist()))
    return labels


def transparency(*words):
    result = CliRunner().invoke(app, ["reproduce", "transparency", "--tiny", "--devices", "cpu:2", "--json", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_digits_are_trained_both_ways_and_drawn(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    run = transparency("--picture", str(tmp_path / "curves.svg"), "--output", str(tmp_path))
    assert [row["row"] for row in run["rows"]] == [
        "digits-tiny-bare-2-epochs",
        "digits-tiny-pipe-2-epochs",
    ]
    for row in run["rows"]:
        assert list(row["samples"]) == ["seed 0", "seed 1"]
        assert all(0 <= error <= 1 for curve in row["samples"].values() for error in curve)
    assert len(run["table"]) == 2 and "±" in run["table"][0]["digits-tiny-pipe-2-epochs"]
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
    assert (tmp_path / "transparency" / "digits-tiny-pipe-2-epochs.json").exists()


def test_a_pipe_of_whole_batches_learns_exactly_what_the_bare_network_learns():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    from thinpipe.bench.transparency import digits

    plan = Plan(epochs=2, seeds=2, chunks=1)
    _, (bare, piped) = compare(few(digits(), 300), plan, [torch.device("cpu")] * 2)
    assert bare.samples == piped.samples


def test_cifar_is_read_from_its_official_files(tmp_path):
    labels = write_cifar(tmp_path / "cifar-10-batches-bin")
    data = load_cifar10(find_cifar10(tmp_path))
    assert data.train_images.shape == (24, 3, 32, 32) and data.test_images.shape == (12, 3, 32, 32)
    assert data.train_labels.tolist() == [*labels["data_batch_1"], *labels["data_batch_2"]]
    assert find_cifar10(tmp_path / "elsewhere") is None


def test_cifar_is_trained_with_deferred_batch_norm(tmp_path):
    write_cifar(tmp_path / "c", rows=4)
    run = transparency("--data", str(tmp_path / "c"), "--deferred-batch-norm", "--chunks", "2")
    assert [row["row"] for row in run["rows"]] == [
        "cifar-10-tiny-bare-2-epochs",
        "cifar-10-tiny-pipe-deferred-2-epochs-2-chunks",
    ]


def test_a_broken_or_missing_file_is_told_with_what_to_do(tmp_path):
    write_cifar(tmp_path / "c", rows=2)
    (tmp_path / "c" / "data_batch_2.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="fetch it again"):
        load_cifar10(tmp_path / "c")
    result = CliRunner().invoke(app, ["bench", "transparency", "--data", str(tmp_path)])
    assert result.exit_code == 2 and "unpack" in result.output


def test_a_stopped_comparison_goes_on_with_the_next_seed_if_nothing_else_differs(monkeypatch):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    from thinpipe.bench.transparency import digits

    images, plan, places = few(digits(), 150), Plan(epochs=1, seeds=2), [torch.device("cpu")] * 2
    monkeypatch.setenv("THINPIPE_COMMIT", "abc")
    first, both = compare(images, plan, places)
    assert [list(record.samples) for record in first] == [["seed 0"]] * 2

    def trained(begun, plan=plan):
        ticks = []
        *_, last = compare(images, plan, places, ticks.append, {record.row: record for record in begun}.get)
        return len(ticks), [record.samples for record in last]

    # One of two seeds is left, in both ways; the result is that of a run that was never stopped.
    assert trained(first) == (2, [record.samples for record in both])
    assert trained(both)[0] == 0
    assert trained(first, replace(plan, rate=0.1))[0] == 4
    monkeypatch.setenv("THINPIPE_COMMIT", "abc+")
    assert trained(first)[0] == 4
