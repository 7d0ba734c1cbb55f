"""``torchgpipe.balance``: spreads layers over partitions.

The helpers take torchgpipe's arguments; they measure where the module is, the CPU included, unless told otherwise.
"""

from thinpipe.balance import balance_by_size, balance_by_time

__all__ = ["balance_by_size", "balance_by_time"]
