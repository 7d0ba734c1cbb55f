"""The processes that other tests rely on: one that hangs or ends is told of, and the next case finds new ones."""

import pytest
from rank_pool import RankPool, RanksFailed


@pytest.fixture
def own_pool():
    pool = RankPool(patience=2.0)
    yield pool
    pool.stop()


def test_a_rank_that_hangs_or_ends_fails_the_test_and_is_replaced(own_pool):
    with pytest.raises(RanksFailed, match=r"rank 1: no answer in time(.*\n)*.*in mishap\n"):
        own_pool.run("mishap", 4, what="hangs")
    assert own_pool.run("mishap", 3, what="nothing") == ["well"] * 3
    with pytest.raises(RanksFailed, match="rank 1: the process ended"):
        own_pool.run("mishap", 2, what="ends")
