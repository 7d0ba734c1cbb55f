"""A half gets back what it had, bit for bit, from memory or from a folder; what was killed leaves no trace."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

from thinpipe.errors import CheckpointError, DamagedError, DiskError
from thinpipe.remote.saved import Snapshot, Store, put_back, taken

KILLED = 25


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Precise(torch.optim.Optimizer):
    """Keeps a running mean in more bits than the parameters have."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter, dtype=torch.float64))
                mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
                parameter.sub_((mean * group["lr"]).to(parameter.dtype))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw, lr a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "precise": Precise,
}
MODELS = {
    "norms": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6)),
    "tied": Tied,
    "bf16": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)).bfloat16(),
}


def train(module, optimizer, first, last):
    """Steps, each of which depends on its number alone; the rate of learning changes on the way."""
    dtype = next(module.parameters()).dtype
    for step in range(first, last):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9


def bits(snapshot):
    """All of a snapshot, in values that are equal if all bits are."""
    seen = {
        name: (str(t.dtype), tuple(t.shape), t.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, t in snapshot.tensors.items()
    }
    return snapshot.step, seen, json.dumps(snapshot.plain, sort_keys=True)


def through(tmp_path, snapshot):
    Store(tmp_path / "store").save(snapshot)
    return Store(tmp_path / "store").load(snapshot.step)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def small(step, size=4):
    """A snapshot that is made of its step."""
    return Snapshot(step, {"codecs/memory": torch.full((size,), float(step))}, {"codecs/count": step})


def is_whole(snapshot):
    values = {*snapshot.tensors["codecs/memory"].tolist(), snapshot.plain["codecs/count"]}
    return values == {snapshot.step}


@pytest.mark.parametrize("kept", ["in memory", "on the disk"])
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("optimizing", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_goes_on_bit_for_bit(model, optimizing, before, kept, tmp_path):
    module = MODELS[model]()
    optimizer = OPTIMIZERS[optimizing](module.parameters())
    train(module, optimizer, 0, before)
    snapshot = taken(before, module, optimizer, {}, copy=True)
    was = bits(snapshot)
    if kept == "on the disk":
        snapshot = through(tmp_path, snapshot)
    train(module, optimizer, before, before + 4)
    wanted = bits(taken(9, module, optimizer, {}, copy=False))

    # Twice in place, for a snapshot serves as often as it is needed; then in a process that knows nothing.
    for _ in range(2):
        objects = [id(parameter) for parameter in module.parameters()]
        put_back(snapshot, module, optimizer)
        assert bits(taken(before, module, optimizer, {}, copy=False)) == was
        assert [id(parameter) for parameter in module.parameters()] == objects
        train(module, optimizer, before, before + 4)
        assert bits(taken(9, module, optimizer, {}, copy=False)) == wanted
        assert bits(snapshot) == was
    module = MODELS[model]()
    optimizer = OPTIMIZERS[optimizing](module.parameters())
    put_back(snapshot, module, optimizer)
    train(module, optimizer, before, before + 4)
    assert bits(taken(9, module, optimizer, {}, copy=False)) == wanted


def test_an_optimizer_that_had_no_state_has_none_again():
    module = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(module.parameters())
    snapshot = taken(0, module, optimizer, {}, copy=True)
    module(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    put_back(snapshot, module, optimizer)
    assert not optimizer.state


def test_groups_keep_their_options_and_get_those_that_a_scheduler_added(store):
    def made():
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        groups = [{"params": module[0].parameters()}, {"params": module[1].parameters(), "lr": 0.3}]
        return module, torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9))

    module, optimizer = made()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    optimizer.step()
    scheduler.step()
    store.save(taken(1, module, optimizer, {}, copy=False))
    module, other = made()
    put_back(store.load(1), module, other)
    without = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    assert [{key: value for key, value in group.items() if key != "params"} for group in other.param_groups] == without
    assert [group["initial_lr"] for group in other.param_groups] == [0.1, 0.3]


def test_a_copy_stays_as_it_was_and_what_is_not_copied_takes_no_memory():
    module = Tied()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    memory = torch.ones(3)
    train(module, optimizer, 0, 2)
    kept = taken(2, module, optimizer, {"memory": memory}, copy=True)
    lent = taken(2, module, optimizer, {"memory": memory}, copy=False)
    was = bits(kept)
    assert bits(lent) == was
    memory.zero_()
    train(module, optimizer, 2, 3)
    assert bits(kept) == was
    assert lent.tensors["model/first.weight"].data_ptr() == module.first.weight.data_ptr()
    # A weight with two names is copied once.
    assert kept.tensors["model/first.weight"] is kept.tensors["model/last.weight"]


def test_codecs_get_back_what_they_remembered_and_may_change_it(store):
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    codecs = {"cut/error": torch.randn(4, 3).half(), "cut/seed": 7, "cut/spec": "topk:0.1", "cut/list": [1, None, 0.1]}
    snapshot = taken(5, module, optimizer, codecs, copy=True)
    store.save(snapshot)
    for each in (snapshot, store.load(5)):
        for _ in range(2):
            given_back = put_back(each, module, optimizer)
            assert given_back.keys() == codecs.keys()
            assert torch.equal(given_back["cut/error"], codecs["cut/error"])
            assert all(given_back[key] == codecs[key] for key in ("cut/seed", "cut/spec", "cut/list"))
            given_back["cut/error"].zero_()
            given_back["cut/list"].clear()


def test_what_json_cannot_say_is_refused():
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="memory of the codecs cannot be saved: object is not"):
        taken(0, module, optimizer, {"memory": object()}, copy=False)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (nn.Linear(2, 2, bias=False), "it has bias, which the model has not"),
        (nn.Sequential(nn.Linear(2, 2)), "the snapshot lacks 0.weight, 0.bias"),
        (nn.Linear(2, 3), r"weight is torch.float32 \(3, 2\), and torch.float32 \(2, 2\) in the snapshot"),
        (nn.Linear(2, 2).double(), "weight is torch.float64"),
    ],
)
def test_a_snapshot_of_another_model_is_refused_before_anything_changes(other, said):
    module = nn.Linear(2, 2)
    snapshot = taken(0, module, torch.optim.SGD(module.parameters(), lr=0.1), {}, copy=True)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.7)
    before = [parameter.detach().clone() for parameter in other.parameters()]
    with pytest.raises(CheckpointError, match=said):
        put_back(snapshot, other, optimizer)
    assert all(torch.equal(was, now) for was, now in zip(before, other.parameters(), strict=True))
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_steps_are_listed_and_forgotten(store, tmp_path):
    assert store.steps() == []
    for step in (40, 0, 20, 123456789, 60):
        store.save(small(step))
    assert store.steps() == [0, 20, 40, 60, 123456789]
    store.forget_after(60)
    store.forget_before(20)
    assert store.steps() == [20, 40, 60]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [f"step-{n:08d}" for n in (20, 40, 60)]
    assert all(is_whole(store.load(step)) for step in store.steps())
    store.forget_after(-1)
    assert store.steps() == []


