"""torchgpipe's known defects, one test each: what went wrong there must go right here."""

import copy
import gc
import threading

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from support import WAIT, Meet
from thinpipe.torchgpipe import GPipe, is_checkpointing
from thinpipe.torchgpipe.balance import balance_by_time
from thinpipe.torchgpipe.skip import Namespace, pop, skippable, stash

CPUS = ["cpu", "cpu"]


@skippable(stash=["skip"])
class Stash(nn.Module):
    """Stashes what it computed, which is no leaf of any graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        x = self.linear(x)
        yield stash("skip", x)
        return x * 2


@skippable(pop=["skip"])
class Pop(nn.Module):
    def forward(self, x):
        skip = yield pop("skip")
        return x + skip


def test_fewer_micro_batches_than_chunks_still_move_deferred_statistics():
    """torchgpipe waited for as many micro-batches as there were chunks, and never committed a short batch."""
    plain = nn.Sequential(nn.BatchNorm1d(2), nn.Flatten())
    pipe = GPipe(copy.deepcopy(plain), [1, 1], devices=CPUS, chunks=4, deferred_batch_norm=True)
    x = torch.randn(3, 2, 5) + 1
    plain(x)
    pipe(x)
    assert pipe[0].num_batches_tracked == 1
    torch.testing.assert_close(pipe[0].running_mean, plain[0].running_mean)


def test_fewer_micro_batches_than_chunks_still_spare_the_last_from_recomputation():
    """torchgpipe looked for the last micro-batch at the place that `chunks` gave it, where a short batch had none."""
    told = {}

    class Asking(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            told.setdefault(x[0].item(), is_checkpointing())
            return x * self.scale

    pipe = GPipe(nn.Sequential(Asking()), [1], devices=CPUS, chunks=4, checkpoint="except_last")
    pipe(torch.arange(2.0)).sum().backward()
    assert told == {0.0: True, 1.0: False}


def test_the_deferred_variance_is_unbiased():
    """torchgpipe's running variance divided by n where nn.BatchNorm1d divides by n - 1."""
    plain = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0))
    pipe = GPipe(copy.deepcopy(plain), [1], devices=CPUS, chunks=2, deferred_batch_norm=True)
    x = torch.randn(4, 2)
    plain(x)
    pipe(x)
    torch.testing.assert_close(pipe[0].running_var, x.var(0))
    torch.testing.assert_close(pipe[0].running_var, plain[0].running_var)


def test_the_deferred_variance_survives_a_mean_far_from_zero():
    """torchgpipe subtracted the squared mean from the mean square: in float32 nothing right was left of 1 in 10000."""
    pipe = GPipe(nn.Sequential(nn.BatchNorm1d(1, momentum=1.0)), [1], devices=CPUS, chunks=4, deferred_batch_norm=True)
    x = torch.randn(1024, 1) + 10_000
    pipe(x)
    torch.testing.assert_close(pipe[0].running_var, x.double().var(0).float(), rtol=1e-3, atol=0)


def test_deferred_batch_norm_adds_nothing_to_the_state_dict():
    """torchgpipe registered its sums as buffers, so its checkpoints fitted no plain model."""
    plain = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    pipe = GPipe(copy.deepcopy(plain), [2], devices=CPUS, chunks=2, deferred_batch_norm=True)
    pipe(torch.randn(4, 2))
    assert [key.removeprefix("partitions.0.") for key in pipe.state_dict()] == list(plain.state_dict())


