"""Whatever goes wrong in a stage is raised in the caller; nothing hangs, no thread is lost, the pipe goes on."""

import copy
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, assert_same, train_once
from thinpipe import Pipe
from thinpipe.errors import BalanceError, DeviceError, SharedStateError, SkipError, SpecError, SplitError
from thinpipe.skip import skippable, stash


class Boom(Exception):
    pass


class Fuse(nn.Module):
    """Raises on demand, forward or backward."""

    def __init__(self):
        super().__init__()
        self.error, self.where = None, "forward"
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        if self.error is not None and self.where == "forward":
            raise self.error
        x = x * self.scale
        if self.error is not None and self.where == "backward" and x.requires_grad:
            x.register_hook(self.blow)
        return x

    def blow(self, grad):
        raise self.error


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [Boom("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_any_exception_in_any_stage_reaches_the_caller_and_the_pipe_works_afterwards(stage, checkpoint, error, where):
    model = nn.Sequential(Fuse(), Fuse(), Fuse())
    pipe = Pipe(model, [1, 1, 1], devices=["cpu"] * 3, chunks=3, checkpoint=checkpoint)
    x = torch.ones(6, 1)
    pipe(x).sum().backward()
    expected = [p.grad.clone() for p in pipe.parameters()]
    threads = set(threading.enumerate())
    parameters = list(pipe.parameters())

    model[stage].error, model[stage].where = error, where
    with pytest.raises(type(error)) as caught:
        pipe(x).sum().backward()
    assert caught.value is error
    assert any(f"stage {stage}" in note for note in error.__notes__), "the error says where it happened"

    model[stage].error = None
    pipe.zero_grad()
    pipe(x).sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], expected)
    assert set(threading.enumerate()) == threads
    assert all(a is b for a, b in zip(pipe.parameters(), parameters, strict=True))


def test_the_other_stages_stop_early():
    counter, failed = [], threading.Event()

    class Count(nn.Module):
        def forward(self, x):
            counter.append(1)
            if len(counter) > 1:
                assert failed.wait(20)
            return x

    class Raise(nn.Module):
        def forward(self, x):
            failed.set()
            raise Boom

    pipe = Pipe(nn.Sequential(Count(), Raise()), [1, 1], devices=["cpu"] * 2, chunks=1000)
    with pytest.raises(Boom):
        pipe(torch.ones(1000, 1))
    assert len(counter) < 1000


def test_deferred_statistics_of_a_failed_batch_are_forgotten():
    fuse = Fuse()
    pipe = Pipe(nn.Sequential(nn.BatchNorm1d(1), fuse), [1, 1], devices=["cpu"] * 2, chunks=2, deferred_batch_norm=True)
    fuse.error = Boom()
    with pytest.raises(Boom):
        pipe(torch.rand(4, 1))
    assert pipe[0].num_batches_tracked == 0 and pipe[0].running_mean == 0
    fuse.error = None
    x = torch.rand(4, 1)
    pipe(x)
    torch.testing.assert_close(pipe[0].running_mean, 0.1 * x.mean(0))


def test_ctrl_c_while_a_stage_computes_ends_the_step_and_leaves_the_pipe_whole(tmp_path):
    """A real SIGINT to a real process whose main thread waits for its stages."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        """
import threading, time, torch
from torch import nn
from thinpipe import Pipe

class Slow(nn.Module):
    def forward(self, x):
        print("working", flush=True)
        time.sleep(0.3)
        return x

pipe = Pipe(nn.Sequential(nn.Linear(1, 1), Slow()), [1, 1], devices=["cpu"] * 2, chunks=50)
try:
    pipe(torch.rand(50, 1))
except KeyboardInterrupt:
    pipe.chunks = 1
    print("again", tuple(pipe(torch.rand(2, 1)).shape), threading.active_count(), flush=True)
