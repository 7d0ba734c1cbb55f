"""Spreads the layers of a model over stages, by time or by memory."""

from thinpipe.stages.cost import balance_cost
from thinpipe.stages.profile import balance_by_size, balance_by_time, profile_sizes, profile_times

__all__ = ["balance_by_size", "balance_by_time", "balance_cost", "profile_sizes", "profile_times"]
