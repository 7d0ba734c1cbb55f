"""Schedules: for each worker an ordered list of actions, as plain data."""

from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.gpipe import gpipe_backward, gpipe_forward, one_line

__all__ = ["Action", "ActionList", "Kind", "gpipe_backward", "gpipe_forward", "one_line"]
