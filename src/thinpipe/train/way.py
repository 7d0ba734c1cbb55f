"""The ways in which a recipe can be trained; whichever it is, the numbers in the log are the same."""

from __future__ import annotations

from enum import StrEnum


class Way(StrEnum):
    """Who computes what.

    ::

        one device      [first middle last]                               one process
        in process      [first] [middle] [last]                           one process, a thread for each stage
        ranks           [first ... last] [middle]                         torchrun, a process for each rank
        data parallel   [first middle last] [first middle last]           torchrun, each rank has its rows of a batch
        connected       [first ... last]          [middle]                a client, and a server that lends the middle
    """

    ONE_DEVICE = "one device"
    IN_PROCESS = "in process"
    RANKS = "ranks"
    DATA_PARALLEL = "data parallel"
    CONNECTED = "connected"
