"""Runs the cases, each in a pipe of its own, and compares them with one device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

from thinpipe import Pipe, Split, cutting
from thinpipe.check.cases import REPLAY, Case, Cut, Result, Settings
from thinpipe.check.compare import Difference, differences
from thinpipe.check.references import DeferredBatches, MicroBatches, Reference, WholeBatch
from thinpipe.check.step import Outcome, pipe_step
from thinpipe.check.subject import Subject
from thinpipe.check.target import UsageError, described
from thinpipe.check.traits import Traits
from thinpipe.stages.microbatch import Batch


def parts_of(
    subject: Subject, model: nn.Module, cut: Cut, chunks: int
) -> tuple[nn.Sequential | Split, list[int] | None]:
    """Finds what a pipe takes for a model that is cut so: a sequence and its balance, or a split."""
    numbers = [place for place in cut if isinstance(place, int)]
    if isinstance(model, nn.Sequential) and numbers:
        return model, numbers
    batch = Batch.of(subject.inputs, chunks)
    micro = tree_unflatten(batch.micro_batches()[0], batch.spec)
    return cutting.split(model, at=[str(place) for place in cut], example=micro), None


class Check:
    """Runs a model in many pipes and compares each with one device.

    Args:
        subject: the model, its batch and its loss.
        settings: what is to be tried.

    Raises:
        UsageError: the model cannot be cut as asked, or does not even run on one device.
    """

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self._subject = subject
        self._settings = settings
        self._outcomes: dict[Reference | Case, Outcome] = {}
        self._verify_splits()
        try:
            self._traits = Traits.of(subject)
        except Exception as error:
            raise self._unusable(error) from error

    def _verify_splits(self) -> None:
        for split in self._settings.splits:
            try:
                self._pipe_of(self._subject.copied(), Case(split, 1, "never", ""))
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(f"the model cannot be cut as {','.join(map(str, split))}: {error}") from error

    def _unusable(self, error: Exception) -> UsageError:
        if isinstance(error, UsageError):
            return error
        wide = any(parameter.dtype is torch.float64 for parameter in self._subject.model.parameters())
        hint = "; it was cast to float64 for the comparison: try --dtype float32" if wide else ""
        return UsageError(f"the model does not run on one device, before any pipe: {described(error)}{hint}")

    def notes(self) -> list[str]:
        """Says, in a line each, what the comparison does about the model's peculiarities."""
        return self._traits.notes(self._settings, self._micro_batches(max(self._settings.chunks)))

    def _micro_batches(self, chunks: int) -> int:
        return len(Batch.of(self._subject.inputs, chunks).rows)

    def cases(self) -> list[Case]:
        """Lists the cases: every mode against one device, and with dropout on every mode against ``never``."""
        cases: list[Case] = []
        for split in self._settings.splits:
            for chunks in self._settings.chunks:
                if self._traits.comparable:
                    against = self._reference(chunks).words
                    cases += [Case(split, chunks, mode, against) for mode in self._settings.modes]
                if self._traits.draws:
                    cases += [Case(split, chunks, mode, REPLAY) for mode in self._settings.modes if mode != "never"]
        return cases

    def _reference(self, chunks: int) -> Reference:
        if not self._traits.mixing or self._micro_batches(chunks) == 1:
            return WholeBatch()
        return DeferredBatches(chunks) if self._settings.deferred else MicroBatches(chunks)

    def repeats(self) -> Result:
        """Runs one device twice: a model that does not repeat itself there cannot be compared with anything.

        Raises:
            UsageError: the model does not run on one device.
        """
        try:
            once = self._one_device(WholeBatch())
            again = WholeBatch().step(self._subject, self._traits.quiet(self._subject))
        except Exception as error:
            raise self._unusable(error) from error
        loss = once.quantities["loss"]["loss"]
        if loss is None or not loss.isfinite():
            raise UsageError(f"the loss on one device is {loss}; return inputs and a loss_fn that give a finite one")
        hint = "one device does not repeat itself from the same seed; does the model draw from numpy, or read a clock?"
        return self._judged(Case((), 1, "", "itself, once more"), differences(again, once), lambda: hint)

    def run(self, case: Case) -> Result:
        """Runs one case; an error in it is its result."""
        compare = self._replayed if case.against == REPLAY else self._compared
        try:
            return compare(case)
        except Exception as error:
            return Result(case, equal=False, error=described(error))

    def _compared(self, case: Case) -> Result:
        # One device first: where it fails itself, the pipe is not to blame.
        expected = self._one_device(self._reference(case.chunks))
        got = self._in_pipe(case, self._traits.quiet(self._subject))
        return self._judged(case, differences(got, expected), lambda: self._hint(case, got))

    def _replayed(self, case: Case) -> Result:
        got = self._in_pipe(case, self._subject.copied())
        never = Case(case.split, case.chunks, "never", REPLAY)
        if never not in self._outcomes:
            self._outcomes[never] = self._in_pipe(never, self._subject.copied())
        return self._judged(case, differences(got, self._outcomes[never]), lambda: "")

    def _judged(self, case: Case, found: list[Difference], hint: Callable[[], str]) -> Result:
        equal = self._all_small(found)
        return Result(case, equal=equal, differences=found, hint="" if equal else hint())

    def _all_small(self, found: list[Difference]) -> bool:
        return all(difference.value <= self._settings.tolerance for difference in found)

    def _hint(self, case: Case, got: Outcome) -> str:
        """Tells whether it is the cutting of the batch that makes the difference, and not the pipe."""
        if self._reference(case.chunks) != WholeBatch() or self._micro_batches(case.chunks) == 1:
            return ""
        if not self._all_small(differences(got, self._one_device(MicroBatches(case.chunks)))):
            return ""
        return (
            "one device gives the same if it runs the same micro-batches one after the other: what the model computes "
            "depends on how its batch is cut (a layer mixes the rows of its batch, or counts its calls)"
        )

    def _in_pipe(self, case: Case, model: nn.Module) -> Outcome:
        return pipe_step(self._subject, self._pipe_of(model, case))

    def _pipe_of(self, model: nn.Module, case: Case) -> Pipe:
        parts, balance = parts_of(self._subject, model, case.split, case.chunks)
        return Pipe(
            parts,
            balance,
            devices=self._subject.devices,
            chunks=case.chunks,
            checkpoint=case.checkpoint,
            deferred_batch_norm=self._settings.deferred,
        )

    def _one_device(self, reference: Reference) -> Outcome:
        if reference not in self._outcomes:
            try:
                self._outcomes[reference] = reference.step(self._subject, self._traits.quiet(self._subject))
            except Exception as error:
                error.add_note(f"raised on one device, {reference.words}")
                raise
        return self._outcomes[reference]
