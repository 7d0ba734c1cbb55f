"""Batches that are made ahead, and the steps that they are for."""

import torch

from thinpipe.train.ahead import Ahead


class Dealer:
    """Samples that only say which step they are for; making them on a GPU is what needs one."""

    def __init__(self, device):
        self.device, self.made = torch.device(device), []

    def batch(self, step):
        self.made.append(step)
        return f"inputs {step}", step


def test_the_next_batch_is_made_while_a_gpu_computes_and_made_once():
    dealer = Dealer("cuda")
    ahead = Ahead(dealer)
    for step in range(3):
        assert ahead.batch(step) == (f"inputs {step}", step)
        ahead.prepare(step + 1)
        assert dealer.made[-1] == step + 1
    assert dealer.made == [0, 1, 2, 3]


def test_a_run_that_goes_back_gets_the_batch_of_its_step():
    ahead = Ahead(Dealer("cuda"))
    ahead.batch(7)
    ahead.prepare(8)
    assert ahead.batch(3) == ("inputs 3", 3)
    assert ahead.batch(8) == ("inputs 8", 8)


def test_a_cpu_makes_nothing_before_it_is_asked_to():
    dealer = Dealer("cpu")
    Ahead(dealer).prepare(1)
    assert dealer.made == []
