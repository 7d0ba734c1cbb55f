"""Checkpoints are whole or not there, fit any number of stages, and let training go on bit for bit. Real processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from pipeline_cases import difference
from pipeline_checkpoint_cases import data_of, deep, one_device
from torch import nn

from thinpipe import checkpoint
from thinpipe.errors import CheckpointError, DamagedError

EXACT = 1e-12
ROOT = Path(__file__).parents[2]


def merged(found):
    """The state of the whole model, of those of all ranks."""
    return {name: torch.tensor(value, dtype=torch.float64) for each in found for name, value in each.items()}


def fresh(kind="deep"):
    model = nn.Sequential(*deep(kind))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def states(found):
    return [each["state"] for each in found]


@pytest.mark.parametrize("kind", ["deep", "tied"])
def test_a_checkpoint_of_four_stages_goes_on_in_two_in_three_and_in_one(pool, tmp_path, kind):
    pool.run("saved", 4, folder=str(tmp_path), kind=kind)
    expected = one_device(kind, 6)[0].state_dict()
    for world in (3, 2, 1):
        folder = tmp_path / str(world)
        shutil.copytree(checkpoint.latest(tmp_path), folder / "step-00000003")
        shutil.copy(tmp_path / "latest", folder)
        found = pool.run("saved", world, folder=str(folder), kind=kind, upto=6, loads=True, spoiled=True)
        assert difference(merged(states(found)), expected) < EXACT
    model, optimizer = one_device(kind, 0, model=fresh(kind))
    loaded = checkpoint.load(tmp_path, model, optimizer)
    assert (loaded.step, loaded.extra) == (3, {"lr": [0.5, None]})
    assert difference(one_device(kind, 3)[0].state_dict(), model.state_dict()) < EXACT
    goes_on(model, optimizer, kind)
    assert difference(model.state_dict(), expected) < EXACT


def goes_on(model, optimizer, kind):
    for step in range(3, 6):
        optimizer.zero_grad()
        x, y = data_of(kind, step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["deep", "tied"])
def test_a_checkpoint_of_one_model_goes_on_in_stages(pool, tmp_path, kind):
    checkpoint.save(tmp_path, *one_device(kind, 3), step=3)
    found = pool.run("saved", 3, folder=str(tmp_path), kind=kind, upto=6, loads=True, spoiled=True)
    assert difference(merged(states(found)), one_device(kind, 6)[0].state_dict()) < EXACT


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {"codec": "ef(topk:0.5)", "grad_codec": "ef(block:4,sr)"}),
        (2, {"optimizer": "sgd", "codec": "power:2", "schedule": "zb"}),
        (4, {"replicas": 2, "codec": "ef(block:4)"}),
    ],
    ids=str,
)
def test_training_goes_on_bit_for_bit_where_it_stopped(pool, tmp_path, world, options):
    """With dropout, whose generators go on, and codecs that remember."""
    expected = pool.run("straight", world, kind="dropout", **options)
    pool.run("saved", world, folder=str(tmp_path), kind="dropout", **options)
    again = {"kind": "dropout", "upto": 6, "loads": True, "spoiled": True, **options}
    assert states(pool.run("saved", world, folder=str(tmp_path), **again)) == expected


def test_with_other_cuts_the_seed_and_the_step_go_on_too(pool, tmp_path):
    pool.run("saved", 2, folder=str(tmp_path), kind="dropout")
    found = pool.run("saved", 3, folder=str(tmp_path), kind="dropout", loads=True, seed=99)
    assert [each["random"] for each in found] == [{"seed": 7, "step": 3}] * 3


def test_only_one_replica_writes_the_model(pool, tmp_path):
    pool.run("saved", 4, folder=str(tmp_path), kind="dropout", replicas=2)
    path = checkpoint.latest(tmp_path)
    assert [len(list((path / kind).glob("*.safetensors"))) for kind in ("model", "optimizer", "ranks")] == [2, 2, 4]


def test_other_cuts_forget_what_codecs_remembered_and_say_so(pool, tmp_path):
    pool.run("saved", 3, folder=str(tmp_path), codec="ef(block:4)")
    said = pool.run("saved", 2, folder=str(tmp_path), codec="ef(block:4)", loads=True, upto=4)
    assert all("its codecs' memories are not loaded" in each["logged"] for each in said)
    said = pool.run("saved", 2, folder=str(tmp_path), codec="ef(block:4)", loads=True, upto=5)
    assert not any(each["logged"] for each in said)


def test_the_weights_are_plain_safetensors_that_torch_reads_too(pool, tmp_path):
    pool.run("saved", 3, folder=str(tmp_path))
    expected = one_device("deep", 3)[0].state_dict()
    found = {name: torch.zeros_like(value) for name, value in expected.items()}
    reader = dcp.HuggingFaceStorageReader(str(checkpoint.latest(tmp_path) / "model"))
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(found, storage_reader=reader)
    assert difference(found, expected) < EXACT
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pt", ".metadata", ".distcp")]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("stranger", "rank 1 could not write its part of the checkpoint: the optimizer has a parameter that is not"),
        ("extra", "extra takes what JSON can say"),
        ("not shared", "checkpoints need a folder that all ranks share"),
    ],
)
def test_who_cannot_save_says_so_on_all_ranks_and_training_goes_on(pool, tmp_path, what, text):
    for each in pool.run("failing", 2, folder=str(tmp_path), what=what):
        assert each["said"].startswith("CheckpointError") and text in each["said"], each
        assert each["after"] == "step-00000002"
    assert not list(tmp_path.rglob(".saving-*"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"more": True}, "the checkpoint lacks 7.weight, 7.bias"),
        ({"width": 7}, "0.weight has the shape (7, 6), and (6, 6) in the checkpoint"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_model_is_refused_on_all_ranks_and_changes_nothing(pool, tmp_path, options, text):
    checkpoint.save(tmp_path, nn.Sequential(*deep()), step=1)
    for said in pool.run("loading", 2, folder=str(tmp_path), **options):
        assert said.startswith("CheckpointError") and text in said


def test_names_that_the_model_has_not_are_listed(pool, tmp_path):
    checkpoint.save(tmp_path, nn.Sequential(*deep(), nn.Linear(3, 3)), step=1)
    for said in pool.run("loading", 2, folder=str(tmp_path)):
        assert "it has 7.weight, 7.bias, which the model has not" in said
    with pytest.raises(CheckpointError, match=r"it has 7\.weight, 7\.bias"):
        checkpoint.load(tmp_path, fresh())


# -- one process -------------------------------------------------------------------------------------------------------


def test_there_may_be_no_checkpoint_yet(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.load(tmp_path, fresh()) is None


def test_older_checkpoints_are_removed_and_the_last_is_kept(tmp_path):
    model = fresh()
    for step in range(1, 6):
        checkpoint.save(tmp_path, model, step=step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000004", "step-00000005"]
    with pytest.raises(ValueError, match="got 0"):
        checkpoint.save(tmp_path, model, step=9, keep=0)


def test_a_step_that_is_saved_again_does_not_take_the_place_of_the_last_good_one(tmp_path):
    model = fresh()
    first = checkpoint.save(tmp_path, model, step=1)
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    second = checkpoint.save(tmp_path, model, step=1)
    assert first.exists() and second == checkpoint.latest(tmp_path) != first
    other = fresh()
    assert checkpoint.load(tmp_path, other).path == second
    assert other[0].bias.eq(3).all()
    assert checkpoint.load(first, other).path == first, "any of them can be loaded by its own folder"
    assert other[0].bias.eq(0).all()


def test_what_a_killed_save_left_is_not_loaded_and_is_removed_by_the_next(tmp_path):
    model = fresh()
    path = checkpoint.save(tmp_path, model, step=1)
    shutil.copytree(path, tmp_path / ".saving-dead")
    (tmp_path / ".saving-dead" / "manifest.json").unlink()
    assert checkpoint.load(tmp_path, model).step == 1
    checkpoint.save(tmp_path, model, step=2)
    assert not (tmp_path / ".saving-dead").exists()


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    script = Path(__file__).parent / "checkpoint_killed.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["whole"] == found["killed"] == 25
    assert found["in the middle"] > 3, "some were killed while they wrote"


def test_options_of_groups_are_loaded_by_the_names_of_their_weights(tmp_path):
    model, _ = one_device("deep", 0)
    first, *others = model.parameters()
    optimizer = torch.optim.AdamW([{"params": [first], "lr": 0.5}, {"params": others}], lr=0.1, betas=(0.8, 0.9))
    checkpoint.save(tmp_path, model, optimizer, step=0)
    again = torch.optim.AdamW([{"params": others}, {"params": [first]}])
    checkpoint.load(tmp_path, model, again)
    assert [(group["lr"], group["betas"]) for group in again.param_groups] == [(0.1, (0.8, 0.9)), (0.5, (0.8, 0.9))]
    with pytest.raises(CheckpointError, match=r"0\.weight and 0\.bias are in one group .* with lr 0\.5 and 0\.1"):
        checkpoint.load(tmp_path, model, torch.optim.AdamW(model.parameters()))


def test_an_optimizer_of_other_weights_is_refused(tmp_path):
    model, optimizer = one_device("deep", 2)
    path = checkpoint.save(tmp_path, model, step=1)
    with pytest.raises(CheckpointError, match="was saved without an optimizer"):
        checkpoint.load(path, model, optimizer)
    checkpoint.save(tmp_path, model, torch.optim.SGD(model[0].parameters(), lr=0.1), step=2)
    with pytest.raises(CheckpointError, match=r"no state of the optimizer for 2\.weight"):
        checkpoint.load(tmp_path, model, optimizer)
    checkpoint.save(tmp_path, model, optimizer, step=3)
    with pytest.raises(CheckpointError, match=r"for 2\.weight.*, which it does not train"):
        checkpoint.load(tmp_path, model, torch.optim.SGD(model[0].parameters(), lr=0.1))


def change_manifest(path, change):
    """Changes a manifest as somebody who knows of checksums would, or as an older version wrote it: without them."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["digest"], manifest["files"]
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda manifest: manifest.update(format=7), "no manifest of format 1"),
        (lambda manifest: manifest.pop("model"), "incomplete"),
        (lambda manifest: manifest.update(random=[3]), "makes no sense about random numbers"),
        (lambda manifest: manifest.update(random={"seed": "x", "step": 1}), "makes no sense about random numbers"),
        (lambda manifest: manifest["model"]["0.weight"].update(file="../../secret"), "is damaged at '0.weight'"),
        (lambda manifest: manifest["model"]["0.weight"].update(dtype="load"), "is damaged at '0.weight'"),
        (lambda manifest: manifest["model"]["0.weight"].update(file="model/1.safetensors"), "is damaged"),
        (lambda manifest: manifest["model"]["0.bias"].update(file="optimizer/00000.safetensors"), "is damaged"),
    ],
)
def test_a_damaged_or_hostile_manifest_is_refused(tmp_path, damage, text):
    path = checkpoint.save(tmp_path, *one_device("deep", 1), step=1)
    change_manifest(path, damage)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.load(tmp_path, fresh())


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, fresh(), step=1) / "model" / "00000.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.load(tmp_path, fresh())


