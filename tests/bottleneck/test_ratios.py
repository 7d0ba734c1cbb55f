"""Ratios are bytes over bytes: of packets that were packed, headers included."""

import torch

from thinpipe import codec
from thinpipe.bottleneck import Bottleneck, ratio
from thinpipe.bottleneck.ratios import DOCUMENTS, MOBILENET_CUTS, crossing

PROTOTYPE = {
    # Elements that cross both cuts for an image, by its shapes: channels x height x width at each cut.
    "0.097": ((20, 37, 37), (360, 7, 7)),
    "0.070": ((20, 28, 28), (320, 7, 7)),
    "0.038": ((16, 28, 28), (100, 7, 7)),
    "type 0": ((20, 37, 37), (320, 7, 7)),
    "type 1": ((32, 28, 28), (240, 7, 7)),
    "type 2": ((8, 28, 28), (100, 7, 7)),
    "type 3": ((16, 28, 28), (220, 7, 7)),
    "type 4": ((16, 28, 28), (180, 7, 7)),
    "type 5": ((4, 28, 28), (100, 7, 7)),
    "type 6": ((16, 14, 14), (50, 7, 7)),
    "type 7": ((8, 14, 14), (30, 7, 7)),
}
TRUE = {
    "0.097": "0.0970", "0.070": "0.0676", "0.038": "0.0376",
    "type 0": "0.0928", "type 1": "0.0794", "type 2": "0.0241", "type 3": "0.0503",
    "type 4": "0.0460", "type 5": "0.0173", "type 6": "0.0120", "type 7": "0.0065",
}  # fmt: skip
"""The true ratios of the documents' bottlenecks over both cuts."""


def test_the_documents_ratios_come_out_of_real_packets(plain):
    assert {row.name: f"{row.ratio:.4f}" for row in plain} == TRUE


def test_each_crosses_in_its_exact_shape(plain):
    assert {row.name: tuple(cut.wire for cut in row.cuts) for row in plain} == PROTOTYPE
    assert [row.texts for row in plain] == list(DOCUMENTS.values())


def test_headers_are_all_that_a_packet_has_beside_the_elements(plain):
    for row in plain:
        for cut in row.cuts:
            elements = 16 * torch.Size(cut.wire).numel()
            assert cut.packed == codec("none").nbytes((16, *cut.wire))
            assert 4 * elements < cut.packed < 4 * elements + 100


def test_four_bits_on_top_of_the_smallest_published_one_leave_a_two_hundredth(coded):
    row = next(row for row in coded if row.name == "0.038")
    assert 0.0049 < row.ratio < 0.0051


def test_a_ratio_counts_the_packet_of_any_codec():
    shape = MOBILENET_CUTS[1]
    for packer in ("none", "bf16", "block:4"):
        expected = codec(packer).nbytes((2, 100, 7, 7)) / (4 * 2 * torch.Size(shape).numel())
        assert ratio("conv:100", shape, codec=packer, rows=2) == expected


def test_the_gradient_that_comes_back_is_as_small():
    x = torch.randn(2, 8, 9, 9)
    found = crossing("conv:5k2s2", x)
    pair = Bottleneck("conv:5k2s2", (8, 9, 9))
    small = pair.sender()(x).detach().requires_grad_()
    pair.receiver()(small).square().sum().backward()
    assert codec("none").encode(small.grad).nbytes == found.packed
