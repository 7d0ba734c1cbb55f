"""``thinpipe train --dry-run``: a run as it would be, printed before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from thinpipe.errors import ThinpipeError
from thinpipe.remote.cost import size_text
from thinpipe.schedule import Times, simulate
from thinpipe.schedule.draw import in_terminal
from thinpipe.train.bottlenecks import has_bottlenecks
from thinpipe.train.parts import data
from thinpipe.train.plan import Plan, StagePlan, make_plan, schedule_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings
from thinpipe.train.toml_file import to_toml

_MOST_NAMES = 3


@dataclass(frozen=True)
class DryRun:
    """A run that is not begun.

    Args:
        recipe: resolved.
        settings: resolved.
        plan: what it would need.
        samples: to train on; None where they are not to be found.
        steps_per_epoch: None likewise.
        trouble: why there are no samples (default: there are).
        notes: what is damaged or missing among them (default: nothing).
    """

    recipe: Recipe
    settings: Settings
    plan: Plan
    samples: int | None
    steps_per_epoch: int | None
    trouble: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, settings: Settings) -> DryRun:
        """Finds everything out.

        Raises:
            ThinpipeError: the model cannot be cut so.
        """
        plan = make_plan(recipe, settings)
        try:
            found = data(recipe)
        except (ThinpipeError, ImportError, OSError) as error:
            return cls(recipe, settings, plan, None, None, str(error))
        return cls(recipe, settings, plan, len(found.train), found.steps_per_epoch, notes=found.notes)

    @property
    def steps(self) -> int | None:
        """The number of all steps."""
        return None if self.steps_per_epoch is None else self.steps_per_epoch * self.recipe.epochs

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return {
            "recipe": self.recipe.to_json(),
            "settings": self.settings.to_json(),
            "samples": self.samples,
            "steps_per_epoch": self.steps_per_epoch,
            "steps": self.steps,
            "plan": self.plan.to_json(),
        }


def show(run: DryRun, console: Console) -> None:
    """Prints recipe, plan, bytes and memory."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(to_toml(run.recipe).rstrip())
    say("")
    for line in _lengths(run):
        say(line)
    console.print(_stages(run.plan), highlight=False)
    if run.plan.cuts:
        console.print(_cuts(run), highlight=False)
    if run.plan.summed:
        who = "rank" if run.settings.replicas is None else "replica"
        say(f"each {who} adds up {size_text(run.plan.summed)} of gradients with the others in a step")
    _schedule(run, console, say)
    say("a dry run: nothing was trained or written")


def _lengths(run: DryRun) -> Iterable[str]:
    rows = run.plan.micro_batches
    micro = "" if len(rows) == 1 else f" in {len(rows)} micro-batches of {max(rows)}"
    shared = "" if run.settings.replicas is None else f", shared by {run.settings.replicas} replicas"
    yield f"{run.plan.way}; {run.recipe.batch} samples a batch{shared}{micro}"
    if run.steps is None:
        yield f"no samples yet: {run.trouble}"
    else:
        yield f"{run.samples:,} samples, {run.steps_per_epoch:,} steps an epoch, {run.steps:,} steps in all"
    for note in run.notes:
        yield f"warning: {note}"


def _stages(plan: Plan) -> Table:
    table = Table("stage", "where", "layers", title="stages and their memory, about")
    for head in ("parameters", "weights", "gradients", "optimizer", "activations", "all"):
        table.add_column(head, justify="right")
    for j, stage in enumerate(plan.stages):
        sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.memory)
        table.add_row(str(j), stage.where, _names(stage), f"{stage.parameters:,}", *map(size_text, sizes))
    return table


def _names(stage: StagePlan) -> str:
    if len(stage.layers) <= _MOST_NAMES:
        return ", ".join(stage.layers)
    return f"{stage.layers[0]} to {stage.layers[-1]}, {len(stage.layers)}"


def _cuts(run: DryRun) -> Table:
    codecs = f"codecs {run.settings.codec or 'none'} and {run.settings.grad_codec or 'none'}"
    about = "" if run.plan.exact else ", about"
    table = Table("cut", "a micro-batch is", title=f"what crosses the cuts in a step{about}; {codecs}")
    narrowed = has_bottlenecks(run.recipe)
    for head in ("activations", "of tensors", "gradients", "of tensors", *["before bottlenecks"] * narrowed):
        table.add_column(head, justify="right")
    for k, cut in enumerate(run.plan.cuts):
        shapes = " and ".join(" x ".join(map(str, shape)) for shape in cut.shapes)
        sizes = [cut.forward, cut.raw_forward, cut.backward, cut.raw_backward, *[cut.before_bottleneck] * narrowed]
        table.add_row(f"{k} to {k + 1}", shapes, *map(size_text, sizes))
    return table


def _schedule(run: DryRun, console: Console, say: Any) -> None:
    n, m = len(run.plan.stages), len(run.plan.micro_batches)
    if n == 1:
        return
    job, lists = schedule_of(run.settings, n, m)
    timeline = simulate(job, lists, Times())
    say(
        f"{run.plan.schedule}, as if a forward took 1 and a backward 2: {timeline.length:g}, idle {timeline.bubble:.0%}"
    )
    for line in in_terminal(job, timeline, console.width):
        console.print(line)
