"""Reads the texts that name codecs: ``sort:6+2``, ``topk:0.1|uniform:8``, ``ef(block:4,sr)``.

::

    text   =  chain | "ef(" chain ")"
    chain  =  stage { "|" stage }
    stage  =  name [ ":" argument ] { "," option }
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from thinpipe.errors import ArgumentError, SpecError

_STAGE = re.compile(r"(?P<name>[^:,|()]*)(:(?P<argument>[^,|()]*))?(?P<options>(,[^,|()]*)*)")


@dataclass(frozen=True)
class Word:
    """A piece of the text, which knows where it stands.

    Args:
        text: the piece.
        at: where it begins in the whole.
        whole: the text it is a piece of.
    """

    text: str
    at: int
    whole: str

    def wrong(self, why: str) -> NoReturn:
        """Points at the piece and says what is wrong with it.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{why}\n    {self.whole}\n    {' ' * self.at}^")

    def integer(self, low: int, high: int, what: str) -> int:
        """Reads a whole number in a range."""
        if not re.fullmatch(r"\d{1,9}", self.text, re.ASCII) or not low <= int(self.text) <= high:
            self.wrong(f"{what} is a whole number from {low} to {high}, got {self.text!r}")
        return int(self.text)

    def share(self, what: str) -> float:
        """Reads a number above 0 and up to 1."""
        if not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", self.text, re.ASCII) or not 0 < float(self.text) <= 1:
            self.wrong(f"{what} is a number above 0 and up to 1, got {self.text!r}")
        return float(self.text)

    def number(self, low: float, high: float, what: str) -> float:
        """Reads a number in a range, fractions among them."""
        if not re.fullmatch(r"\d{0,9}\.?\d{1,9}", self.text, re.ASCII) or not low <= float(self.text) <= high:
            self.wrong(f"{what} is a number from {low:g} to {high:g}, got {self.text!r}")
        return float(self.text)

    def split(self, separator: str) -> list[Word]:
        """Cuts the piece at a separator."""
        words, at = [], self.at
        for text in self.text.split(separator):
            words.append(Word(text, at, self.whole))
            at += len(text) + len(separator)
        return words


@dataclass(frozen=True)
class Stage:
    """One stage of a chain.

    Args:
        name: of the codec.
        argument: what follows the colon, if there is one.
        options: what follows the commas.
    """

    name: Word
    argument: Word | None
    options: tuple[Word, ...]


@dataclass(frozen=True)
class Chain:
    """A text taken apart.

    Args:
        stages: from left to right.
        feedback: whether ``ef`` surrounds them.
    """

    stages: tuple[Stage, ...]
    feedback: bool


def parse(text: str) -> Chain:
    """Takes a text apart.

    Raises:
        SpecError: it does not have the form of a codec's.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a codec is named by a text such as 'block:4', got {text!r:.100}")
    feedback = text.startswith("ef(")
    at, end = (3, len(text) - 1) if feedback else (0, len(text))
    if feedback and not text.endswith(")"):
        Word("", len(text), text).wrong("ef( is not closed; write ef(block:4)")
    return Chain(tuple(map(_stage, Word(text[at:end], at, text).split("|"))), feedback)


def _stage(word: Word) -> Stage:
    match = _STAGE.match(word.text)
    assert match is not None  # every part of it may be empty
    if match.end() < len(word.text):
        Word(word.text[match.end() :], word.at + match.end(), word.whole).wrong(
            f"{word.text[match.end()]!r} is out of place; a codec is name:argument,option and | joins two"
        )

    def piece(group: str) -> Word:
        return Word(match.group(group), word.at + match.start(group), word.whole)

    argument = None if match.group("argument") is None else piece("argument")
    return Stage(piece("name"), argument, tuple(piece("options").split(",")[1:]))
