"""Two ranks of torch.distributed.pipelining with coded cuts, for torchrun; each writes its gradients to a file."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from thinpipe.interop import CodedCut

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
CODECS = {
    "block": ("block:8", "block:4"),
    "rotated": ("had:4", "had:4"),
    "sorted": ("sort:6+2", "uniform:8"),
    "plain": (None, None),
    "chosen": ("topk:0.25", "topk:0.25"),
}
MICROS, ROWS = 4, 6


def parts():
    """The two halves of a model, the same each time."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 32))
    return first, nn.Sequential(nn.GELU(), nn.Linear(32, 5))


def batch():
    generator = torch.Generator().manual_seed(1)
    rows = MICROS * ROWS
    return torch.randn(rows, 12, generator=generator), torch.randint(5, (rows,), generator=generator)


def run(rank, schedule, codecs):
    codec, grad_codec = CODECS[codecs]
    cut = CodedCut((ROWS, 32), codec=codec, grad_codec=grad_codec)
    module = parts()[rank]
    wrapped = cut.sender(module) if rank == 0 else cut.receiver(module)
    known = {}
    if codecs == "chosen":  # or stages would try words that are no indices
        coming, leaving = torch.zeros(ROWS, 12), torch.zeros(ROWS, 5, requires_grad=True)
        known = {"input_args": cut.message(), "output_args": leaving}
        known = {"input_args": coming, "output_args": cut.message()} if rank == 0 else known
    stage = PipelineStage(wrapped, rank, 2, torch.device("cpu"), **known)
    steps = SCHEDULES[schedule](stage, n_microbatches=MICROS, loss_fn=nn.functional.cross_entropy)
    x, y = batch()
    # Twice, the first time being the one in which stages try what comes and goes.
    for _ in range(2):
        module.zero_grad()
        losses = []
        steps.step(x) if rank == 0 else steps.step(target=y, losses=losses)
    return [parameter.grad for parameter in module.parameters()]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {(s, c): run(rank, s, c) for s in SCHEDULES for c in CODECS}
    torch.save(found, Path(sys.argv[1], f"rank{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