def test_a_tensor_that_its_file_cannot_hold_is_given_no_memory(tmp_path):
    model, optimizer = one_device("deep", 1)
    path = checkpoint.save(tmp_path, model, optimizer, step=1)
    change_manifest(path, lambda it: next(iter(it["optimizer"]["tensors"].values())).update(shape=[2**40]))
    with pytest.raises(CheckpointError, match="cannot hold"):
        checkpoint.load(tmp_path, model, optimizer)


@pytest.mark.parametrize("text", ["", "[]", '{"own": 3}', '{"own": {"tensors": {}, "plain": {}}}'])
def test_a_damaged_part_of_one_rank_is_refused(tmp_path, text):
    path = checkpoint.save(tmp_path, fresh(), step=1)
    change_manifest(path, lambda manifest: None)
    (path / "ranks" / "00000.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"00000\.json is damaged"):
        checkpoint.load(tmp_path, fresh())


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(path, how):
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        return
    if how == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(how, bytes(content)))


FILES = ("manifest.json", "model/00000.safetensors", "optimizer/00000.safetensors", "ranks/00000.json")


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("file", [*FILES, "ranks/00000.safetensors"])
def test_the_checkpoint_before_a_damaged_one_is_loaded_and_training_ends_as_it_would_have(tmp_path, caplog, file, how):
    model, optimizer = one_device("deep", 2)
    checkpoint.save(tmp_path, model, optimizer, step=2, keep=2)
    model, optimizer = one_device("deep", 3)
    damaged(checkpoint.save(tmp_path, model, optimizer, step=3, keep=2) / file, how)
    model, optimizer = one_device("deep", 0, model=fresh())
    loaded = checkpoint.load(tmp_path, model, optimizer)
    assert loaded.step == 2
    assert "step-00000003" in caplog.text
    if (file, how) != ("manifest.json", "gone"):  # what is without one counts as removed
        assert "is damaged: " in caplog.text and "going on from step 2, 1 steps are repeated" in caplog.text
    optimizer.zero_grad()
    x, y = data_of("deep", 2)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    # Saved again, it is not counted among those that are kept.
    checkpoint.save(tmp_path, model, optimizer, step=3, keep=2)
    assert {checkpoint.load(tmp_path, fresh(), before=each).step for each in (None, 3)} == {2, 3}
    goes_on(model, optimizer, "deep")
    assert difference(model.state_dict(), one_device("deep", 6)[0].state_dict()) < EXACT


