"""What bottlenecks spare a cut: the tensors that they make small, less what they make of them.

A pipe counts the tensors that cross. Whoever asks what is left of a model's own tensors adds what never got there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from thinpipe.bottleneck import Sender
from thinpipe.bottleneck.place import at
from thinpipe.runtime.crossing import Flow


class Spared:
    """Looks on at the senders of some bottlenecks, and counts.

    Senders tell the size of a row and no sum of them: a compiled stage would take a sum for a constant of its graph.

    Args:
        model: with the senders.
        cuts: how many there are.
    """

    def __init__(self, model: nn.Module, cuts: int) -> None:
        self._flows = [(Flow(), Flow()) for _ in range(cuts)]
        self._rows: dict[int, _Row] = {}
        for each in model.modules():
            if isinstance(each, Sender):
                self._rows[each.cut] = _Row(0, 0, returns=False)  # from the first, or a graph would be of its absence
                each.register_forward_hook(self._look)

    def _look(self, sender: Sender, inputs: Any, output: Any) -> None:
        before, after = at(inputs[0], sender.place), at(output, sender.place)
        less = before.numel() - after.numel()
        raw = before.numel() * before.element_size() - after.numel() * after.element_size()
        self._rows[sender.cut] = _Row(raw // before.shape[0], less // before.shape[0], after.requires_grad)

    def count(self, rows: int) -> None:
        """Counts rows that crossed all cuts, in the pass that was the last."""
        for cut, row in self._rows.items():
            there, back = self._flows[cut]
            for flow in (there, back) if row.returns else (there,):
                flow.raw += rows * row.raw
                flow.elements += rows * row.elements

    def added_to(self, traffic: Sequence[tuple[Flow, Flow]]) -> list[tuple[Flow, Flow]]:
        """Returns what crossed each cut, forward and backward, with sizes of the tensors before the bottlenecks."""
        return [
            (_sum(there, more), _sum(back, less))
            for (there, back), (more, less) in zip(traffic, self._flows, strict=True)
        ]


class _Row(NamedTuple):
    """What one row of a batch is spared.

    Args:
        raw: bytes.
        elements: numbers.
        returns: whether a gradient of the same shape comes back.
    """

    raw: int
    elements: int
    returns: bool


def _sum(flow: Flow, spared: Flow) -> Flow:
    return Flow(packed=flow.packed, raw=flow.raw + spared.raw, elements=flow.elements + spared.elements)