def test_a_step_that_is_there_is_left_as_it_is(store):
    store.save(small(3))
    store.save(Snapshot(3, {}, {"codecs/count": 99}))
    assert is_whole(store.load(3))


def test_a_store_of_nothing_and_a_snapshot_of_nothing(store):
    store.save(Snapshot(0, {}, {}))
    assert store.load(0) == Snapshot(0, {}, {})
    with pytest.raises(CheckpointError, match="has no step 1; the last that it has: 0"):
        store.load(1)
    with pytest.raises(ValueError, match="counted from 0, got -1"):
        store.save(small(-1))


def test_a_note_is_replaced_as_a_whole(store):
    assert store.read_note() is None
    store.write_note({"session": "abc", "every": 20})
    store.write_note({"session": "abc", "agreed": [1, 2]})
    assert store.read_note() == {"session": "abc", "agreed": [1, 2]}
    assert store.steps() == []
    with pytest.raises(CheckpointError, match="the note cannot be saved"):
        store.write_note({"session": b"abc"})
    assert store.read_note() == {"session": "abc", "agreed": [1, 2]}


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100000, "\x00"])
def test_a_damaged_note_is_read_from_its_copy_and_two_are_an_error(content, store, tmp_path):
    store.write_note({"session": "abc"})
    (tmp_path / "store" / "session.json").write_text(content)
    assert store.read_note() == {"session": "abc"}
    (tmp_path / "store" / "session.json.copy").write_text(content)
    with pytest.raises(DamagedError, match=r"session\.json is damaged, and so is its copy"):
        store.read_note()


