"""The training loop follows its trainer's number of steps, forward and back."""

from dataclasses import replace

import pytest
import torch

import thinpipe.train.loop as loop_module
from thinpipe.train import data, resolved
from thinpipe.train.in_process import InProcess
from thinpipe.train.local import Local
from thinpipe.train.log import EvaluationLine, Origin, RunFolder, StepLine
from thinpipe.train.loop import Loop
from thinpipe.train.parts import loss, stages_of, whole
from thinpipe.train.settings import Settings

RECIPE = resolved("digits", {"epochs": 2, "batch": 200})


class Forgetful:
    """A trainer that goes back to its last saved state after some steps, as a client does whose server was killed."""

    cost = None

    def __init__(self, folder, *, after):
        self._folder, self._after = folder, set(after)
        self._local = self._loaded()

    def _loaded(self):
        return Local(RECIPE, folder=self._folder, every=3, device="cpu")

    @property
    def committed(self):
        return self._local.committed

    def step(self, inputs, targets, *, lr=None, clip=None):
        loss = self._local.step(inputs, targets, lr=lr, clip=clip)
        if self.committed in self._after:
            self._after.remove(self.committed)
            self._local = self._loaded()
        return loss

    def evaluate(self, inputs):
        return self._local.evaluate(inputs)

    def save(self):
        self._local.save()

    def close(self):
        self._local.close()


class Seen:
    """Keeps what it is told."""

    def __init__(self):
        self.steps, self.began, self.tests = [], [], []

    def stepped(self, line):
        self.steps.append(line.step)

    def evaluating(self, epoch):
        self.began.append(epoch)

    def evaluated(self, line):
        self.tests.append(line.step)
        assert self.began[-1] == line.epoch


def trained(path, trainer, *, recipe=RECIPE, stop_after=None):
    folder, seen = RunFolder(path), Seen()
    folder.begin(Origin.now(recipe, Settings()))
    loop = Loop(
        recipe=recipe,
        data=data(recipe),
        loss_fn=loss,
        log=folder.log(trainer.committed),
        watcher=seen,
        stopped=lambda: stop_after is not None and len(seen.steps) >= stop_after,
    )
    return loop.run(trainer), seen, folder


def said(folder):
    lines = list(folder.lines())
    steps = [(line.step, line.loss) for line in lines if isinstance(line, StepLine)]
    return steps, [(line.step, line.loss, line.accuracy) for line in lines if isinstance(line, EvaluationLine)]


# An epoch has 8 steps and states are saved after 3, 6, 9 ...: some go back over the border of an epoch, one to it.
@pytest.mark.parametrize("after", [[2], [5, 8], [10], [11, 13, 16]], ids=str)
def test_steps_that_are_taken_back_are_taken_again_with_the_same_samples(after, tmp_path):
    done, _, whole = trained(tmp_path / "whole", Forgetful(tmp_path / "a", after=[]))
    assert done
    done, seen, folder = trained(tmp_path / "run", Forgetful(tmp_path / "b", after=after))
    assert done and len(seen.steps) > 16
    assert said(folder) == said(whole)
    assert [step for step, _ in said(folder)[0]] == list(range(16)) and [x[0] for x in said(folder)[1]] == [8, 16]


@pytest.mark.parametrize("clip", [0.0, 1e-3], ids=["unclipped", "clipped"])
def test_the_norm_of_all_gradients_is_logged_as_it_was_before_any_clipping(clip, tmp_path):
    recipe = resolved("digits", {"epochs": 1, "batch": 200, "clip": clip})
    model, (inputs, targets) = whole(recipe), data(recipe).batch(0)
    loss(model(inputs), targets).backward()
    norm = float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()]))
    trainer = Local(recipe, folder=tmp_path / "states", every=None, device="cpu")
    _, _, folder = trained(tmp_path / "run", trainer, recipe=recipe, stop_after=1)
    (line,) = (line for line in folder.lines() if isinstance(line, StepLine))
    assert line.grad_norm == pytest.approx(norm, rel=1e-4)


def test_a_loop_that_is_stopped_saves_the_step_that_it_finished(tmp_path):
    done, seen, _ = trained(tmp_path / "run", Forgetful(tmp_path / "states", after=[]), stop_after=5)
    assert not done and seen.steps == [0, 1, 2, 3, 4]
    assert Forgetful(tmp_path / "states", after=[]).committed == 5


class InOneProcess(Seen):
    """Trains cut into stages, and looks how far the trainer was when it was told of a step."""

    def __init__(self, folder):
        super().__init__()
        self.trainer = InProcess(LASTING, stages_of(LASTING), folder=folder, every=None, devices=["cpu"] * 3)
        self.behind = []

    def stepped(self, line):
        super().stepped(line)
        self.behind.append(self.trainer.committed - 1 - line.step)


LASTING = replace(RECIPE, on_nan="continue")


def test_the_loss_of_a_step_may_be_read_when_the_next_one_is_queued_and_the_log_is_the_same(tmp_path, monkeypatch):
    logs, behind = [], []
    for late in (False, True):
        # As a GPU's loss is, which may not be computed yet.
        monkeypatch.setattr(loop_module, "_is_queued", lambda _, late=late: late)
        path = tmp_path / str(late)
        seen, folder = InOneProcess(path / "states"), RunFolder(path)
        folder.begin(Origin.now(LASTING, Settings()))
        loop = Loop(
            recipe=LASTING,
            data=data(LASTING),
            loss_fn=loss,
            log=folder.log(0),
            watcher=seen,
            stopped=lambda seen=seen: len(seen.steps) >= 12,
        )
        assert not loop.run(seen.trainer)
        logs.append(
            [(line.step, line.loss, line.grad_norm) for line in folder.lines() if isinstance(line, StepLine)][:12]
        )
        behind.append(seen.behind)
        assert sum(line.seconds for line in folder.lines() if isinstance(line, StepLine)) > 0
    assert logs[0] == logs[1]
    # An epoch has 8 steps: its last one is read before the test, and what is left when somebody stops, then.
    assert behind == [[0] * 12, [1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0]]
