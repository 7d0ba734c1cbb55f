"""The pipe on a GPU: streams, copies beside the computation, recomputation, autocast, and nothing that hangs.

One GPU is enough: two stages on it share a stream, and a stage on the CPU makes every edge a copy.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import CHECKPOINT_MODES, Begin, End, assert_same, fresh, train_once
from thinpipe import Pipe, codec, compress
from thinpipe.balance import balance_by_size, balance_by_time
from thinpipe.codecs import Codec
from thinpipe.runtime.transfer import Mover, mark_ready

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PLACES = [["cuda", "cuda"], ["cpu", "cuda"], ["cuda", "cpu"]]
LONG = 20_000_000
"""Cycles a GPU sleeps: some ten milliseconds, far longer than the host needs to overtake it."""


@pytest.fixture(autouse=True)
def _exact_products():
    """Compares like with like: no TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


class Slow(nn.Module):
    """Keeps the GPU busy before and after its work, forward and backward, so that whoever does not wait is wrong."""

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.is_cuda:
                torch.cuda._sleep(LONG)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if grad.is_cuda:
                torch.cuda._sleep(LONG)
            return grad.clone()

    def forward(self, x):
        return self.Sleep.apply(self.Sleep.apply(x) * 1.5)


def skipping():
    return nn.Sequential(Begin(16), nn.Tanh(), End(16), nn.Linear(16, 4)).double()


def to(outcome, device="cpu"):
    """Brings everything that is compared to one device."""

    def moved(x):
        return None if x is None else x.to(device)

    outcome.outputs = [moved(x) for x in outcome.outputs]
    outcome.input_grads = [moved(x) for x in outcome.input_grads]
    for part in (outcome.grads, outcome.buffers, outcome.updated):
        part.update({name: moved(x) for name, x in part.items()})
    return outcome


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_stages_on_any_mix_of_devices_train_like_one_device(devices, chunks, checkpoint):
    model, x = skipping(), torch.rand(7, 16, dtype=torch.float64, requires_grad=True)
    pipe = Pipe(copy.deepcopy(model), [2, 2], devices=devices, chunks=chunks, checkpoint=checkpoint)
    assert_same(to(train_once(pipe, x)), train_once(model, x))


@pytest.mark.parametrize("spec", ["none", "uniform:8", "sort:6+2", "block:4", "had:4", "topk:0.25", "power:2|block:8"])
@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_a_cut_between_any_two_devices_is_coded_exactly_as_compress_does(devices, spec):
    model, x = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)), torch.rand(8, 16, requires_grad=True)
    pipe = Pipe(copy.deepcopy(model), [2, 1], devices=devices, chunks=2, codec=spec, grad_codec=spec)
    output = pipe(x)
    output.square().sum().backward()
    first, last = model[:2].to(devices[0]), model[2:].to(devices[1])
    there, back = codec(spec), codec(spec)
    y = x.detach().clone().requires_grad_()
    rows = [last(compress(first(part.to(devices[0])), there, back).to(devices[1])) for part in y.tensor_split(2)]
    torch.cat(rows).square().sum().backward()
    assert torch.equal(output, torch.cat(rows))
    if spec != "power:2|block:8":  # which remembers, and so depends on the order of micro-batches
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_u_shape_carries_the_skip_past_the_gpu(checkpoint):
    model, x = skipping(), torch.rand(7, 16, dtype=torch.float64, requires_grad=True)
    pipe = Pipe(copy.deepcopy(model), [1, 1, 2], devices=["cpu", "cuda", "cpu"], chunks=3, checkpoint=checkpoint)
    assert_same(to(train_once(pipe, x)), train_once(model, x))


def test_the_gradient_of_an_input_comes_back_to_where_the_input_is():
    x = torch.rand(4, 16, dtype=torch.float64, requires_grad=True)
    Pipe(skipping(), [2, 2], devices=["cuda", "cuda"], chunks=2)(x).sum().backward()
    assert x.grad.device.type == "cpu"


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_nobody_overtakes_a_busy_gpu(devices, checkpoint):
    model = nn.Sequential(Slow(), nn.Linear(16, 16), Slow(), nn.Linear(16, 4)).double()
    x = torch.rand(4, 16, dtype=torch.float64, requires_grad=True)
    pipe = Pipe(copy.deepcopy(model), [2, 2], devices=devices, chunks=2, checkpoint=checkpoint)
    assert_same(to(train_once(pipe, x)), train_once(model, x))


