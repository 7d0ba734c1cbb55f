"""The two stages of ``thinpipe bench link``, which sleep instead of computing.

Real tensors of a known size cross the cut in both directions, and the cores stay free for what is measured: how well a
runtime hides the wire behind the work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.schedule import Kind, Times, plan, simulate

STAGES = 2


@dataclass(frozen=True)
class Work:
    """What one step does.

    Args:
        micros: the number of micro-batches.
        rows: of a micro-batch.
        width: of a row.
        forward: seconds that a stage takes for a micro-batch forward.
        backward: seconds that it takes backward.
    """

    micros: int = 8
    rows: int = 512
    width: int = 512
    forward: float = 0.020
    backward: float = 0.040

    @property
    def message_bytes(self) -> int:
        """What crosses the cut for a micro-batch, each way."""
        return self.rows * self.width * torch.float32.itemsize

    @property
    def ideal(self) -> float:
        """The seconds of a step if the wire took no time."""
        job, lists = plan("1f1b", STAGES, self.micros)
        times = Times(compute={Kind.FORWARD: self.forward, Kind.BACKWARD: self.backward})
        return simulate(job, lists, times).length

    def stage(self) -> nn.Module:
        """Makes a stage; both are alike."""
        return SleepingStage(self.forward, self.backward)

    def micro_batch(self) -> Tensor:
        """Draws one message."""
        return torch.randn(self.rows, self.width)

    def batch(self) -> Tensor:
        """Draws a batch; as a target of ``loss`` too."""
        return torch.randn(self.micros * self.rows, self.width)


TINY = Work(micros=4, rows=64, width=64, forward=0.002, backward=0.004)


class SleepingStage(nn.Module):
    """Gives back its input, after a while; its gradient too, after another while.

    Args:
        forward: seconds.
        backward: seconds.
    """

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.seconds = (forward, backward)
        # Without a parameter the first stage would have no backward, as its input wants no gradient.
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, input: Tensor) -> Tensor:
        """Sleeps."""
        output = _Sleep.apply(input, self.weight, *self.seconds)  # type: ignore[no-untyped-call]
        assert isinstance(output, Tensor)
        return output


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return input.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.seconds)
        (grad,) = grads
        input_grad = grad.clone() if ctx.needs_input_grad[0] else None
        return input_grad, grad.new_zeros(()), None, None


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Has the target as its gradient, so that what travels back is as varied as what came."""
    return (output * target).sum()
