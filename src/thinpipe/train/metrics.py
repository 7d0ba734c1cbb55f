"""How good a model's answers are, over a whole test set."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def accuracy(answers: Tensor, targets: Tensor) -> float:
    """Computes the share of answers that are right."""
    return float((answers == targets).double().mean())


def matthews(answers: Tensor, targets: Tensor) -> float:
    """Computes Matthews' correlation of answers and targets, for any number of classes.

    It is 1 where all are right, and 0 where the answers know nothing of the targets: unlike accuracy it does not praise
    a model that always gives the commonest answer. Where it is not defined, since all answers or all targets are the
    same, it is 0. To be meant as a whole it must be computed of the whole set: a mean over batches is something else.
    """
    classes = int(torch.cat([answers, targets]).max()) + 1
    table = torch.bincount(targets * classes + answers, minlength=classes**2).view(classes, classes).double()
    rows, right = float(table.sum()), float(table.trace())
    of_targets, of_answers = table.sum(1), table.sum(0)
    covariance = right * rows - float(of_targets @ of_answers)
    spread = (rows**2 - float(of_targets @ of_targets)) * (rows**2 - float(of_answers @ of_answers))
    return covariance / math.sqrt(spread) if spread > 0 else 0.0
