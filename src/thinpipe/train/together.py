"""What the ranks of a run have in common: rank 0 alone writes and shows, the others do the same steps in silence."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from thinpipe.train.log import EvaluationLine, Line, Log, Origin, RunFolder, StepLine
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.settings import Settings

_log = logging.getLogger("thinpipe")


class ToldElsewhere(RecipeError):
    """Rank 0 has said what is wrong; nobody else needs to."""


def share(found: tuple[RunFolder, Origin] | None) -> tuple[RunFolder, Origin]:
    """Has all ranks train what rank 0 has chosen, in the same folder.

    Args:
        found: on rank 0, what it has chosen; None where it could not, and on all other ranks.

    Raises:
        ToldElsewhere: rank 0 could not choose.
    """
    said: list[str | None] = [None]
    if found is not None:
        folder, origin = found
        text = {"path": str(folder.path), **asdict(origin), "recipe": origin.recipe.to_json()}
        said = [json.dumps(text)]
    dist.broadcast_object_list(said, src=0)
    if said[0] is None:
        raise ToldElsewhere("rank 0 could not begin")
    value = json.loads(said[0])
    origin = Origin(
        recipe=Recipe.from_json(value["recipe"]),
        settings=Settings.from_json(value["settings"]),
        command=value["command"],
        started=value["started"],
        versions=value["versions"],
        machine=value["machine"],
    )
    return RunFolder(Path(value["path"])), origin


def share_evaluated(log: Log | None) -> bool:
    """Tells all ranks whether the last line of rank 0's log is of an evaluation: then none of them makes another."""
    evaluated = torch.tensor([int(log is not None and log.evaluated)])
    dist.broadcast(evaluated, src=0)
    return bool(evaluated)


class SilentLog(Log):
    """The log of a rank that writes none.

    Args:
        evaluated: whether rank 0's ends with an evaluation.
    """

    def __init__(self, *, evaluated: bool) -> None:
        self._evaluated = evaluated

    @property
    def evaluated(self) -> bool:
        """Whether an evaluation was the last thing."""
        return self._evaluated

    def rewind(self, committed: int) -> None:
        """Has nothing to drop."""

    def add(self, line: Line) -> None:
        """Remembers what kind of line it was."""
        self._evaluated = isinstance(line, EvaluationLine)


def said_by(rank: int) -> Callable[[str], None]:
    """Has rank 0 alone say what all ranks know."""
    return _log.debug if rank else _log.warning


class Nobody:
    """Looks on, and says nothing."""

    def evaluating(self, epoch: int) -> None:
        """Says nothing."""

    def stepped(self, line: StepLine) -> None:
        """Says nothing."""

    def evaluated(self, line: EvaluationLine) -> None:
        """Says nothing."""
