"""``decay``: lets the ranks of linear bottlenecks shrink with an optimizer's steps.

Each process counts for itself, and all count the same steps: nothing is agreed on over the wire.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from thinpipe.bottleneck.linear import Ranked

if TYPE_CHECKING:
    from thinpipe.remote.offer import Offer


def decay(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Has an optimizer's steps penalise what the next decay drops, and count towards it. To be called once.

    Args:
        optimizer: of the weights of the module; its state stays as it is, since the matrices do.
        module: a pipe, a stage, or anything else with halves of bottlenecks whose rank decays; others are left alone.
    """
    ranked = [each for each in module.modules() if isinstance(each, Ranked) and each.decay is not None]

    def penalise(*_: Any) -> None:
        for each in ranked:
            each.penalise()

    def count(*_: Any) -> None:
        for each in ranked:
            each.count()

    optimizer.register_step_pre_hook(penalise)
    optimizer.register_step_post_hook(count)


def decaying_offer(offer: Offer) -> Offer:
    """Makes an offer whose middles decay, though a server makes optimizers of weights, and never tells whose they are.

    Args:
        offer: of middles with halves whose rank decays.
    """
    made: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def make() -> nn.Module:
        module = offer.make()
        made.add(module)
        return module

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        weights = list(parameters)
        own = {id(weight) for weight in weights}
        built = offer.optimizer(weights)
        for module in list(made):
            if own & {id(weight) for weight in module.parameters()}:
                decay(built, module)
        return built

    return replace(offer, make=make, optimizer=optimizer)
