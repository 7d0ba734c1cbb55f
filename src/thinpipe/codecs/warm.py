"""Compiles the kernels of codecs before the first tensor that would wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from thinpipe.codecs.catalogue import codec
from thinpipe.errors import CodecError

_SHAPE = (24, 64, 8, 8)
_ROWS = (24, 8, 1)
"""Of these, quantiles are estimated from a sample, counted by a histogram, and sorted: each has kernels of its own."""


def warm(specs: Iterable[str | None]) -> None:
    """Packs and unpacks something with each codec on the CPU, so that its kernels are compiled, or read if they were.

    Args:
        specs: of codecs; None for none.
    """
    for spec in dict.fromkeys(specs):
        if spec is not None:
            _warm(spec)


@cache
def _warm(spec: str) -> None:
    whole = _sample()
    for rows in _ROWS:
        made = codec(spec)
        with suppress(CodecError):  # a codec that cannot take such a tensor
            made.decode(made.encode(whole[:rows]))


def _sample() -> Tensor:
    """Makes a tensor without drawing anything; some of it is 0, as after a ReLU, which kernels know of."""
    x = torch.arange(torch.Size(_SHAPE).numel(), dtype=torch.float32).sin().view(_SHAPE)
    x[:, :32].relu_()
    return x
