"""Reads the texts that name bottlenecks: ``conv:20k3s3``, ``conv:32k4s4+16``, ``linear:50``, ``linear:s64``, ``none``.

::

    cuts    =  text { "/" text }                              one for each cut
    text    =  "none" | "conv:" conv { "+" channels } | "linear:" linear { "+" linear } [ "," decay ]
    conv    =  channels [ "k" kernel [ "s" stride ] ]         a stride that is left out is the kernel
    linear  =  rank | "s" rank                                over the features, or over the sequence
    decay   =  "decay=" rate { "*" rate } "@" step ".." stop [ ",l1=" penalty ]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from thinpipe.bottleneck.decay import DEFAULT_PENALTY, RankDecay
from thinpipe.codecs.spec import Word
from thinpipe.errors import ArgumentError
from thinpipe.suggest import nearest

FORMS = {
    "none": "none",
    "conv": "conv:CHANNELS, conv:CHANNELSkKERNELsSTRIDE",
    "linear": "linear:RANK, linear:sRANK",
}
"""How each kind is written."""

_MOST = 1 << 20
_MOST_KERNEL = 64
_MOST_STEPS = 10**9


@dataclass(frozen=True)
class ConvSet:
    """A convolution at the sender, and the transposed one at the receiver.

    Args:
        channels: what the convolution leaves of them.
        kernel: its edge (default: 1).
        stride: its step (default: 1).
    """

    channels: int
    kernel: int = 1
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.channels}" if self.kernel == self.stride == 1 else f"{self.channels}k{self.kernel}s{self.stride}"


@dataclass(frozen=True)
class LinearSet:
    """A matrix at the sender, and another at the receiver.

    Args:
        rank: what the first one leaves.
        over: of what: the ``features`` of every token, or the tokens of a ``sequence`` (default: features).
    """

    rank: int
    over: Literal["features", "sequence"] = "features"

    def __str__(self) -> str:
        return f"s{self.rank}" if self.over == "sequence" else f"{self.rank}"


@dataclass(frozen=True)
class ConvSpec:
    """A bottleneck for images.

    Args:
        sets: from the model to the wire; all but the first are of one pixel.
    """

    sets: tuple[ConvSet, ...]

    def __str__(self) -> str:
        return "conv:" + "+".join(map(str, self.sets))


@dataclass(frozen=True)
class LinearSpec:
    """A bottleneck for texts and vectors.

    Args:
        sets: from the model to the wire.
        decay: how the ranks shrink in training (default: not at all).
    """

    sets: tuple[LinearSet, ...]
    decay: RankDecay | None = None

    def __str__(self) -> str:
        return "linear:" + "+".join(map(str, self.sets)) + ("" if self.decay is None else f",{self.decay}")


Spec: TypeAlias = ConvSpec | LinearSpec


def parse(text: str) -> Spec | None:
    """Reads the text of one bottleneck; ``None`` is that of ``none``. ``str`` writes it again, defaults left out.

    Raises:
        SpecError: it names none; the message points at the offending character.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a bottleneck is named by a text such as 'conv:20k3s3', got {text!r:.100}")
    return _parsed(Word(text, 0, text))


def parse_cuts(text: str) -> list[Spec | None]:
    """Reads the texts of all cuts, as ``conv:20k3s3/conv:360``; ``none/linear:50`` leaves the first one alone.

    Raises:
        SpecError: one of them names none.
    """
    return [_parsed(word) for word in Word(text, 0, text).split("/")]


