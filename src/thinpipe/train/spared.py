"""What bottlenecks spare a cut: the tensors that they make small, less what they make of them.

A pipe counts the tensors that cross. Whoever asks what is left of a model's own tensors adds what never got there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from thinpipe.bottleneck import Sender
from thinpipe.bottleneck.place import at
from thinpipe.runtime.crossing import Flow


class Spared:
    """Looks on at the senders of some bottlenecks, and counts.

    Args:
        model: with the senders; nothing of it is recomputed, or it would be counted twice.
        cuts: how many there are.
    """

    def __init__(self, model: nn.Module, cuts: int) -> None:
        self._flows = [(Flow(), Flow()) for _ in range(cuts)]
        for each in model.modules():
            if isinstance(each, Sender):
                each.register_forward_hook(self._count)

    def _count(self, sender: Sender, inputs: Any, output: Any) -> None:
        before, after = at(inputs[0], sender.place), at(output, sender.place)
        there, back = self._flows[sender.cut]
        # What has a gradient gets one back, of the same shape.
        for flow in (there, back) if after.requires_grad else (there,):
            flow.raw += before.nbytes - after.nbytes
            flow.elements += before.numel() - after.numel()

    def added_to(self, traffic: Sequence[tuple[Flow, Flow]]) -> list[tuple[Flow, Flow]]:
        """Returns what crossed each cut, forward and backward, with sizes of the tensors before the bottlenecks."""
        return [
            (_sum(there, more), _sum(back, less))
            for (there, back), (more, less) in zip(traffic, self._flows, strict=True)
        ]


def _sum(flow: Flow, spared: Flow) -> Flow:
    return Flow(packed=flow.packed, raw=flow.raw + spared.raw, elements=flow.elements + spared.elements)
