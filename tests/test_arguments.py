"""Bad values for every argument of everything public: refused where they come in, with their name and what to do."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

import thinpipe
from thinpipe import Pipe, Pipeline, ReplicaBatches, balance, bottleneck, checkpoint, codec, compress, split
from thinpipe.errors import ArgumentError, ThinpipeError
from thinpipe.links.throttle import Throttle, parse_rate
from thinpipe.torchgpipe import GPipe

NAN = math.nan


class Nothing:
    """Stands for a value of a type that nobody expects; its name is the same in every process, as xdist wants."""

    def __repr__(self):
        return "Nothing()"


WHOLE = [0, -1, 2.5, 2.0, NAN, math.inf, True, False, "2", "", None, [2], Nothing(), torch.tensor(1.5)]
FROM_ZERO = [value for value in WHOLE if value is False or value != 0]
SECONDS = [0, -1, NAN, math.inf, True, "1", "", None, [1.0], Nothing()]
FLAG = [0, 1, "no", "", None, 2.5]
TEXT = ["", "nonsense", 5, True, NAN, ["all"], Nothing()]
CODEC = [
    "",
    "nonsense",
    "block:0",
    "block:4.5",
    "block:nan",
    "block:-1",
    "|",
    "ef(",
    5,
    True,
    NAN,
    ["block:4"],
    Nothing(),
]
DEVICE = ["", "abacus", "cuda:x", -1, NAN, True, ["cpu"], Nothing()]
FUNCTION = [5, "sgd", True, Nothing()]
PATH = ["", " ", 5, True, NAN, b"raw", "a\0b"]


def layers(n=3):
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(n)))


def optional(values):
    return [value for value in values if value is not None]


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)


def pipe(**given):
    given = {"balance": [2, 1], "devices": ["cpu"] * 2} | given
    return Pipe(layers(), **given)


def gpipe(**given):
    given = {"balance": [2, 1], "devices": ["cpu"] * 2} | given
    return GPipe(layers(), **given)


def pipeline(**given):
    given = {"balance": [2, 1], "chunks": 2, "loss_fn": nn.functional.mse_loss, "map": [0, 0], "device": "cpu"} | given
    with Pipeline(layers(), **given):
        pass


def client(**given):
    from thinpipe.remote.client import Client

    given = {"connect": "127.0.0.1:9", "offer": "middle", "loss_fn": nn.functional.mse_loss, "optimizer": sgd} | given
    first, last = given.pop("first", layers(1)), given.pop("last", layers(1))
    Client(first, last, **given)


def server(**given):
    from thinpipe.remote.offer import Offer
    from thinpipe.remote.server import Server

    given = {"offers": {"middle": Offer(lambda: layers(1), sgd)}, "listen": "127.0.0.1:0"} | given
    with Server(given.pop("offers"), **given):
        pass


def offer(**given):
    from thinpipe.remote.offer import Offer

    return Offer(**({"make": lambda: layers(1), "optimizer": sgd} | given))


def save(tmp_path, **given):
    given = {"folder": tmp_path / "saved", "model": layers(), "step": 1} | given
    return checkpoint.save(given.pop("folder"), given.pop("model"), given.pop("optimizer", None), **given)


def load(tmp_path, **given):
    given = {"folder": tmp_path / "saved", "model": layers()} | given
    return checkpoint.load(**given)


def by_time(**given):
    given = {"partitions": 2, "module": layers(), "sample": torch.ones(2, 2), "timeout": 0.01} | given
    return balance.balance_by_time(**given)


def by_size(**given):
    given = {"partitions": 2, "module": layers(), "input": torch.ones(2, 2)} | given
    return balance.balance_by_size(**given)


def insert(**given):
    given = {"bottlenecks": "linear:1/none", "example": torch.ones(1, 2)} | given
    return bottleneck.insert([nn.Linear(2, 2) for _ in range(3)], given.pop("bottlenecks"), **given)


def batches(**given):
    given = {"source": 8, "replica": 0, "replicas": 2, "batch_size": 4} | given
    return ReplicaBatches(given.pop("source"), **given)


BALANCE = [2, "21", [1.5, 1.5], [True, 2], [], [0, 3], [-1, 4], [NAN, 1], ["2", "1"], [4], Nothing()]
PLACES = [5, "1", ["nonsense"], [1], [None], {"1": 2}, True, ["1", "1"], ["2", "1"]]

PIPE = {
    "balance": BALANCE,
    "devices": ["cpu", 5, [], ["cpu"], *([each, "cpu"] for each in DEVICE)],
    "chunks": WHOLE,
    "checkpoint": [*TEXT, None],
    "deferred_batch_norm": FLAG,
}
CODECS = {
    name: [*CODEC, {9: "block:4"}, {-1: "block:4"}, {"0": "block:4"}, {0: "nonsense"}, {True: "block:4"}]
    for name in ("codec", "grad_codec")
}
BAD = {
    pipe: PIPE | CODECS | {"recompute": [*TEXT, None]},
    gpipe: PIPE | {"chunks": [value for value in WHOLE if value is not WHOLE[3]]},  # 2.0 was 2 in torchgpipe
    pipeline: CODECS
    | {
        "balance": BALANCE,
        "chunks": WHOLE,
        "loss_fn": FUNCTION,
        "schedule": [*TEXT, None],
        "ahead": FROM_ZERO,
        "map": [0, "00", [0], [0.0, 0], [True, 0], [0, 1], [0, -1], [NAN, 0], [], Nothing()],
        "replicas": [*WHOLE, 2],
        "device": DEVICE,
        "checkpoint": [*TEXT, [9], [-1], [0.0], [True], None],
        "recompute": [*TEXT, None],
        "deferred_batch_norm": FLAG,
        "timeout": SECONDS,
        "patience": SECONDS,
        "start_timeout": SECONDS,
        "throttle": [*FUNCTION, Throttle(1e6)],
        "trace": PATH,
    },
    client: CODECS
    | {
        "first": [None, 5, [nn.Linear(2, 2)], nn.Linear],
        "last": [None, 5, [nn.Linear(2, 2)], nn.Linear],
        "connect": ["", "host", "host:", ":5555", "host:x", "host:70000", "host:-1", 5555, None, True, "http://a:1/b"],
        "offer": ["", " ", None, 5, True],
        "loss_fn": [*FUNCTION, None],
        "optimizer": [*FUNCTION, None, sgd([torch.ones(1, requires_grad=True)])],
        "chunks": [*WHOLE, 10**6],
        "schedule": [*TEXT, None],
        "ahead": FROM_ZERO,
        "keys": ["alice.key", 5, True],
        "folder": PATH,
        "every": WHOLE,
        "seed": FROM_ZERO,
        "device": DEVICE,
        "deferred_batch_norm": FLAG,
        "bandwidth": ["50mbit", *optional(SECONDS)],
        "batches": FUNCTION,
        "give_up": [value for value in SECONDS if value != math.inf],
        "silence": SECONDS,
        "trace": PATH,
    },
    server: {
        "offers": [None, 5, "middle", {"middle": None}, {"middle": nn.Linear(2, 2)}, [1]],
        "listen": ["", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", 5555, None, True, "0.0.0.0:0"],
        "keys": ["server.key", 5, True],
        "folder": PATH,
        "device": DEVICE,
        "max_clients": WHOLE,
        "idle": [value for value in SECONDS if value != math.inf],
        "silence": SECONDS,
        "metrics": [-1, 70000, 2.5, True, "9090", NAN],
        "codecs": ["block:4", ["nonsense"], [5], 5, [""]],
        "max_message": WHOLE,
    },
    offer: {"make": [*FUNCTION, None], "optimizer": [*FUNCTION, None]},
    compress: {"x": [None, 5, [1.0], "x"], "forward": optional(CODEC), "backward": optional(CODEC)},
    codec: {"spec": [*CODEC, None]},
    split: {
        "at": PLACES,
        "stages": [*optional(WHOLE), 4],
        "model": [None, 5, "model", [nn.Linear(2, 2)], nn.Linear],
    },
    by_time: {"partitions": [*WHOLE, 9], "timeout": [-1, NAN, math.inf, "1", None, True], "device": DEVICE},
    by_size: {
        "partitions": [*WHOLE, 9],
        "chunks": WHOLE,
        "param_scale": [-1, NAN, math.inf, "1", None, True],
        "device": DEVICE,
    },
    save: {
        "folder": [*PATH, None],
        "model": [None, 5, "model", {"weight": torch.ones(1)}],
        "optimizer": [5, "sgd", sgd, True],
        "step": FROM_ZERO,
        "extra": [5, "x", {"a": Nothing()}, [1]],
        "keep": optional(WHOLE),
    },
    load: {
        "folder": [*PATH, None],
        "model": [None, 5, "model", {"weight": torch.ones(1)}],
        "optimizer": [5, "sgd", sgd, True],
    },
    insert: {
        "bottlenecks": [
            "",
            "nonsense",
            "linear",
            "linear:0",
            "linear:1",
            5,
            None,
            True,
            {9: "linear:1"},
            {True: "linear:1"},
            {0: 5},
            {0: ""},
            ["linear:1"],
        ],
        "seed": FROM_ZERO,
    },
    batches: {
        "source": [2.5, True, "8", -1, None, Nothing()],
        "replica": [*FROM_ZERO, 2],
        "replicas": WHOLE,
        "batch_size": WHOLE,  # None is for a batch sampler, and refused beside a number of rows
        "shuffle": FLAG,
        "seed": FROM_ZERO,
        "drop_last": FLAG,
    },
    Throttle: {"bits_per_second": optional(SECONDS), "delay": [-1, NAN, math.inf, True, "1", None]},
    parse_rate: {"text": ["", "fast", "0", "-1", "nan", "inf", "5 parsecs", None, True, "1e400"]},
    thinpipe.join: {"timeout": SECONDS},
}
NEEDED = {
    compress: {"x": torch.ones(2)},
    split: {"model": layers(), "at": ["1"]},
    Throttle: {"bits_per_second": 1e6},
    save: {"optimizer": None},
}
GOOD = [pipe, gpipe, pipeline, server, offer, compress, split, by_time, by_size, insert, batches, Throttle]


def _named(value):
    """Names a value alike in every process, as xdist wants: without the address of a function."""
    return getattr(value, "__name__", repr(value))[:30]


CASES = [
    pytest.param(call, name, value, id=f"{call.__name__}-{name}-{_named(value)}".replace("\0", "0"))
    for call, arguments in BAD.items()
    for name, values in arguments.items()
    for value in values
]


@pytest.fixture(scope="module", autouse=True)
def _alone():
    """A process group of this process alone, for ``Pipeline``."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """No server is looked for: an argument that gets as far as that was not checked."""
    monkeypatch.setattr("thinpipe.remote.client.dial", lambda *_, **__: pytest.fail("it was accepted"))


def given_to(call, tmp_path, name, value):
    given = NEEDED.get(call, {}) | {name: value}
    if call is split and name == "stages":
        del given["at"]
    return call(tmp_path, **given) if call in (save, load) else call(**given)


@pytest.mark.parametrize(("call", "name", "value"), CASES)
def test_a_bad_value_is_refused_by_name(call, name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a path that is taken for one is relative
    with pytest.raises(ThinpipeError) as told:
        given_to(call, tmp_path, name, value)
    assert isinstance(told.value, ValueError | TypeError | IndexError | RuntimeError)
    assert len(str(told.value)) < 1000 and not list(tmp_path.iterdir())
    if type(told.value) is ArgumentError and isinstance(value, int | float | str):
        assert repr(value)[:80] in str(told.value), told.value


@pytest.mark.parametrize("call", GOOD, ids=lambda call: call.__name__)
def test_what_is_refused_above_is_not_refused_for_something_else(call):
    call(**NEEDED.get(call, {}))


@pytest.mark.parametrize(("call", "name"), [(save, "folder"), (load, "folder"), (client, "folder"), (server, "folder")])
def test_a_folder_that_is_a_file_is_refused(call, name, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ArgumentError, match=f"'{path}' is a file; name another one"):
        given_to(call, tmp_path, name, path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("call", [client, pipeline])
def test_a_trace_that_is_a_folder_is_refused(call, tmp_path):
    with pytest.raises(ArgumentError, match=f"'{tmp_path}' is a folder; name a file in it"):
        call(trace=tmp_path)


def test_whole_numbers_of_other_libraries_are_welcome():
    import numpy as np

    made = Pipe(layers(), np.array([2, 1]), devices=["cpu"] * 2, chunks=np.int64(2))
    assert (made.chunks, made.balance) == (2, [2, 1])
    assert all(type(value) is int for value in (made.chunks, *made.balance))
    assert pipe(chunks=torch.tensor(3), balance=torch.tensor([1, 2])).chunks == 3


def test_a_model_that_is_no_sequence_is_answered_with_split_by_a_pipeline_as_well():
    class Net(nn.Module):
        pass

    with pytest.raises(ThinpipeError, match=r"thinpipe\.split\(model, at="):
        Pipeline(Net(), chunks=1, loss_fn=nn.functional.mse_loss)
    with pytest.raises(ThinpipeError, match="stages are modules, got NoneType"):
        Pipeline(None, chunks=1, loss_fn=nn.functional.mse_loss)