def test_a_note_with_another_letter_is_damaged_and_an_old_one_without_a_checksum_is_not(store, tmp_path):
    store.write_note({"session": "abc"})
    path = tmp_path / "store" / "session.json"
    path.write_text(path.read_text().replace("abc", "abd"))
    assert store.read_note() == {"session": "abc"}
    path.write_text('{"session": "old"}')
    assert store.read_note() == {"session": "old"}


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(DiskError, match="step 1 could not be saved"):
        Store(tmp_path / "store").save(small(1))
    with pytest.raises(DiskError, match="could not be written"):
        Store(tmp_path / "store").write_note({})


def test_what_cannot_be_written_leaves_nothing(store, tmp_path):
    with pytest.raises(CheckpointError, match="step 2 could not be saved"):
        store.save(Snapshot(2, {"codecs/sparse": torch.eye(2).to_sparse()}, {}))
    assert list((tmp_path / "store").iterdir()) == []


def test_threads_share_a_store(store):
    threads = [threading.Thread(target=store.save, args=(small(step),)) for step in range(8)]
    threads += [threading.Thread(target=store.write_note, args=({"n": n},)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.steps() == list(range(8))
    assert all(is_whole(store.load(step)) for step in range(8))


@given(
    shape=some.lists(some.integers(0, 3), max_size=4),
    dtype=some.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]),
    plain=some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
        max_leaves=6,
    ),
    name=some.text(min_size=1, alphabet=some.characters(exclude_categories=["Cs"])),
    step=some.integers(0, 10**12),
)
def test_anything_is_loaded_as_it_was_saved(tmp_path_factory, shape, dtype, plain, name, step):
    if name == "__metadata__":  # what safetensors keeps for itself; ours have prefixes
        return
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (torch.empty(shape).numel() * dtype.itemsize,))
    tensor = raw.to(torch.uint8).view(dtype).reshape(shape)
    snapshot = Snapshot(step, {name: tensor, f"{name}/again": tensor}, {"value": plain})
    folder = tmp_path_factory.mktemp("store")
    Store(folder).save(snapshot)
    loaded = Store(folder).load(step)
    assert Store(folder).steps() == [step]
    assert bits(loaded) == bits(snapshot)
    assert loaded.plain == snapshot.plain
    shutil.rmtree(folder)


@given(
    file=some.sampled_from(["manifest.json", "tensors.safetensors"]),
    place=some.floats(0, 1, exclude_max=True),
    how=some.sampled_from(["cut", "flip", "grow", "zero"]),
)
def test_damage_of_any_kind_is_an_error(tmp_path_factory, file, place, how):
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder)
    store.save(small(7, size=50))
    path = folder / "step-00000007" / file
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    if how == "cut":
        del content[at:]
    elif how == "flip":
        content[at] ^= 1 << (at % 8)
    elif how == "grow":
        content += b"\x00" * (at + 1)
    else:
        content[at] = 0 if content[at] else 1
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        store.load(7)
    shutil.rmtree(folder)