"""
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "working\n"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert rest.splitlines()[-1] == "again (2, 1) 3"
    assert time.monotonic() - began < 10, "it must not wait for the other fifty micro-batches"


def test_a_step_that_takes_long_says_what_it_is_doing():
    """A layer that waits forever must not look like a pipe that hangs."""
    told, released = [], threading.Event()

    class Stuck(nn.Module):
        def forward(self, x):
            assert released.wait(20)
            return x

    class Release(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            released.set()

    pipe = Pipe(nn.Sequential(nn.Linear(1, 1), Stuck()), [1, 1], devices=["cpu"] * 2, chunks=2)
    pipe._team.crew._silence = 0.05
    handler = Release()
    logging.getLogger("thinpipe").addHandler(handler)
    try:
        pipe(torch.rand(2, 1))
    finally:
        logging.getLogger("thinpipe").removeHandler(handler)
    assert "stage 1 (layer '1' on cpu) is at F1.0" in told[0]


def test_a_process_ends_although_its_pipe_is_still_alive():
    code = (
        "import torch; from torch import nn; from thinpipe import Pipe;"
        "p = Pipe(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), [1, 1], devices=['cpu'] * 2, chunks=2);"
        "p(torch.rand(2, 1)); print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "end\n" and done.stderr == ""


def linears(n):
    return nn.Sequential(*[nn.Linear(1, 1) for _ in range(n)])


@pytest.mark.parametrize("balance", [[1], [3], [0, 2], [-1, 3]], ids=str)
def test_a_balance_that_does_not_fit_is_refused(balance):
    with pytest.raises(BalanceError, match="balance"):
        Pipe(linears(2), balance, devices=["cpu"] * len(balance))
    for devices in ([], ["cuda:99"] * 3):  # what is wrong with the balance is said first: it decides how many there are
        with pytest.raises(BalanceError, match="balance"):
            Pipe(linears(2), balance, devices=devices)


def test_a_module_that_is_refused_is_left_as_it_was():
    linear = nn.Linear(2, 2)
    for balance, devices in [([1], ["cpu"]), ([1, 3], ["cpu"]), ([2, 2], ["cuda:99"] * 2), ([2, 2], ["cpu"] * 2)]:
        module = nn.Sequential(nn.BatchNorm1d(2), linear, nn.BatchNorm1d(2), linear)
        with pytest.raises((BalanceError, DeviceError, SharedStateError)):
            Pipe(module, balance, devices=devices, deferred_batch_norm=True)
        assert type(module[0]) is type(module[2]) is nn.BatchNorm1d


def test_too_few_devices_are_refused():
    with pytest.raises(DeviceError, match=r"devices: 1, partitions: 2.*more than once"):
        Pipe(linears(2), [1, 1], devices=["cpu"])
    with pytest.raises(DeviceError):
        Pipe(linears(2), devices=[])


def test_a_device_that_does_not_exist_is_refused():
    for balance in ([1, 1], None):
        with pytest.raises(DeviceError, match="no cuda:99 among"):
            Pipe(linears(2), balance, devices=["cuda:99", "cuda:99"])


@pytest.mark.parametrize(("option", "value"), [("chunks", 0), ("chunks", -1), ("checkpoint", "sometimes")])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=option):
        Pipe(linears(2), [1, 1], **{option: value})


def test_a_codec_that_there_is_not_is_refused_at_once():
    with pytest.raises(SpecError, match="no codec is called 'short'"):
        Pipe(linears(2), [1, 1], devices=["cpu"] * 2, codec="short:6+2")
    with pytest.raises(SpecError, match="no codec is called 'short'"):
        Pipe(linears(2), devices=["cpu"] * 2, grad_codec={7: "short:6+2"})


def test_a_codec_for_a_cut_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="there is no cut 1: a pipe of 2 stages has the cut 0"):
        Pipe(linears(2), [1, 1], devices=["cpu"] * 2, codec={1: "block:4"})


def test_a_module_that_is_no_sequence_is_refused():
    with pytest.raises(SplitError, match=r"nn\.Sequential.*got Bilinear.*thinpipe\.split"):
        Pipe(nn.Bilinear(1, 1, 1), [1], devices=["cpu"] * 1)


def test_a_sequence_with_a_forward_or_parameters_of_its_own_is_refused():
    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    with pytest.raises(SplitError, match="forward of its own"):
        Pipe(Residual(nn.Linear(1, 1)), [1], devices=["cpu"] * 1)
    scaled = linears(2)
    scaled.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(SplitError, match="'scale'"):
        Pipe(scaled, [1, 1], devices=["cpu"] * 2)


def test_hooks_that_no_stage_would_call_are_refused():
    hooked = linears(2)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(SplitError, match="on the Pipe instead"):
        Pipe(hooked, [1, 1], devices=["cpu"] * 2)


def test_a_layer_without_shape_is_refused():
    with pytest.raises(SplitError, match="run the model once"):
        Pipe(nn.Sequential(nn.LazyLinear(2)), [1], devices=["cpu"] * 1)


def test_tied_parameters_across_devices_are_refused_and_on_one_welcome():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    with pytest.raises(SharedStateError, match=r"'2.weight' of stage 1 .* '0.weight' of stage 0"):
        Pipe(nn.Sequential(a, nn.ReLU(), b), [1, 2], devices=["cpu", "meta"])
    Pipe(nn.Sequential(a, nn.ReLU(), b), [1, 2], devices=["cpu", "cpu"])


def test_a_layer_with_parameters_or_a_buffer_in_two_stages_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(SharedStateError, match=r"'2.weight' of stage 1 .* '0.weight' of stage 0"):
        Pipe(nn.Sequential(layer, nn.ReLU(), layer), [1, 2], devices=["cpu"] * 2)
    a, b = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    b.running_mean = a.running_mean
    with pytest.raises(SharedStateError, match=r"'1.running_mean' of stage 1 .* '0.running_mean' of stage 0"):
        Pipe(nn.Sequential(a, b), [1, 1], devices=["cpu"] * 2)


def test_the_advice_for_a_layer_in_two_stages_trains_as_one_device_does():
    torch.manual_seed(1)
    first, x = nn.Linear(3, 3).double(), torch.randn(8, 3, dtype=torch.float64)
    bare = nn.Sequential(first, nn.Tanh(), first)
    expected = train_once(copy.deepcopy(bare), x)
    for devices in (["cpu", "cpu"], ["cpu", "meta"]):
        with pytest.raises(SharedStateError, match="balance that keeps both in one stage") as told:
            Pipe(bare, [1, 2], devices=devices)
        advice = str(told.value).rpartition("the same parameters: ")[2]
        assert "put both stages on one device" not in str(told.value)
    names = {"copy": copy, "first": first}
    exec(advice, names)
    second = names["second"]
    assert second is not first and second.weight is first.weight and second.bias is first.bias
    pipe = Pipe(nn.Sequential(first, nn.Tanh(), second), [1, 2], devices=["cpu"] * 2, chunks=3)
    assert_same(train_once(pipe, x), expected)


def test_what_two_stages_share_is_told_with_what_to_do_about_it():
    norm, a, b = nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(SharedStateError, match=r"or give each stage a BatchNorm1d of its own$"):
        Pipe(nn.Sequential(norm, norm), [1, 1], devices=["cpu"] * 2)
    b.weight = a.weight
    with pytest.raises(SharedStateError, match=r"put both stages on one device: they are on cpu and meta$"):
        Pipe(nn.Sequential(a, b), [1, 1], devices=["cpu", "meta"])
    other = nn.BatchNorm1d(2)
    other.running_mean = norm.running_mean
    with pytest.raises(SharedStateError, match=r"give each layer a buffer of its own$"):
        Pipe(nn.Sequential(norm, other), [1, 1], devices=["cpu"] * 2)


def test_a_layer_without_state_may_stand_in_two_stages():
    relu = nn.ReLU()
    pipe = Pipe(nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu), [2, 2], devices=["cpu"] * 2, chunks=2)
    assert pipe(torch.rand(4, 2)).shape == (4, 2)


def test_a_stash_without_pop_is_refused():
    @skippable(stash=["lost"])
    class Stash(nn.Module):
        def forward(self, x):
            yield stash("lost", x)
            return x

    with pytest.raises(SkipError, match="'lost'"):
        Pipe(nn.Sequential(Stash(), nn.Identity()), [1, 1], devices=["cpu"] * 2)


def test_a_batch_norm_that_cannot_be_deferred_is_refused():
    with pytest.raises(SplitError, match="SyncBatchNorm"):
        Pipe(nn.Sequential(nn.SyncBatchNorm(2)), [1], devices=["cpu"], deferred_batch_norm=True)


def test_a_pipe_that_calls_itself_is_refused():
    class Caller(nn.Module):
        def forward(self, x):
            return holder[0](x)

    pipe = Pipe(nn.Sequential(nn.Linear(1, 1), Caller()), [1, 1], devices=["cpu"] * 2, chunks=2)
    holder = [pipe]
    with pytest.raises(RuntimeError, match="call the module inside it"):
        pipe(torch.rand(2, 1))


def test_two_callers_take_turns():
    pipe = Pipe(linears(2), [1, 1], devices=["cpu"] * 2, chunks=2)
    x, errors = torch.rand(4, 1), []

    def train():
        try:
            for _ in range(10):
                pipe(x).sum().backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
