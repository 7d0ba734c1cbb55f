"""The stages of a cell are real processes: they train as one core does, and none outlives a failure."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from thinpipe.bench.cores_rank import Assignment
from thinpipe.bench.cores_ranks import own_cores, spread, stage_ranks
from thinpipe.bench.cores_work import Trainings, drawn
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.rows import AMOEBANET_SPEED
from thinpipe.bench.workload import Workload, tiny, with_batch


def workload(name, *, checkpoint="never"):
    table = with_batch(tiny(AMOEBANET_SPEED), 8)
    row = next(row for row in table.rows if row.name == name)
    return Workload(table, replace(row, checkpoint=checkpoint), [torch.device("cpu")] * row.n)


def losses_on_one_core(work, steps):
    """Trains on the micro-batches in turn, and notes what the loss of each step was."""
    noted = []

    class Noting(Workload):
        def loss(self, output, target):
            value = super().loss(output, target)
            noted.append(value.item() * len(output) / self.row.batch)
            return value

    step = Trainings(Noting(work.table, work.row, work.devices), *drawn(work, 3)).one_core()
    for _ in range(steps):
        step()
    return torch.tensor(noted).reshape(steps, work.row.m).sum(1).tolist()


@pytest.mark.parametrize(("schedule", "checkpoint"), [("zb", "never"), ("gpipe", "always")])
def test_processes_train_as_one_core_does(schedule, checkpoint):
    work = workload("n2m4", checkpoint=checkpoint)
    with stage_ranks(work, schedule=schedule, seed=3, cores=own_cores(2), reserve=16) as ranks:
        losses = []
        for _ in range(3):  # the second loss is that of the first step's gradients, in all stages
            ranks.step()
            assert ranks.losses[0] == ranks.losses[1]
            losses.append(ranks.losses[0])
            at_once = ranks.stages()  # which the losses after it must not feel
            assert len(at_once) == 2
            assert all(stage.forward > 0 and stage.backward > 0 for stage in at_once)
    assert losses == pytest.approx(losses_on_one_core(work, 3), rel=1e-4)
    assert len(set(losses)) == 3
    assert all(rank.process.poll() is not None for rank in ranks.ranks)


def test_a_rank_that_dies_is_named_and_takes_the_others_along():
    with stage_ranks(workload("n2m1"), schedule="gpipe") as ranks:
        ranks.step()
        os.kill(ranks.ranks[1].process.pid, signal.SIGKILL)
        with pytest.raises(RankError, match=r"(?s)rank 1 failed.*rank 0 .*rank 1 ended with code -9"):
            ranks.step()
    assert all(rank.process.poll() is not None for rank in ranks.ranks)


def test_a_rank_that_cannot_begin_is_quoted():
    work = workload("n2m1")
    broken = replace(work, row=replace(work.row, balance=(1, 1)))
    with pytest.raises(RankError, match=r"(?s)rank . failed.*BalanceError"), stage_ranks(broken, schedule="gpipe"):
        pass


def test_a_rank_reads_its_assignment_from_its_command_line():
    work = workload("n8m4")
    table = replace(work.table, rows=())
    assignment = Assignment(
        rank=3,
        table=table,
        row=work.row,
        schedule="zb",
        seed=1,
        core=2,
        spare=(4, 5),
        reserve=0,
        store="/some/file",
        patience=60.0,
    )
    assert Assignment.read(assignment.text()) == assignment


def test_processes_get_cores_of_their_own_before_they_share_one():
    two_threads_each = {core: str(core // 2) for core in range(8)}
    assert spread(two_threads_each, 2) == [2, 6]
    assert spread(two_threads_each, 4) == [0, 2, 4, 6]
    assert spread(two_threads_each, 5) == [0, 1, 2, 4, 6]
    assert spread(two_threads_each, 8) == list(range(8))
    assert spread(two_threads_each, 9) is None


def test_processes_keep_their_distance_where_nobody_says_which_cores_are_one():
    alone = {core: str(core) for core in range(16)}
    assert spread(alone, 8) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert spread(alone, 4) == [2, 6, 10, 14]
