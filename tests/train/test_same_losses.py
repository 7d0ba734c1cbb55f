"""One process alone and a client with its server: the same losses, for images and for texts."""

import pytest

from thinpipe.remote.server import Server
from thinpipe.train import data
from thinpipe.train.connected import connected
from thinpipe.train.offers import Offers
from thinpipe.train.settings import Settings
from train.small import small
from train.test_small_data import run

CASES = {
    "pretrained images": ("cifar10-finetune", {"lr": 1e-3, "limit": 8}),
    "images in micro-batches": ("cifar10-scratch", {"chunks": 2, "lr": 0.05, "cut": "two-and-two"}),
    "texts": ("cola", {"lr": 1e-3, "clip": 0.5}),
    "texts cut within a layer": ("rte", {"lr": 1e-3, "chunks": 2, "cut": "condition-2"}),
    "LoRA": ("cola-lora", {"lr": 1e-2}),
}


def with_server(recipe, path):
    with Server(Offers(), listen="127.0.0.1:0") as server:
        client = connected(recipe, Settings(connect=server.address), data=data(recipe), folder=path / "client")
        try:
            return run(recipe, path, client)
        finally:
            client.close()


@pytest.mark.parametrize("case", CASES)
def test_a_client_and_its_server_lose_what_one_process_does(case, files, tmp_path):
    name, changes = CASES[case]
    recipe = small(name, dropout=0, **changes)
    alone, tests_alone = run(recipe, tmp_path / "alone")
    steps, tests = with_server(recipe, tmp_path / "split")
    assert [line.loss for line in steps] == pytest.approx([line.loss for line in alone], rel=1e-4)
    assert [line.lr for line in steps] == [line.lr for line in alone]
    assert [line.loss for line in tests] == pytest.approx([line.loss for line in tests_alone], rel=1e-3)
    assert [(line.accuracy, line.mcc) for line in tests] == [(line.accuracy, line.mcc) for line in tests_alone]


@pytest.mark.parametrize("name", ["cola", "cifar10-finetune"])
def test_both_sides_compute_in_bfloat16_where_the_recipe_says_so(name, files, tmp_path):
    recipe = small(name, dropout=0, precision="bfloat16", epochs=1)
    alone, _ = run(recipe, tmp_path / "alone")
    steps, _ = with_server(recipe, tmp_path / "split")
    exact, _ = with_server(small(name, dropout=0, epochs=1), tmp_path / "exact")
    # Nearer to one process in bfloat16 than that is to float32: the server, too, has computed in it.
    rough = max(abs(line.loss - other.loss) for line, other in zip(exact, alone, strict=True))
    assert rough > 1e-5
    assert [line.loss for line in steps] == pytest.approx([line.loss for line in alone], abs=rough / 10)
