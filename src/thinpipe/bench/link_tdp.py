"""The step of ``thinpipe bench link`` in ``torch.distributed.pipelining``: its 1F1B, tensors as they are, gloo."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from thinpipe.bench.link_stage import STAGES, Work, loss


def tdp_step(work: Work, rank: int) -> Callable[[], None]:
    """Makes what a rank of the default process group calls to take one step."""
    # Given both examples it infers nothing, for which it would exchange messages and run the stage; that they want
    # gradients is how it knows that a message comes back.
    coming = work.micro_batch().requires_grad_(rank > 0)
    leaving = work.micro_batch().requires_grad_()
    stage = PipelineStage(work.stage(), rank, STAGES, torch.device("cpu"), input_args=coming, output_args=leaving)
    schedule = Schedule1F1B(stage, n_microbatches=work.micros, loss_fn=loss)
    batch = work.batch()

    def step() -> None:
        # Nobody wants the outputs put together again, and it should not be charged for that.
        if rank == 0:
            schedule.step(batch, return_outputs=False)
        else:
            schedule.step(target=batch, return_outputs=False)

    return step
