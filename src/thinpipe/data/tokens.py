"""Texts as numbers: rows of one length, padded, with a mask that tells tokens from padding."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.data.texts import Texts, TextSet
from thinpipe.extras import need


@dataclass(frozen=True, eq=False)
class Tokens:
    """Rows of tokens; all of them are rows x length, int64.

    Args:
        ids: the tokens.
        mask: 1 for a token, 0 for padding.
        types: 1 for the tokens of a second text, 0 for others; ``None`` where the model has no use for it.
        labels: the rows' classes.
    """

    ids: Tensor
    mask: Tensor
    types: Tensor | None
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, rows: Tensor | slice = slice(None)) -> dict[str, Tensor]:
        """Returns what transformers' models take, for some rows. Default: all."""
        named = {"input_ids": self.ids, "attention_mask": self.mask, "token_type_ids": self.types}
        return {name: value[rows] for name, value in named.items() if value is not None}


@dataclass(frozen=True, eq=False)
class TokenSet:
    """A set of texts after a tokenizer; made once for a run, and kept in memory alone.

    Args:
        train: tokens to train on.
        test: tokens to test with.
        classes: the names of the classes.
    """

    train: Tokens
    test: Tokens
    classes: tuple[str, ...]


class Tokenizer(Protocol):
    """Turns texts into tokens.

    ``vocabulary`` is one more than the largest token, and ``pad`` the one of padding. ``about`` says for a log what
    it is.
    """

    @property
    def about(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def pad(self) -> int: ...

    def __call__(self, texts: Texts, length: int) -> Tokens:
        """Makes rows of one length; the longer text of a pair is cut first."""
        ...


def tokenize(texts: TextSet, tokenizer: Tokenizer, length: int = 128) -> TokenSet:
    """Turns a whole set into tokens.

    Args:
        texts: the set.
        tokenizer: whose tokens they are.
        length: tokens in a row; what is longer is cut, what is shorter padded. Default: 128.
    """
    if length < 8:
        raise ValueError(f"rows have at least 8 tokens, for two texts and what surrounds them, got {length}")
    return TokenSet(tokenizer(texts.train, length), tokenizer(texts.test, length), texts.classes)


@dataclass(frozen=True, kw_only=True)
class HashTokenizer:
    """A stand-in that needs no files: each word's number is a hash of it, so that some words share theirs.

    Good for tests and for encoders that are trained from nothing; a pretrained encoder has never seen these numbers
    and has to have its own tokenizer. Rows look like RoBERTa's::

        <s> a text </s>                    0 ... 2
        <s> a text </s> </s> another </s>  0 ... 2 2 ... 2

    Args:
        vocabulary: how many numbers there are; more of them means fewer words that share one. Default: 8192.
        pad: the token of padding: 1 in RoBERTa's encoders, and 0 in BERT's, where it takes the place of ``<s>``.
            Default: 1.
        types: whether rows tell which tokens are of a second text: BERT's encoders ask for it, and RoBERTa's have no
            room for it. Default: ``False``.
    """

    vocabulary: int = 8192
    pad: int = 1
    types: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < 8 or self.pad not in (0, 1):
            raise ValueError(f"a vocabulary has at least 8 tokens and pads with 0 or 1, got {self!r}")

    @property
    def about(self) -> str:
        """What it is, for a log."""
        return f"a stand-in that hashes words to {self.vocabulary} numbers"

    def __call__(self, texts: Texts, length: int) -> Tokens:
        """Makes rows of one length."""
        ids = torch.full((len(texts), length), self.pad)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        begin, end = 1 - self.pad, 2
        for row, text in enumerate(texts.first):
            first: Sequence[int] = self._words(text)
            if texts.second is None:
                tokens = [begin, *first[: length - 2], end]
                second_at = len(tokens)
            else:
                first, second = _cut(first, self._words(texts.second[row]), length - 4)
                tokens = [begin, *first, end, end, *second, end]
                second_at = len(first) + 2
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
            types[row, second_at : len(tokens)] = 1
        return Tokens(ids, mask, types if self.types else None, texts.labels)

    def _words(self, text: str) -> list[int]:
        # Python's own hash differs from one process to the next.
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        return [3 + zlib.crc32(word.encode("utf-8", "replace")) % (self.vocabulary - 3) for word in words]


class LocalTokenizer:
    """A tokenizer of transformers, from a folder; nothing is fetched, and none of the folder's code is run.

    Args:
        folder: with ``tokenizer.json``, as ``save_pretrained`` writes it, or an encoder's vocabulary. One that has
            ``vocab.json`` and ``merges.txt`` alone is taken for RoBERTa's.

    Raises:
        DataError: there is no such folder, or no tokenizer in it.
        DamagedDataError: its files are not a tokenizer's.
        ImportError: transformers is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder; a tokenizer's has tokenizer.json, or vocab.json and merges.txt")
        self._tokenizer = _from_folder(folder)
        self._folder = folder
        if self._tokenizer.pad_token_id is None:
            raise DamagedDataError(f"the tokenizer in {folder} has no token for padding; name one in its configuration")

    @property
    def about(self) -> str:
        """What it is, for a log."""
        return f"{type(self._tokenizer).__name__} of {self._folder.name}, {self.vocabulary} numbers"

    @property
    def vocabulary(self) -> int:
        """One more than the largest token; not how many there are, since numbers may be left out."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    @property
    def pad(self) -> int:
        """The token of padding."""
        return int(self._tokenizer.pad_token_id)

    def __call__(self, texts: Texts, length: int) -> Tokens:
        """Makes rows of one length."""
        pairs = [list(texts.first), *([] if texts.second is None else [list(texts.second)])]
        made = self._tokenizer(*pairs, truncation=True, max_length=length, padding="max_length", return_tensors="pt")
        return Tokens(made["input_ids"], made["attention_mask"], made.get("token_type_ids"), texts.labels)


def _from_folder(folder: Path) -> Any:
    need("tokenizers", "transformers")
    import transformers

    names = {each.name for each in folder.iterdir()}
    # Files that transformers itself began with, and cannot tell apart without a configuration beside them.
    alone = {"vocab.json", "merges.txt"} <= names and not names & {
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
    }
    if not alone and not names & {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"}:
        raise DataError(f"{folder} has no tokenizer: put tokenizer.json, or vocab.json and merges.txt, into it")
    kind = transformers.RobertaTokenizer if alone else transformers.AutoTokenizer
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Its readers raise whatever a damaged file happens to cause, the ones in Rust a bare Exception.
        raise DamagedDataError(f"transformers finds no tokenizer in {folder}: {error}") from error


def _cut(first: Sequence[int], second: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Shortens the longer one, then both in turn, until both have room."""
    if len(first) + len(second) <= room:
        return first, second
    half = room // 2
    if len(second) <= half:
        return first[: room - len(second)], second
    if len(first) <= room - half:
        return first, second[: room - len(first)]
    return first[: room - half], second[:half]
