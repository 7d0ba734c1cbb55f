"""Schedules: for each worker an ordered list of actions, as plain data."""

from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.gpipe import gpipe_backward, gpipe_forward, one_line
from thinpipe.schedule.job import Job, in_turn
from thinpipe.schedule.named import SCHEDULES, plan
from thinpipe.schedule.simulate import Span, Timeline, Times, simulate
from thinpipe.schedule.text import read, write
from thinpipe.schedule.validate import validate

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionList",
    "Job",
    "Kind",
    "Span",
    "Timeline",
    "Times",
    "gpipe_backward",
    "gpipe_forward",
    "in_turn",
    "one_line",
    "plan",
    "read",
    "simulate",
    "validate",
    "write",
]
