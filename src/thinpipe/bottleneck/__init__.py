"""Learned compression: modules at a cut that make small what crosses it, and are trained with the model.

::

    stages = insert(split(model, at=["wide", "pool"]), "conv:8k2s2/conv:16", example=x)
    fit(stages, batches)
    pipe = Pipe(stages, codec="wave:4", grad_codec="wave:4")
"""

from thinpipe.bottleneck.decay import RankDecay
from thinpipe.bottleneck.decaying import decay, decaying_offer
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.fitting import Fitted, explained, fit
from thinpipe.bottleneck.half import Receiver, Sender
from thinpipe.bottleneck.insertion import bottleneck_state, insert, load_bottlenecks, without_bottlenecks
from thinpipe.bottleneck.pair import Bottleneck
from thinpipe.bottleneck.ratios import ratio
from thinpipe.bottleneck.spec import parse, parse_cuts
from thinpipe.bottleneck.warming import frozen, warm_up

__all__ = [
    "Bottleneck",
    "BottleneckError",
    "Fitted",
    "RankDecay",
    "Receiver",
    "Sender",
    "bottleneck_state",
    "decay",
    "decaying_offer",
    "explained",
    "fit",
    "frozen",
    "insert",
    "load_bottlenecks",
    "parse",
    "parse_cuts",
    "ratio",
    "warm_up",
    "without_bottlenecks",
]
