"""Every codec by name: how it is written, what it does, and how it is made of its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from thinpipe.codecs.block import DEFAULT_GROUP, Block
from thinpipe.codecs.cast import Cast
from thinpipe.codecs.codec import Codec, check_expansion
from thinpipe.codecs.coder import Coder, Raw
from thinpipe.codecs.downsample import Downsample
from thinpipe.codecs.feedback import ErrorFeedback
from thinpipe.codecs.hadamard import DEFAULT_GROUP as HADAMARD_GROUP
from thinpipe.codecs.hadamard import Hadamard
from thinpipe.codecs.levels import NF_GROUP, KMeans, NormalFloat
from thinpipe.codecs.lossless import Zstd
from thinpipe.codecs.lowrank import SVD, Power
from thinpipe.codecs.packet import Packet
from thinpipe.codecs.sort import Sort
from thinpipe.codecs.spec import Stage, Word, parse
from thinpipe.codecs.topk import TopK
from thinpipe.codecs.uniform import Uniform
from thinpipe.codecs.wave import DEFAULT_SIDE, Wave
from thinpipe.errors import PacketError, SpecError
from thinpipe.suggest import nearest

DEFAULT = "wave:4"
"""What the project recommends; docs/codecs.md says why."""

_MOST_GROUP = 1 << 20
_MOST_EXPANSION = 1 << 14
_MOST_STAGES = 8
"""Of a chain: each ``power`` or ``svd`` doubles the sections of what follows it."""


class Kind(Enum):
    """What a stage of a chain makes of what it is given."""

    SHAPE = "a smaller tensor"
    VALUES = "bytes"
    BYTES = "fewer bytes"


@dataclass(frozen=True)
class Entry:
    """One codec of the catalogue.

    Args:
        name: before the colon.
        form: how it is written.
        summary: what it does, in a line.
        kind: what it makes.
        make: makes the coder of its stage, given the coder that follows; one of values ignores what follows.
        options: the words that may follow a comma.
        argument: whether a colon must follow the name.
    """

    name: str
    form: str
    summary: str
    kind: Kind
    make: Callable[[Stage, Coder], Coder]
    options: tuple[str, ...] = ()
    argument: bool = True


def _argument(stage: Stage) -> Word:
    assert stage.argument is not None  # `codec` has looked
    return stage.argument


def _has(stage: Stage, option: str) -> bool:
    return any(word.text == option for word in stage.options)


def _uniform(stage: Stage) -> Coder:
    stochastic = _has(stage, "sr")
    bits = _argument(stage).integer(1, 8 if stochastic else 16, "the width of a code")
    return Uniform(bits, zero=_has(stage, "zero"), stochastic=stochastic)


def _sort(stage: Stage) -> Coder:
    words, exact = _argument(stage).split("+"), _has(stage, "exact")
    if len(words) > 2:
        words[2].wrong("sort takes a width, as sort:8, or two, as sort:6+2")
    if len(words) == 1:
        bits = words[0].integer(2, 16, "the width of a code")
        split = max(1, bits // 4)
        return Sort(bits - split, split, exact=exact)
    value_bits = words[0].integer(1, 15, "the width of the place in a bucket")
    split = words[1].integer(1, min(8, 16 - value_bits), "the width of the bucket's number")
    return Sort(value_bits, split, exact=exact)


def _one_or_two(stage: Stage, what: str) -> tuple[Word, Word | None]:
    words = _argument(stage).split("/")
    if len(words) > 2:
        words[2].wrong(f"{what} are all there is")
    return words[0], words[1] if len(words) == 2 else None


def _blocked(stage: Stage) -> tuple[Word, Word | None]:
    return _one_or_two(stage, "a width and the size of a block, as 4/128,")


def _block(stage: Stage) -> Coder:
    width, size = _blocked(stage)
    stochastic = _has(stage, "sr")
    bits = width.integer(1, 8 if stochastic else 16, "the width of a code")
    group = DEFAULT_GROUP if size is None else size.integer(2, _MOST_GROUP, "the size of a block")
    return Block(bits, group, stochastic=stochastic)


def _hadamard(stage: Stage) -> Coder:
    width, size = _blocked(stage)
    bits = width.integer(1, 8, "the width of a code")
    group = HADAMARD_GROUP if size is None else size.integer(2, 4096, "the size of a block")
    if group & (group - 1):
        assert size is not None
        size.wrong(f"the size of a rotated block is a power of two, got {group}")
    return Hadamard(bits, group)


def _normal_float(stage: Stage) -> Coder:
    width, size = _blocked(stage)
    width.integer(4, 4, "the width of a code")
    return NormalFloat(NF_GROUP if size is None else size.integer(2, _MOST_GROUP, "the size of a block"))


def _wave(stage: Stage) -> Coder:
    width, size = _blocked(stage)
    bits = width.number(1 / 128, 8, "the bits of a number")
    return Wave(bits, DEFAULT_SIDE if size is None else size.integer(2, 32, "the side of a tile"))


def _kmeans(stage: Stage) -> Coder:
    return KMeans(_argument(stage).integer(1, 8, "the width of a code"))


def _topk(stage: Stage, inner: Coder) -> Coder:
    return TopK(_argument(stage).share("the share of elements"), inner, own=_has(stage, "own"))


def _downsample(stage: Stage, inner: Coder) -> Coder:
    return Downsample(_argument(stage).integer(1, 64, "the factor"), inner)


def _power(stage: Stage, inner: Coder) -> Coder:
    rank, passes = _one_or_two(stage, "a rank and the passes over a tensor, as 3/3,")
    return Power(
        rank.integer(1, 4096, "the rank"),
        inner,
        passes=None if passes is None else passes.integer(1, 64, "the number of passes"),
    )


def _svd(stage: Stage, inner: Coder) -> Coder:
    return SVD(_argument(stage).integer(1, 4096, "the rank"), inner)


def _values(name: str, form: str, summary: str, make: Callable[[Stage], Coder], options: tuple[str, ...] = ()) -> Entry:
    """Enters a codec of values."""
    return Entry(name, form, summary, Kind.VALUES, lambda stage, _: make(stage), options, argument=":" in form)


_ENTRIES = (
    _values("none", "none", "the elements as they are", lambda _: Raw()),
    _values("fp16", "fp16", "half precision", lambda _: Cast("fp16", torch.float16)),
    _values("bf16", "bf16", "bfloat16", lambda _: Cast("bf16", torch.bfloat16)),
    _values("uniform", "uniform:B", "one even grid for the tensor", _uniform, ("zero", "sr")),
    _values("sort", "sort:Q+S", "2**S buckets of equal population, a grid each", _sort, ("exact",)),
    _values("kmeans", "kmeans:B", "the 2**B levels that err least", _kmeans),
    _values("block", "block:B/G", "an even grid for every G neighbours", _block, ("sr",)),
    _values("had", "had:B/G", "the same, or G neighbours rotated where that errs less", _hadamard),
    _values("wave", "wave:B/T", "waves of T x T neighbours of all channels, each bit where it does most", _wave),
    _values("nf", "nf:4/G", "the levels of NF4 for every G neighbours", _normal_float),
    Entry("topk", "topk:P", "the share P of greatest magnitude", Kind.SHAPE, _topk, ("own",)),
    Entry("downsample", "downsample:F", "averages of F x F or F neighbours", Kind.SHAPE, _downsample),
    Entry("power", "power:R/P", "two factors of rank R, by P passes of power iteration", Kind.SHAPE, _power),
    Entry("svd", "svd:R", "two factors of rank R, by singular values", Kind.SHAPE, _svd),
    Entry("zstd", "...|zstd", "compressed without loss", Kind.BYTES, lambda _, inner: Zstd(inner), argument=False),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def codec(spec: str | Codec) -> Codec:
    """Makes the codec that a text names; docs/codecs.md lists them.

    Args:
        spec: as ``block:4``, ``sort:6+2``, ``topk:0.1|uniform:8``, ``ef(block:4)``. A codec is returned as it is.

    Raises:
        SpecError: there is no such codec; the message points at the offending character.
    """
    if isinstance(spec, Codec):
        return spec
    chain = parse(spec)
    if len(chain.stages) > _MOST_STAGES:
        chain.stages[_MOST_STAGES].name.wrong(f"a chain has at most {_MOST_STAGES} codecs, got {len(chain.stages)}")
    entries = [_entry(stage) for stage in chain.stages]
    for before, after, stage in zip(entries, entries[1:], chain.stages[1:], strict=False):
        if after.kind is Kind.BYTES and before.kind is Kind.BYTES:
            stage.name.wrong("one lossless stage is all that helps")
        if before.kind is not Kind.SHAPE and after.kind is not Kind.BYTES:
            stage.name.wrong(f"{before.name} makes bytes, and only zstd can follow it")
    coder: Coder = Raw()
    for entry, stage in reversed(list(zip(entries, chain.stages, strict=True))):
        if entry.kind is not Kind.BYTES:
            coder = entry.make(stage, coder)
    if entries[-1].kind is Kind.BYTES:
        coder = entries[-1].make(chain.stages[-1], coder)
    return Codec(ErrorFeedback(coder) if chain.feedback else coder)


def _entry(stage: Stage) -> Entry:
    """Looks a stage up, and checks that it is written as its codec is."""
    name = stage.name.text
    if name not in CATALOGUE:
        near = nearest(name, CATALOGUE)
        forms = ", ".join(entry.form for entry in CATALOGUE.values())
        every = f"there are {forms}, and ef(...) around any"
        known = every if near is None else f"did you mean {CATALOGUE[near].form}?"
        stage.name.wrong(f"no codec is called {name!r}; {known}")
    entry = CATALOGUE[name]
    if entry.argument and (stage.argument is None or not stage.argument.text):
        end = Word("", stage.name.at + len(name), stage.name.whole)
        (stage.argument or end).wrong(f"{name} needs an argument: {entry.form}")
    if not entry.argument and stage.argument is not None:
        stage.argument.wrong(f"{name} takes no argument")
    for k, option in enumerate(stage.options):
        if option.text not in entry.options:
            known = " and ".join(entry.options)
            option.wrong(f"{name} has no option {option.text!r}; " + (f"it has {known}" if known else "it has none"))
        if option in stage.options[:k] or option.text in [other.text for other in stage.options[:k]]:
            option.wrong(f"{option.text} is there twice")
    return entry


def decode(packet: Packet) -> Tensor:
    """Unpacks a packet with the codec it names.

    Where the codec is known, make it and let it decode: it then refuses all others. A codec that the sender chooses may
    make much of few bytes (``topk:1e-9``); here a packet may ask for 16,384 times its own length of memory, no more.

    Raises:
        PacketError: it names none, is not one of that codec's, or asks for too much.
    """
    check_expansion(packet, _MOST_EXPANSION)
    try:
        return codec(packet.spec).decode(packet)
    except SpecError as error:
        raise PacketError(f"a packet of no codec there is: {error}") from error