def test_recomputation_does_not_update_plain_batch_norm_again():
    """torchgpipe's recomputation was one more forward to nn.BatchNorm1d, and counted as one more batch."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    pipe = GPipe(copy.deepcopy(plain), [1, 1], devices=CPUS, checkpoint="always")
    x = torch.randn(4, 2)
    plain(x).sum().backward()
    pipe(x).sum().backward()
    assert pipe[1].num_batches_tracked == 1
    torch.testing.assert_close(pipe[1].running_mean, plain[1].running_mean)
    torch.testing.assert_close(pipe[1].running_var, plain[1].running_var)


def test_tensors_with_unequal_rows_are_refused():
    """torchgpipe zipped the chunks of all tensors, and dropped the rows of those that had more of them."""

    class First(nn.Module):
        def forward(self, pair):
            return pair[0]

    pipe = GPipe(nn.Sequential(First()), [1], devices=CPUS, chunks=4)
    with pytest.raises(ValueError, match=r"same number of rows.*NoChunk"):
        pipe((torch.ones(8, 1), torch.ones(2, 1)))


def test_skips_with_and_without_a_namespace_go_together():
    """torchgpipe sorted skips by namespace, and a skip without one has no id to sort by."""
    namespace = Namespace()
    model = nn.Sequential(Stash(), Stash().isolate(namespace), Pop().isolate(namespace), Pop())
    pipe = GPipe(model, [2, 2], devices=CPUS, chunks=2)
    x = torch.randn(4, 2)
    torch.testing.assert_close(pipe(x), model(x))


def test_a_layer_that_exits_does_not_hang():
    """torchgpipe's threads caught Exception only: SystemExit ended the thread, and the caller waited for ever."""

    class Exit(nn.Module):
        def forward(self, x):
            raise SystemExit(3)

    pipe = GPipe(nn.Sequential(nn.Linear(1, 1), Exit()), [1, 1], devices=CPUS, chunks=2)
    caught = []

    def call():
        with pytest.raises(SystemExit) as error:
            pipe(torch.ones(2, 1))
        caught.append(error.value.code)

    # In a thread of its own, which can be given up should it hang after all.
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(WAIT)
    assert caught == [3]


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_autocast_reaches_the_stages(checkpoint):
    """Autocast belongs to a thread; torchgpipe's threads never heard of it, and trained in float32."""
    seen = []

    class Noting(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            seen.append(y.dtype)
            return y

    pipe = GPipe(nn.Sequential(Noting(2, 2), Noting(2, 2)), [1, 1], devices=CPUS, chunks=2, checkpoint=checkpoint)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = pipe(torch.ones(4, 2))
    output.float().sum().backward()
    assert output.dtype is torch.bfloat16
    assert set(seen) == {torch.bfloat16} and len(seen) == (8 if checkpoint == "always" else 4)


def test_a_model_that_stashes_what_it_computed_can_be_balanced():
    """torchgpipe measured the popping layer with the stash still tied to the stashing layer's freed graph."""
    model = nn.Sequential(Stash(), nn.Linear(2, 2), Pop())
    assert sum(balance_by_time(2, model, torch.randn(4, 2), timeout=0.01, device="cpu")) == 3


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_scalar_output_is_the_mean_over_rows(checkpoint):
    """torchgpipe concatenated outputs, and scalars cannot be: a loss could not be the last layer."""

    class Loss(nn.Module):
        def forward(self, x):
            return x.square().mean()

    plain = nn.Sequential(nn.Linear(2, 2), Loss())
    pipe = GPipe(copy.deepcopy(plain), [1, 1], devices=CPUS, chunks=2, checkpoint=checkpoint)
    x = torch.randn(5, 2)  # 3 rows and 2: a plain mean of the two losses would be another number
    plain(x).backward()
    output = pipe(x)
    output.backward()
    torch.testing.assert_close(output, plain(x))
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_autograd_grad_leaves_grad_alone(checkpoint):
    """torchgpipe's recomputed graphs ran backwards of their own, which wrote .grad, whatever had been asked for."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    pipe = GPipe(copy.deepcopy(plain), [1, 1], devices=CPUS, chunks=2, checkpoint=checkpoint)
    x = torch.randn(4, 2, requires_grad=True)
    expected = torch.autograd.grad(plain(x).sum(), [x, *plain.parameters()])
    torch.testing.assert_close(torch.autograd.grad(pipe(x).sum(), [x]), expected[:1])
    assert all(p.grad is None for p in pipe.parameters())
    torch.testing.assert_close(torch.autograd.grad(pipe(x).sum(), [x, *pipe.parameters()]), expected)
    assert all(p.grad is None for p in pipe.parameters())


@pytest.fixture
def process_group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    # What still holds the group would keep its threads to the end of the process, where they can abort it.
    gc.collect()
    distributed.destroy_process_group()


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_distributed_data_parallel_goes_on_top(process_group, checkpoint):
    """torchgpipe's recomputed micro-batches each had a backward of their own: DDP saw a parameter ready twice."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    pipe = GPipe(copy.deepcopy(plain), [1, 1], devices=CPUS, chunks=2, checkpoint=checkpoint)
    replica = DistributedDataParallel(pipe)
    x = torch.randn(4, 2)
    for _ in range(2):
        plain(x).square().sum().backward()
        replica(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in plain.parameters()])


def test_the_threads_stay_from_step_to_step():
    """torchgpipe started its threads anew in every forward."""
    threads = []

    class Noting(nn.Linear):
        def forward(self, x):
            threads.append(threading.current_thread())
            return super().forward(x)

    pipe = GPipe(nn.Sequential(Noting(1, 1)), [1], devices=CPUS, chunks=2, checkpoint="always")
    for _ in range(3):
        pipe(torch.ones(2, 1)).sum().backward()
    assert len(threads) == 12
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread()


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_stages_on_the_cpu_go_backward_at_the_same_time(checkpoint):
    """torchgpipe left the backward to autograd, which has one thread for all that is on the CPU."""
    barrier = threading.Barrier(2)

    class Meeting(nn.Module):
        def __init__(self, micro_batch):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.micro_batch = micro_batch

        def forward(self, x):
            x = x * self.scale
            return Meet.apply(x, barrier) if x[0].item() == self.micro_batch else x

    # Micro-batch 1 goes backward first: the first stage has it while the second has micro-batch 0.
    pipe = GPipe(nn.Sequential(Meeting(1), Meeting(0)), [1, 1], devices=CPUS, chunks=2, checkpoint=checkpoint)
    pipe(torch.arange(2.0)).sum().backward()
    assert not barrier.broken