@pytest.mark.parametrize("file", ["manifest.json", "tensors.safetensors"])
def test_a_file_that_is_gone_is_an_error(file, store, tmp_path):
    store.save(small(7))
    (tmp_path / "store" / "step-00000007" / file).unlink()
    with pytest.raises(DamagedError, match=f"{file} is missing"):
        store.load(7)
    store.set_aside(7)
    assert store.steps() == []
    store.save(small(7))
    assert is_whole(store.load(7))


def test_a_damaged_step_is_kept_beside_the_others_until_a_later_one_is_forgotten(store, tmp_path):
    for step in (10, 20, 30):
        store.save(small(step))
    store.set_aside(20)
    assert store.steps() == [10, 30]
    store.forget_before(20)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["damaged-00000020", "step-00000030"]
    store.forget_before(30)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["step-00000030"]


def test_a_step_under_another_name_is_an_error(store, tmp_path):
    store.save(small(7))
    (tmp_path / "store" / "step-00000007").rename(tmp_path / "store" / "step-00000008")
    with pytest.raises(CheckpointError, match="holds step 7"):
        store.load(8)


def test_kill_9_at_every_touch_of_the_disk_leaves_whole_steps_alone(tmp_path):
    found = told("every", tmp_path)
    assert found["touches"] > 20
    assert found["whole"] == found["looks"] > found["touches"]
    # It has seen both: a kill after which there was something to sweep, and one after which the step was there.
    assert found["unfinished"] > 5
    assert found["new"] >= 1


def test_kill_9_at_any_moment_of_large_saves_leaves_whole_steps_alone(tmp_path):
    found = told("random", tmp_path)
    assert found["whole"] == found["looks"] >= KILLED
    assert found["unfinished"] >= 3  # most are, but a busy machine may start a child too late


def told(what, folder):
    done = subprocess.run([sys.executable, __file__, what, folder], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def killed_child(work, after=None):
    """Forks a child that works; says whether it was killed, by itself or ``after`` some seconds."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def life(store, first):
    """What a half does with its store, for some steps."""
    for step in (first, first + 1):
        store.save(small(step))
        store.write_note({"first": step, "second": step})
    store.forget_before(first)
    store.forget_after(first)


def kill_at(touch):
    """Has this process kill itself when it touches the disk for the n-th time."""
    left = [touch]

    def hook(event, _):
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def look(store, found, size=4):
    """Loads everything that is there."""
    for step in store.steps():
        found["looks"] += 1
        found["whole"] += is_whole(store.load(step)) and len(store.load(step).tensors["codecs/memory"]) == size
    note = store.read_note()
    assert note is None or note["first"] == note["second"]


def kill_at_every_touch(folder, found):
    store = Store(folder / "store")
    store.save(small(0))
    for touch in range(1000):
        first = store.steps()[-1] + 1

        def work(touch=touch, first=first):
            kill_at(touch)
            life(store, first)

        killed = killed_child(work)
        found["touches"] += killed
        found["unfinished"] += bool(list((folder / "store").glob(".unfinished-*")))
        found["new"] += first in store.steps()
        assert store.steps(), "nothing is left"
        look(store, found)
        if not killed:
            assert store.steps() == [first]
            return


def kill_at_any_moment(folder, found):
    store = Store(folder / "store")
    size = 200_000
    dice = random.Random(0)

    def work():
        for step in range(store.steps()[-1] + 1, 10**6):
            store.save(small(step, size))
            store.forget_before(step)

    store.save(small(0, size))
    for _ in range(KILLED):
        assert killed_child(work, after=0.02 + 0.04 * dice.random())
        found["unfinished"] += bool(list((folder / "store").glob(".unfinished-*")))
        assert store.steps(), "nothing is left"
        look(store, found, size)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = dict.fromkeys(("touches", "looks", "whole", "unfinished", "new"), 0)
    {"every": kill_at_every_touch, "random": kill_at_any_moment}[sys.argv[1]](Path(sys.argv[2]), found)
    sys.stdout.write(json.dumps(found))