@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_nobody_overtakes_an_encoder_on_a_busy_gpu(devices, monkeypatch):
    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        return Pipe(model, [2, 1], devices=devices, chunks=2, codec="block:8", grad_codec="block:8")

    x, encode = torch.rand(8, 16, requires_grad=True), Codec.encode
    expected = to(train_once(made(), x))

    def late(self, tensor):
        if tensor.is_cuda:
            torch.cuda._sleep(LONG)
        return encode(self, tensor)

    monkeypatch.setattr(Codec, "encode", late)
    assert_same(to(train_once(made(), x)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_work_is_ordered_with_the_callers_own_stream(devices):
    """The input is still being computed when the pipe is called, on a stream that is not the default one."""
    model = nn.Sequential(nn.Linear(16, 16), Slow(), nn.Linear(16, 4)).double()
    bare = copy.deepcopy(model).cuda()
    pipe = Pipe(model, [1, 2], devices=devices, chunks=2, checkpoint="always")
    stream = torch.cuda.Stream()
    source = torch.rand(4, 16, dtype=torch.float64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        x = (source * 3).requires_grad_()
        output = pipe(x)
        doubled = output * 2
        doubled.sum().backward()
        grads = [p.grad.clone() for p in pipe.parameters()]
        x_grad = x.grad.clone()
    stream.synchronize()
    y = (source * 3).requires_grad_()
    expected = bare(y) * 2
    expected.sum().backward()
    torch.testing.assert_close(doubled.cpu(), expected.cpu())
    torch.testing.assert_close(x_grad, y.grad)
    torch.testing.assert_close([g.cpu() for g in grads], [p.grad.cpu() for p in bare.parameters()])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # which is the point here
def test_a_backward_on_another_stream_than_the_forward_is_ordered_too():
    model = nn.Sequential(nn.Linear(16, 16), Slow(), nn.Linear(16, 4)).double()
    bare = copy.deepcopy(model).cuda()
    pipe = Pipe(model, [1, 2], devices=["cuda", "cuda"], chunks=2, checkpoint="always")
    x = torch.rand(4, 16, dtype=torch.float64, device="cuda")
    loss = pipe(x).sum()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        loss.backward()
        grads = [p.grad.clone() for p in pipe.parameters()]
    other.synchronize()
    bare(x).sum().backward()
    torch.testing.assert_close(grads, [p.grad for p in bare.parameters()])


def test_a_copy_runs_beside_the_computation_and_is_waited_for():
    mover = Mover(torch.device("cuda", 0))
    source = torch.zeros(1 << 20, device="cuda")
    torch.cuda._sleep(LONG)
    source.fill_(7)
    target = mover.copied(source, mark_ready([source.device]))
    busy = torch.cuda.Event()
    busy.record()
    assert not busy.query(), "the host does not wait for the copy"
    del source
    torch.full((1 << 20,), -1.0, device="cuda")  # would take the source's memory if nobody had kept it
    assert bool((target == 7).all())


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_and_gradient_scaling(dtype, checkpoint):
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    pipe = Pipe(copy.deepcopy(model), [1, 2], devices=["cuda"] * 2, chunks=2, checkpoint=checkpoint)
    x = torch.rand(8, 16, device="cuda")
    seen = []
    pipe[2].register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    for module in (model, pipe):
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                loss = module(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert seen and set(seen) == {dtype}, "in the forward and in every recomputation"
    torch.testing.assert_close(list(pipe.parameters()), list(model.parameters()), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("devices", PLACES, ids="-".join)
def test_dropout_is_drawn_again_the_same(devices):
    layers = [nn.Linear(16, 16, bias=False), nn.Dropout(0.5), nn.Linear(16, 16, bias=False), nn.Dropout(0.3)]
    for checkpoint in CHECKPOINT_MODES:
        pipe = Pipe(nn.Sequential(*layers).double(), [2, 2], devices=devices, chunks=3, checkpoint=checkpoint)
        outputs = []
        for _ in range(2):
            torch.manual_seed(5)
            for _ in range(2):
                x = torch.ones(12, 16, dtype=torch.float64, requires_grad=True)
                output = pipe(x)
                output.sum().backward()
                torch.testing.assert_close((x.grad * x).sum().cpu(), output.sum().cpu())
                outputs.append(output.detach().cpu())
        assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3]), "a seed decides"
        assert not torch.equal(outputs[0], outputs[1]), "every step draws anew"


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_dropout_with_one_chunk_draws_what_the_bare_module_draws(checkpoint):
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.3)).double().cuda()
    bare, x = copy.deepcopy(model), torch.rand(12, 16, dtype=torch.float64, device="cuda")
    pipe = Pipe(model, [2, 2], devices=["cuda"] * 2, checkpoint=checkpoint)
    for module in (bare, pipe):
        torch.manual_seed(3)
        module(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_batch_norm_counts_once(checkpoint, deferred):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)).cuda()
    bare, x = copy.deepcopy(model), torch.rand(8, 3, 8, 8, device="cuda")
    pipe = Pipe(model, [1, 2], devices=["cuda"] * 2, chunks=4, checkpoint=checkpoint, deferred_batch_norm=deferred)
    pipe(x).square().mean().backward()
    for piece in [x] if deferred else x.split(2):
        bare(piece)
    torch.testing.assert_close(dict(pipe.named_buffers()), dict(bare.named_buffers()))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_pipe_inside_a_checkpoint_of_torch_does_not_wait_for_itself(checkpoint, reentrant):
    """With use_reentrant the pipe's backward runs in autograd's own thread for the GPU, which its stages need too."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()).double()
    bare = copy.deepcopy(model).cuda()
    pipe = Pipe(model, [2, 2], devices=["cuda"] * 2, chunks=2, checkpoint=checkpoint)
    x = torch.rand(4, 16, dtype=torch.float64, device="cuda", requires_grad=True)
    torch_checkpoint(pipe, x * 2, use_reentrant=reentrant).square().sum().backward()
    ours = fresh(x.grad)
    x.grad = None
    bare(x * 2).square().sum().backward()
    torch.testing.assert_close(ours, x.grad)
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


def test_recomputation_saves_memory():
    def peak(checkpoint):
        layers = [nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()) for _ in range(4)]
        pipe = Pipe(nn.Sequential(*layers), [2, 2], devices=["cuda"] * 2, chunks=8, checkpoint=checkpoint)
        x = torch.rand(8192, 512, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        pipe(x).mean().backward()
        return torch.cuda.max_memory_allocated() - before

    peaks = {mode: peak(mode) for mode in CHECKPOINT_MODES}
    assert peaks["always"] < 0.6 * peaks["never"] and peaks["except_last"] < 0.7 * peaks["never"], peaks


def test_a_step_leaves_no_memory_behind():
    pipe = Pipe(skipping(), [2, 2], devices=["cuda"] * 2, chunks=4)
    x = torch.rand(64, 16, dtype=torch.float64, device="cuda")
    for _ in range(2):
        pipe(x).sum().backward()
    pipe.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        pipe(x).sum().backward()
        pipe.zero_grad()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_failing_layer_on_the_gpu_reaches_the_caller():
    class Raise(nn.Module):
        on = True

        def forward(self, x):
            if self.on:
                raise ZeroDivisionError
            return x

    pipe = Pipe(nn.Sequential(nn.Linear(4, 4), Raise()), [1, 1], devices=["cuda"] * 2, chunks=3)
    with pytest.raises(ZeroDivisionError):
        pipe(torch.rand(6, 4, device="cuda"))
    pipe[1].on = False
    pipe(torch.rand(6, 4, device="cuda")).sum().backward()


def test_the_balance_is_measured_on_the_gpu():
    heavy = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)])
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.ReLU(), heavy)
    x = torch.rand(4096, 1024, device="cuda")
    assert balance_by_time(2, model, x, timeout=0.2, device="cuda") == [3, 1]
    assert balance_by_size(2, model, x, device="cuda") == [3, 1]
    assert next(model.parameters()).device.type == "cpu", "measuring moves copies"
    pipe = Pipe(model, devices=["cuda"] * 2, chunks=2)
    assert pipe(x).is_cuda and pipe.balance == [3, 1]


def test_all_gpus_are_the_default():
    pipe = Pipe(nn.Sequential(*[nn.Linear(2, 2) for _ in range(torch.cuda.device_count())]))
    assert pipe.devices == [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
