"""What the ranks of a run have in common: rank 0 alone writes and shows, the others do the same steps in silence."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinpipe.errors import DisagreementError, ThinpipeError
from thinpipe.train.data import Data
from thinpipe.train.log import EvaluationLine, Line, Log, Origin, RunFolder, StepLine
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.settings import Settings

_log = logging.getLogger("thinpipe")


class ToldElsewhere(RecipeError):
    """Another rank has said what is wrong; nobody else needs to."""


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


def loaded_alike(load: Callable[[], Data]) -> Data:
    """Has all ranks load their samples, and checks that they are the same: a file may be damaged on one machine alone.

    Raises:
        ToldElsewhere: another rank could not, and says why.
        DisagreementError: two ranks have other samples.
        Exception: what this rank's own loading raised.
    """
    rank = dist.get_rank()
    told: list[dict[str, Any]] = [{}] * dist.get_world_size()
    try:
        data = load()
        own = {"error": False, "said": _described(data)}
    except (ThinpipeError, ImportError, OSError):
        dist.all_gather_object(told, {"error": True})
        if _failed(told)[0] == rank:
            raise
        raise ToldElsewhere(f"rank {_failed(told)[0]} could not load the samples") from None
    dist.all_gather_object(told, own)
    if failed := _failed(told):
        raise ToldElsewhere(f"rank {failed[0]} could not load the samples")
    descriptions = [each["said"] for each in told]
    other = next((number for number, each in enumerate(descriptions) if each != descriptions[0]), None)
    if other is not None:
        raise DisagreementError(
            f"rank 0 and rank {other} have other samples: {descriptions[0]} on rank 0, and {descriptions[other]} on "
            f"rank {other}; give all ranks the same files"
        )
    return data


def _failed(told: Sequence[Any]) -> list[int]:
    return [rank for rank, each in enumerate(told) if each["error"]]


def _described(data: Data) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in (data.train, data.test):
        digest.update(part.targets.cpu().numpy().tobytes())
    said = f"{len(data.train):,} to train on and {len(data.test):,} to test with, labels {digest.hexdigest()}"
    return "; ".join((said, *data.notes))


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

    def note(self, step: int, text: str) -> None:
        """Has nothing to write."""


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
