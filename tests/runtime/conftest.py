"""The four processes that all tests of the distributed pipeline share."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool():
    """Four ranks in one gloo world, started when the first test needs them."""
    ranks = RankPool()
    yield ranks
    ranks.stop()
