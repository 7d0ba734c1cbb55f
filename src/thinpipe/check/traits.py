"""What it is about a model that decides with what it can be compared."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from thinpipe.check.cases import REPLAY, Settings
from thinpipe.check.draws import drawing, hush
from thinpipe.check.references import mixing_layers, whole
from thinpipe.check.subject import Subject


@dataclass(frozen=True)
class Traits:
    """The layers of a model that want special treatment, by name.

    Args:
        draws: those that draw random numbers.
        stubborn: those that still do in evaluation mode.
        mixing: those that normalise the rows they see together.
    """

    draws: frozenset[str]
    stubborn: frozenset[str]
    mixing: tuple[str, ...]

    @classmethod
    def of(cls, subject: Subject) -> Traits:
        """Finds them, by running the model on one device."""
        draws = _drawing(subject, frozenset())
        stubborn = _drawing(subject, draws) if draws else draws
        model = subject.copied()
        hush(model, draws)
        return cls(draws, stubborn, tuple(mixing_layers(model)))

    @property
    def comparable(self) -> bool:
        """Whether the model can be compared with one device: no two splits draw the same random numbers."""
        return not self.stubborn

    def quiet(self, subject: Subject) -> nn.Module:
        """Copies the model with every layer that draws in evaluation mode."""
        model = subject.copied()
        hush(model, self.draws)
        return model

    def notes(self, settings: Settings, most_micro_batches: int) -> list[str]:
        """Says, in a line each, what the comparison does about them.

        Args:
            settings: what is tried.
            most_micro_batches: into how many the batch is cut at most.
        """
        notes: list[str] = []
        if self.stubborn:
            notes.append(
                f"random numbers drawn even in evaluation mode, by {_listed(self.stubborn)}, and no two splits draw "
                "the same: not compared with one device, only recomputations with what they repeat"
            )
        elif self.draws:
            notes.append(
                "no two splits draw the same random numbers, so some layers are in evaluation mode while compared with "
                f"one device: {_listed(self.draws)}; they are on again where a case is compared with '{REPLAY}': a "
                "recomputation must draw what its forward drew"
            )
        if self.draws and set(settings.modes) == {"never"}:
            notes.append("nothing is recomputed with --checkpoint never: no replay to check")
        if self.comparable and self.mixing and most_micro_batches > 1:
            notes.append(
                f"normalised over the rows seen together, in a pipe those of a micro-batch: {_listed(self.mixing)}; so "
                "one device runs the same micro-batches one after the other, with the loss of all outputs together"
            )
            if settings.deferred:
                notes.append(
                    "deferred BatchNorm: the statistics of the first one must be those of a forward of the whole "
                    "batch, those of the others what the plain layer makes of all its micro-batches at once"
                )
        return notes


def _drawing(subject: Subject, hushed: frozenset[str]) -> frozenset[str]:
    model = subject.copied().to(subject.one_device)
    hush(model, hushed)

    def forward() -> None:
        inputs, _ = subject.fresh_inputs()
        with torch.no_grad(), subject.surroundings():
            whole(subject, model, inputs)

    return frozenset(drawing(model, subject.one_device, forward))


def _listed(names: Collection[str]) -> str:
    """Names some layers: all of them if they are few."""
    quoted = [f"'{name}'" if name else "the model itself" for name in sorted(names)]
    return ", ".join(quoted if len(quoted) <= 4 else [*quoted[:3], f"{len(quoted) - 3} more"])
