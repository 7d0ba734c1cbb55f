"""Every test starts from the same seed and one intra-op thread: two cores are shared by the stages' threads."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1, "somebody changed the caller's number of threads"
