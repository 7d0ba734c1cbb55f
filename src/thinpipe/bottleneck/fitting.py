"""``fit``: begins bottlenecks with the weights that lose least of a trained model's own activations.

Of all linear pairs of their size none does better than the principal components: the sender's weights are the first
eigenvectors of the covariance of patches, the receiver's are their transpose, and the mean is in the biases. One pass
over a few batches for each set finds them, without a gradient. Where patches overlap, or leave gaps, those of the part
that does neither are what a warm-up begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.bottleneck.basis import principal
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.half import Receiver, Sender
from thinpipe.bottleneck.insertion import evaluated, pairs
from thinpipe.bottleneck.moments import Moments
from thinpipe.bottleneck.pair import crossed
from thinpipe.bottleneck.place import at
from thinpipe.runtime.assembly import as_sequence
from thinpipe.stages.skip import SkipStore, skips_in


@dataclass(frozen=True)
class Fitted:
    """What came of it at one cut.

    Args:
        cut: its number.
        rows: of the batches that were looked at.
        explained: the share of the variance of what crosses the cut that arrives: 1 less the squares of what is lost,
            over those of what differs from its channel's (or feature's, or position's) mean. Measured, edges included.
    """

    cut: int
    rows: int
    explained: float

    def __str__(self) -> str:
        return f"cut {self.cut}: {self.explained:.2%} of the variance arrives ({self.rows} rows)"


def fit(stages: Sequence[nn.Module], batches: Iterable[Any]) -> list[Fitted]:
    """Sets the weights of all bottlenecks to the best ones for some batches, from the first cut to the last.

    A cut sees what the bottlenecks before it leave. The model is run in evaluation, and stays as it was.

    Args:
        stages: with both halves of every bottleneck, as ``insert`` returns them.
        batches: what the first stage takes; a few hundred rows do. They are gone through once for each set,
            and once more for each cut.

    Raises:
        BottleneckError: there are no bottlenecks, no batches, or only one half of a bottleneck.
    """
    found = pairs(stages)
    kept = list(batches) if isinstance(batches, Iterator) else batches
    with evaluated(stages):
        return [_fit(stages, kept, sender, receiver) for sender, receiver in found]


def explained(stages: Sequence[nn.Module], batches: Iterable[Any]) -> list[Fitted]:
    """Measures what share of the variance arrives behind each bottleneck, and changes nothing."""
    found = pairs(stages)
    kept = list(batches) if isinstance(batches, Iterator) else batches
    with evaluated(stages):
        return [_measured(stages, kept, sender, receiver) for sender, receiver in found]


def _fit(stages: Sequence[nn.Module], batches: Iterable[Any], sender: Sender, receiver: Receiver) -> Fitted:
    for k, (narrow, widen) in enumerate(zip(sender.sets, receiver.sets, strict=True)):
        moments: Moments | None = None
        for (x,) in arrivals(stages, batches, [sender]):
            for before in sender.sets[:k]:
                x = before(x)
            vectors = narrow.vectors(x)
            moments = moments or Moments(vectors.shape[1], vectors.device)
            moments.add(vectors)
        if moments is None:
            raise BottleneckError("there are no batches to fit bottlenecks to; pass a few hundred rows")
        centre = narrow.centre(moments.mean)
        basis = principal(moments.about(centre), len(narrow.weight))
        narrow.begin(basis, centre)
        widen.begin(basis, centre)
    return _measured(stages, batches, sender, receiver)


def _measured(stages: Sequence[nn.Module], batches: Iterable[Any], sender: Sender, receiver: Receiver) -> Fitted:
    rows, count = 0, 0
    total: Tensor | float = 0.0
    squares = lost = 0.0
    axis = sender.sets[0].axis
    for (x,) in arrivals(stages, batches, [sender]):
        exact = x.double()
        others = [dim for dim in range(x.dim()) if dim != axis % x.dim()]
        rows, count = rows + len(x), count + x.numel() // x.shape[axis]
        total = total + exact.sum(others)
        squares += float(exact.square().sum())
        lost += float((exact - crossed(sender, receiver, x).double()).square().sum())
    if not isinstance(total, Tensor):
        raise BottleneckError("there are no batches to measure bottlenecks with")
    variance = squares - float(total.square().sum()) / count
    return Fitted(sender.cut, rows, 1 - lost / variance if variance > 0 else 1.0)


def arrivals(stages: Sequence[nn.Module], batches: Iterable[Any], senders: Sequence[Sender]) -> Iterator[list[Tensor]]:
    """Runs batches as far as some senders, without gradients; yields the tensors that these make small."""
    caught: list[Tensor] = []
    hooks = [
        sender.register_forward_pre_hook(lambda half, args: caught.append(at(args[0], half.place)))
        for sender in senders
    ]
    ends = [j for j, stage in enumerate(stages) if any(module in senders for module in stage.modules())]
    try:
        for batch in batches:
            caught.clear()
            value = batch
            with torch.no_grad(), skips_in(SkipStore()):
                for stage in stages[: ends[-1] + 1]:
                    value = as_sequence(stage)(value)
            yield list(caught)
    finally:
        for hook in hooks:
            hook.remove()
