"""Stages of torch.distributed.pipelining train through our codecs as our own do."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import interop_ranks
from interop_ranks import CODECS, SCHEDULES, batch, parts
from thinpipe import Pipe, compress
from thinpipe.errors import BatchError, CodecError
from thinpipe.interop import CodedCut


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    program = str(Path(interop_ranks.__file__))
    done = subprocess.run([*launch, program, str(folder)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_our_pipe_with_the_same_codecs(gradients, schedule, codecs):
    codec, grad_codec = CODECS[codecs]
    layers = nn.Sequential(*(layer for part in parts() for layer in part))
    pipe = Pipe(layers, [3, 2], devices=["cpu"] * 2, chunks=4, codec=codec, grad_codec=grad_codec)
    x, y = batch()
    nn.functional.cross_entropy(pipe(x), y).backward()
    ours = [parameter.grad for parameter in pipe.parameters()]
    theirs = [grad for rank in gradients for grad in rank[schedule, codecs]]
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(its, mine, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codecs", [("block:8", "block:8"), ("topk:0.1", "topk:0.1"), (None, "had:4"), ("nf:4", None)])
def test_a_message_does_to_a_tensor_what_compress_does(codecs, dtype):
    cut = CodedCut((3, 7, 16), codec=codecs[0], grad_codec=codecs[1], dtype=dtype)
    x = torch.randn(3, 7, 16).to(dtype).requires_grad_()
    y = x.detach().clone().requires_grad_()
    weight = torch.randn(3, 7, 16).to(dtype)
    message = cut.pack(x)
    assert message.dtype == torch.float32 and message.shape == cut.message().shape
    arrived, expected = cut.unpack(message), compress(y, *codecs)
    (arrived * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(arrived, expected) and torch.equal(x.grad, y.grad)


def test_the_ratio_is_that_of_the_longer_way():
    assert CodedCut((64, 64), codec="block:4", grad_codec="block:8").ratio == pytest.approx(0.26, abs=0.02)
    assert CodedCut((64, 64), codec="block:4").ratio == 1


def test_codecs_that_do_not_fit_stages_are_refused():
    pytest.importorskip("zstandard")
    with pytest.raises(CodecError, match="fixed rate"):
        CodedCut((4, 4), codec="block:8|zstd", grad_codec="block:8")


def test_a_codec_that_remembers_is_refused():
    with pytest.raises(CodecError, match="remembers"):
        CodedCut((4, 64), codec="ef(block:4)", grad_codec="block:8")


def test_tensors_that_the_cut_was_not_made_for_are_refused_with_both_shapes():
    cut = CodedCut((4, 8), codec="block:8", grad_codec="block:8")
    with pytest.raises(BatchError, match=r"\(4, 8\).*got \(3, 8\)"):
        cut.pack(torch.zeros(3, 8))
    with pytest.raises(BatchError, match="got tuple"):
        cut.pack((torch.zeros(4, 8),))
    with pytest.raises(BatchError, match="sender"):
        cut.unpack(torch.zeros(4, 8))
