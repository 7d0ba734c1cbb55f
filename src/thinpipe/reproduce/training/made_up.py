"""Small sets of made-up texts in GLUE's files, for trying a table of texts where there is no data set.

A sentence of CoLA is acceptable unless its words are spelled backwards; the second sentence of RTE follows from the
first unless it denies everything. A tiny encoder learns either in seconds, which tells nothing of other texts.
"""

from __future__ import annotations

import random
from pathlib import Path

ROWS = {"train.tsv": 128, "dev.tsv": 64}

_NOUNS = ("cat", "dog", "bird", "child", "river", "train", "clock", "king")
_VERBS = ("sleep", "wait", "move", "grow", "return", "stop", "begin", "sing")
_PLACES = ("at home", "in town", "on Monday", "near the sea", "again", "at night")


def write_texts(folder: Path) -> None:
    """Writes RTE and CoLA, always the same, into a folder of data sets."""
    for task, line in (("CoLA", _acceptable), ("RTE", _entailed)):
        dice = random.Random(0)  # noqa: S311 - nobody is to be kept from guessing it
        (folder / "glue" / task).mkdir(parents=True, exist_ok=True)
        for part, rows in ROWS.items():
            lines = [line(row, dice) for row in range(rows)]
            header = ["index\tsentence1\tsentence2\tlabel"] if task == "RTE" else []
            (folder / "glue" / task / part).write_text("\n".join([*header, *lines]) + "\n")


def _sentence(dice: random.Random) -> str:
    return f"the {dice.choice(_NOUNS)} will {dice.choice(_VERBS)} {dice.choice(_PLACES)}"


def _acceptable(row: int, dice: random.Random) -> str:
    right, sentence = row % 2 == 0, _sentence(dice)
    text = sentence if right else " ".join(word[::-1] for word in sentence.split())
    return f"made-up\t{int(right)}\t\t{text}"


def _entailed(row: int, dice: random.Random) -> str:
    follows, sentence = row % 2 == 0, _sentence(dice)
    second, label = (sentence, "entailment") if follows else ("nobody ever did any such thing", "not_entailment")
    return f"{row}\t{sentence}\t{second}\t{label}"