def _parsed(word: Word) -> Spec | None:
    name, colon, _ = word.text.partition(":")
    first = Word(name, word.at, word.whole)
    if name not in FORMS:
        near = nearest(name, FORMS)
        known = f"there are {', '.join(FORMS.values())}" if near is None else f"did you mean {FORMS[near]}?"
        first.wrong(f"no bottleneck is called {name!r:.40}; {known}")
    argument, *options = Word(word.text[len(name) + 1 :], word.at + len(name) + 1, word.whole).split(",")
    if name == "none":
        if colon:
            argument.wrong("none takes no argument")
        return None
    if not argument.text:
        argument.wrong(f"{name} needs an argument: {FORMS[name]}")
    sets = argument.split("+")
    if name == "linear":
        linear = tuple(map(_linear_set, sets))
        return LinearSpec(linear, _decay(options, linear))
    if options:
        options[0].wrong("conv has no options; a rank that decays is that of a linear bottleneck")
    return ConvSpec((_conv_set(sets[0]), *map(_pixel_set, sets[1:])))


def _conv_set(word: Word) -> ConvSet:
    match = re.fullmatch(r"(\d*)(?:k(\d*))?(?:s(\d*))?", word.text, re.ASCII)
    if match is None:
        word.wrong(f"a convolution is written as 20k3s3: channels, kernel, stride; got {word.text!r:.40}")

    def number(group: int, high: int, what: str) -> int:
        return Word(match.group(group), word.at + match.start(group), word.whole).integer(1, high, what)

    channels = number(1, _MOST, "the number of channels")
    if match.group(2) is None:
        if match.group(3) is not None:
            word.wrong(f"a stride needs a kernel: {channels}k{match.group(3)}s{match.group(3)}")
        return ConvSet(channels)
    kernel = number(2, _MOST_KERNEL, "the edge of the kernel")
    return ConvSet(channels, kernel, kernel if match.group(3) is None else number(3, _MOST_KERNEL, "the stride"))


def _pixel_set(word: Word) -> ConvSet:
    found = _conv_set(word)
    if (found.kernel, found.stride) != (1, 1):
        word.wrong(f"only the first set has a kernel; write {found.channels} alone")
    return found


def _linear_set(word: Word) -> LinearSet:
    if word.text.startswith("s"):
        rank = Word(word.text[1:], word.at + 1, word.whole).integer(1, _MOST, "the rank over the sequence")
        return LinearSet(rank, "sequence")
    return LinearSet(word.integer(1, _MOST, "the rank"))


def _decay(options: list[Word], sets: Sequence[LinearSet]) -> RankDecay | None:
    said: dict[str, Word] = {}
    for option in options:
        name, equals, value = option.text.partition("=")
        if name not in ("decay", "l1") or not equals:
            option.wrong(f"linear has no option {option.text!r:.40}; it has decay=0.9@300..2700 and l1=1e-4")
        if name in said:
            option.wrong(f"{name} is there twice")
        said[name] = Word(value, option.at + len(name) + 1, option.whole)
    if "decay" not in said:
        if said:
            said["l1"].wrong("l1 is a penalty on what decays; there is no decay=0.9@300..2700")
        return None
    rates, at, steps = said["decay"].text.partition("@")
    step, dots, stop = steps.partition("..")
    if not at or not dots:
        said["decay"].wrong("a decay is written as 0.9@300..2700: rate, steps between two decays, step of the last one")
    words = Word(rates, said["decay"].at, said["decay"].whole).split("*")
    if len(words) not in (1, len(sets)):
        words[-1].wrong(f"one rate for all sets or one for each of the {len(sets)}, got {len(words)}")
    if len({each.over for each in sets}) < len(sets):
        said["decay"].wrong("ranks decay of one set over features, one over the sequence, or one of each")
    each = Word(step, said["decay"].at + len(rates) + 1, said["decay"].whole)
    last = Word(stop, each.at + len(step) + 2, each.whole)
    every = each.integer(1, _MOST_STEPS, "the number of steps between two decays")
    return RankDecay(
        rates=tuple(map(_rate, words)),
        step=every,
        stop=last.integer(every, _MOST_STEPS, "the step of the last decay"),
        penalty=said["l1"].share("the weight of the penalty") if "l1" in said else DEFAULT_PENALTY,
    )


def _rate(word: Word) -> float:
    rate = word.share("a rate of decay")
    if rate == 1:
        word.wrong("a rate of decay is below 1")
    return rate
