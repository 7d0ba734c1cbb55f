"""The training loop, the same for a client with its server and for one process alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from thinpipe.errors import NotFiniteError, RolledBackError
from thinpipe.runtime.transfer import mark_ready
from thinpipe.train.ahead import Ahead
from thinpipe.train.data import Data
from thinpipe.train.log import EvaluationLine, Log, StepLine
from thinpipe.train.metrics import accuracy, matthews
from thinpipe.train.precision import precision_of
from thinpipe.train.rates import lr_at
from thinpipe.train.recipe import Recipe
from thinpipe.train.recipes import subject_of
from thinpipe.train.trainer import Trainer
from thinpipe.train.updates import verify_loss


class Watcher(Protocol):
    """Somebody who looks on."""

    def stepped(self, line: StepLine) -> None:
        """Is told of a step."""
        ...

    def evaluating(self, epoch: int) -> None:
        """Is told that an evaluation begins, after so many epochs."""
        ...

    def evaluated(self, line: EvaluationLine) -> None:
        """Is told of an evaluation."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """A step that was taken, and whose loss nobody has looked at.

    Args:
        step: its number.
        rows: of its batch.
        lr: the learning rate.
        cost: as the log has it.
        values: waits for the loss, and for the norm of the gradients if there is one.
    """

    step: int
    rows: int
    lr: float
    cost: dict[str, Any]
    values: Callable[[], list[float]]


class _Reader:
    """Reads the losses of steps: at once, or when the next step is on its way.

    A GPU is told what to do long before it does it, and whoever looks at a loss waits until it has caught up. To read
    the loss of a step when the next one is queued behind it leaves the GPU something to do meanwhile::

        host   tell step 7 | tell step 8 | read 7 | tell step 9 | read 8 |
        GPU                | step 7          | step 8         | step 9

    Args:
        write: is told each step, its loss and norm, and the seconds since the one before.
    """

    def __init__(self, write: Callable[[_Taken, list[float], float], None]) -> None:
        self._write = write
        self._waiting: _Taken | None = None
        self._since = time.perf_counter()

    def follow(self, step: int) -> None:
        """Is told which step comes next: what went back some steps has the log complete before it is cut short."""
        if self._waiting is not None and self._waiting.step + 1 != step:
            self.read()

    def begin(self) -> None:
        """Has the seconds of a step count from now, unless one is under way."""
        if self._waiting is None:
            self._since = time.perf_counter()

    def taken(self, step: _Taken, *, late: bool) -> None:
        """Reads the step before, and this one too unless it is to be read late."""
        self.read()
        self._waiting = step
        if not late:
            self.read()

    def read(self) -> None:
        """Reads what is not read yet."""
        step, self._waiting = self._waiting, None
        if step is None:
            return
        values, now = step.values(), time.perf_counter()
        seconds, self._since = now - self._since, now
        self._write(step, values, seconds)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Trains to the end of the recipe's epochs, and tests after each.

    Args:
        recipe: what to train.
        data: its samples.
        loss_fn: of outputs and targets, the mean over rows.
        log: gets a line for everything.
        watcher: is told of everything.
        stopped: asked between two steps whether to stop.
    """

    recipe: Recipe
    data: Data
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    log: Log
    watcher: Watcher
    stopped: Callable[[], bool]

    @property
    def total(self) -> int:
        """The number of all steps."""
        return self.recipe.epochs * self.data.steps_per_epoch

    def run(self, trainer: Trainer) -> bool:
        """Trains from where the trainer is.

        Returns:
            Whether it came to the end; else somebody wanted to stop, and a state is saved.

        Raises:
            NotFiniteError: the loss of a step, or what would be saved, is not finite, and the recipe does not go on.
        """
        for note in self.data.notes:
            self.log.note(trainer.committed, note)
        ahead, reader = Ahead(self.data), _Reader(self._write)
        while not self.stopped():
            # The trainer's number, not a count of our own: a server that was restarted may have taken it back some
            # steps, and they are taken again, with the same samples.
            step = trainer.committed
            reader.follow(step)
            self.log.rewind(step)
            try:
                if step % self.data.steps_per_epoch == 0 and (step or not self.total) and not self.log.evaluated:
                    self._evaluate(trainer, step)
                if step >= self.total:
                    self._save(trainer)
                    return True
                with self._explained(step):
                    self._step(trainer, step, ahead, reader)
            except RolledBackError:
                continue
        reader.read()
        self._save(trainer)
        return False

    def _save(self, trainer: Trainer) -> None:
        with self._explained(trainer.committed - 1):
            trainer.save()

    @contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        """Says in an error, and in the log, which step it was."""
        try:
            yield
        except NotFiniteError as error:
            lr = lr_at(self.recipe, step, self.total, self.data.steps_per_epoch)
            where = f"step {step}, in epoch {self.data.epoch(step) + 1} of {self.recipe.epochs}, learning rate {lr:g}"
            self.log.note(step + 1, f"stopped at {where}: {error}")
            raise NotFiniteError(f"{where}: {error}") from error

    def _step(self, trainer: Trainer, step: int, ahead: Ahead, reader: _Reader) -> None:
        reader.begin()
        inputs, targets = ahead.batch(step)
        lr = lr_at(self.recipe, step, self.total, self.data.steps_per_epoch)
        # Entered here, so that it is the same however the model is trained; a server does it for its own part.
        with precision_of(self.recipe):
            loss = trainer.step(inputs, targets, lr=lr, clip=self.recipe.clip or None)
        norm: Tensor | None = getattr(trainer, "grad_norm", None)  # a client has but a part of the gradients
        values = _brought([loss] if norm is None else [loss, norm])
        if step + 1 < self.total:
            # Before the loss is waited for, for which the GPU has to finish the step.
            ahead.prepare(step + 1)
        cost = {} if trainer.cost is None else trainer.cost.to_json()
        taken = _Taken(step=step, rows=len(targets), lr=lr, cost=cost, values=values)
        reader.taken(taken, late=_is_queued(loss) and self._may_be_read_late(step))

    def _may_be_read_late(self, step: int) -> bool:
        """Tells whether the next step may be taken before anybody has seen the loss of this one."""
        return self.recipe.on_nan == "continue" and (step + 1) % self.data.steps_per_epoch != 0

    def _write(self, taken: _Taken, values: list[float], seconds: float) -> None:
        line = StepLine(
            step=taken.step,
            epoch=self.data.epoch(taken.step),
            rows=taken.rows,
            loss=values[0],
            seconds=seconds,
            lr=taken.lr,
            grad_norm=values[1] if values[1:] else None,
            cost=taken.cost,
        )
        self.log.add(line)
        self.watcher.stepped(line)
        if self.recipe.on_nan == "stop":
            verify_loss(line.loss)

    def _evaluate(self, trainer: Trainer, step: int) -> None:
        began, epoch = time.perf_counter(), step // self.data.steps_per_epoch
        self.watcher.evaluating(epoch)
        outputs, targets = self._answers(trainer)
        answers = outputs.argmax(1)
        line = EvaluationLine(
            step=step,
            epoch=epoch,
            rows=len(targets),
            loss=float(self.loss_fn(outputs, targets)),
            accuracy=accuracy(answers, targets),
            mcc=matthews(answers, targets) if subject_of(self.recipe.name).matthews else None,
            seconds=time.perf_counter() - began,
        )
        self.log.add(line)
        self.watcher.evaluated(line)

    def _answers(self, trainer: Trainer) -> tuple[Tensor, Tensor]:
        """Collects the outputs for the whole test set: not every metric is a mean over its batches."""
        found: list[tuple[Tensor, Tensor]] = []
        for inputs, targets in self.data.evaluation():
            with precision_of(self.recipe):
                # Left where it is until all are there: to look at each would have the device wait for the next batch.
                found.append((trainer.evaluate(inputs), targets))
        outputs, targets = (torch.cat(list(each)) for each in zip(*found, strict=True))
        return outputs.float().cpu(), targets.cpu()


def _brought(values: Sequence[Tensor]) -> Callable[[], list[float]]:
    """Has numbers brought to the host as soon as they are computed; returns what waits for them, and for nothing else.

    To ask a GPU for a number later would be to wait for all that it was told to do meanwhile.
    """
    copies = [each.to("cpu", non_blocking=True) for each in values]
    ready = mark_ready(each.device for each in values)

    def waited() -> list[float]:
        for event in ready.values():
            event.synchronize()
        return [float(each) for each in copies]

    return waited


def _is_queued(loss: Tensor) -> bool:
    """Tells whether a loss may not be computed yet, so that whoever looks at it waits."""
    return loss.device.type == "cuda"