@pytest.mark.parametrize("text", [None, "", "step-00000009", "\x00"])
def test_a_damaged_pointer_to_the_last_checkpoint_costs_nothing(tmp_path, text):
    model, optimizer = one_device("deep", 2)
    for step in (1, 2):
        checkpoint.save(tmp_path, model, optimizer, step=step)
    (tmp_path / "latest").unlink() if text is None else (tmp_path / "latest").write_text(text)
    assert checkpoint.load(tmp_path, fresh()).step == 2


def test_without_one_before_it_a_damaged_checkpoint_changes_nothing_and_says_what_to_do(tmp_path):
    model, optimizer = one_device("deep", 1)
    path = checkpoint.save(tmp_path, model, optimizer, step=1)
    damaged(path / "optimizer" / "00000.safetensors", "flip")
    other, own = one_device("deep", 0, model=fresh())
    with pytest.raises(DamagedError, match=r"the checksum of 00000\.safetensors is wrong.*bring one back from a copy"):
        checkpoint.load(tmp_path, other, own)
    assert all(value.eq(0).all() for value in other.parameters())
    assert checkpoint.load(tmp_path, other).step == 1, "who does not need the optimizer does not miss it"


@pytest.mark.parametrize("file", ["model/00001.safetensors", "ranks/00001.safetensors", "ranks/00000.json"])
def test_all_ranks_fall_back_together_and_bit_for_bit(pool, tmp_path, file):
    options = {"kind": "dropout", "codec": "ef(topk:0.5)", "grad_codec": "ef(block:4,sr)"}
    again = {"loads": True, "spoiled": True, **options}
    expected = pool.run("straight", 2, **options)
    pool.run("saved", 2, folder=str(tmp_path), upto=3, **options)
    pool.run("saved", 2, folder=str(tmp_path), upto=5, **again)
    damaged(tmp_path / "step-00000005" / file, "flip")
    found = pool.run("saved", 2, folder=str(tmp_path), upto=6, **again)
    assert states(found) == expected
    assert "going on from step 3, 2 steps are repeated" in found[0]["logged"] and not found[1]["logged"]


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_killed_rank_is_restarted_and_the_final_weights_are_those_of_an_uninterrupted_run(pool, tmp_path):
    """Dropout, AdamW and codecs that remember: the example itself, under torchrun, twelve steps an epoch."""
    words = "--nproc-per-node 2 --max-restarts 1 --monitor-interval 0.1"
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    options = f"--folder {killed} --epochs 2 --every 5 --kill-at 13"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words.split(), ROOT / "examples/mesh.py", *options.split()],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "Signal 9" in done.stderr or "SIGKILL" in done.stderr or "exitcode: -9" in done.stderr, done.stderr
    pool.run("example_without_a_break", 2, folder=str(straight), epochs=2)
    models = [checkpoint_weights(folder) for folder in (killed, straight)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items()), "to the last bit"


def checkpoint_weights(folder):
    from safetensors.torch import load_file

    path = checkpoint.latest(folder)
    assert path.name == "step-00000024"
    return {name: value for file in (path / "model").iterdir() for name, value in load_file(file).items()}
