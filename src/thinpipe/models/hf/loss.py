"""Losses over tokens that are the same however a batch is cut.

A pipeline weighs the losses of micro-batches by their rows. A mean over the tokens that have a label is another thing
wherever rows have different numbers of them: a micro-batch with few labels would count as much as one with many. So
every row brings its share along, the number of rows over that of all labels, and the loss is a mean over rows again::

    sum over rows of (sum over its tokens) x rows / labels  /  rows   =   sum over all tokens / labels
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""The label of a token that does not count, in transformers as in PyTorch."""


def token_targets(labels: Tensor, *, causal: bool = False) -> dict[str, Tensor]:
    """Makes the targets for ``token_loss`` of a whole batch.

    Args:
        labels: a label for each token, -100 where it does not count.
        causal: whether a token's output is about the token after it, as in GPT-2; ``labels`` may then be the
            ``input_ids``, with -100 at the padding. Default: ``False``.
    """
    if causal:
        labels = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    rows = len(labels)
    share = rows / labels.ne(IGNORED).sum().clamp(min=1).to(torch.float64)
    return {"labels": labels, "share": share.expand(rows)}


def token_loss(logits: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """Computes the mean cross-entropy over all tokens of the batch that have a label, as transformers does.

    Args:
        logits: of a micro-batch, for each token and class.
        targets: its part of what ``token_targets`` made.
    """
    labels = targets["labels"]
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    rows = losses.view(labels.shape).sum(1)
    return (rows * targets["share"].to(rows.dtype)).mean()
