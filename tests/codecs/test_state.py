"""What codecs remember: saved and loaded, errors that cancel over time, dice that are fair."""

import pytest
import torch

from codec_support import SPECS, tensor_of
from thinpipe import codec
from thinpipe.codecs.block import Block
from thinpipe.errors import CodecError

REMEMBERING = [
    "uniform:4,sr",
    "uniform:4,zero,sr",
    "block:4,sr",
    "power:2",
    "power:2/3",
    "power:2|block:4,sr",
    "ef(block:4)",
    "ef(block:2,sr|zstd)",
    "ef(topk:0.1|uniform:4,sr)",
    "ef(power:2)",
]


def stream(count):
    """A few tensors, two shapes by turns, as the last batch of an epoch differs from the rest."""
    return [tensor_of("gaussian", (4 - k % 2, 6, 8), seed=k) for k in range(count)]


@pytest.mark.parametrize("spec", REMEMBERING)
def test_going_on_from_a_saved_state_is_like_never_having_stopped(spec, tmp_path):
    kept = codec(spec)
    for x in stream(5):
        kept.encode(x)
    torch.save(kept.state_dict(), tmp_path / "state")
    resumed = codec(spec)
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for x in stream(5):
        assert bytes(resumed.encode(x)) == bytes(kept.encode(x))


@pytest.mark.parametrize("spec", REMEMBERING)
def test_a_remembering_codec_says_so_and_a_saved_state_is_not_written_to(spec):
    a = codec(spec)
    for x in stream(2):
        a.encode(x)
    state = a.state_dict()
    assert state
    before = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    for x in stream(3):
        a.encode(x)
    for key, value in before.items():
        assert torch.equal(state[key], value) if isinstance(value, torch.Tensor) else state[key] == value


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not any(word in spec for word in ("sr", "power", "ef("))])
def test_all_other_codecs_remember_nothing(spec):
    a = codec(spec)
    first = [bytes(a.encode(x)) for x in stream(3)]
    assert [bytes(a.encode(x)) for x in stream(3)] == first
    assert a.state_dict() == {}
    a.load_state_dict({})
    with pytest.raises(CodecError, match="remembers nothing, but was given throws"):
        a.load_state_dict({"throws": 3})


@pytest.mark.parametrize("spec", ["uniform:2,sr", "uniform:2,zero,sr", "block:2,sr", "block:1/16,sr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stochastic_rounding_is_right_on_average(spec, dtype):
    x = tensor_of("gaussian", (512,), dtype)
    a, plain = codec(spec), codec(spec.removesuffix(",sr"))
    throws = 600
    mean = sum(a.decode(a.encode(x)) for _ in range(throws)) / throws
    step = 1.1 * (x.max() - x.min()) / (2 ** codec(spec).coder.bits - 1)
    # A throw is off by half a step at most on average; so many are off by that over the root of their number.
    inside = (x > x.min() + 0.1) & (x < x.max() - 0.1)
    error = (mean - x)[inside]
    assert error.square().mean().sqrt() < step * 0.5 / throws**0.5 * 1.5
    assert error.abs().mean() < 0.2 * (plain.decode(plain.encode(x)) - x)[inside].abs().mean()
    assert error.mean().abs() < step * 0.5 / (throws * inside.sum()) ** 0.5 * 5


def test_dice_are_thrown_anew_for_every_tensor():
    coder = Block(4, stochastic=True)
    assert len({coder.next_seed() for _ in range(10_000)}) == 10_000
    a = codec("uniform:4,sr")
    x = torch.randn(1000)
    assert bytes(a.encode(x)) != bytes(a.encode(x))


@pytest.mark.parametrize("spec", ["topk:0.05", "block:2", "uniform:2", "sort:2", "power:1", "topk:0.1|uniform:2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_with_error_feedback_nothing_is_lost_for_ever(spec, dtype):
    """Of one bit it could not be shown: what one bit loses of a range is as wide as the range, and does not fade."""
    x = tensor_of("gaussian", (2, 10, 12), dtype)
    plain, fed = codec(spec), codec(f"ef({spec})")
    rounds = 200
    bias = (plain.decode(plain.encode(x)).double() - x.double()).norm()
    mean = sum(fed.decode(fed.encode(x)).double() for _ in range(rounds)) / rounds
    assert (mean - x.double()).norm() < 0.2 * bias


def test_error_feedback_in_half_precision_keeps_what_half_precision_cannot():
    """The error of a large value is far below its neighbour in float16; kept in float16 it would be lost again."""
    x = torch.full((64,), 2048.0, dtype=torch.float16)
    x[0] = 0.4
    a = codec("ef(uniform:8)")
    mean = sum(a.decode(a.encode(x)).double() for _ in range(400)) / 400
    assert (mean - x.double()).abs().max() < 0.05


def test_error_feedback_forgets_the_oldest_of_many_shapes():
    a = codec("ef(block:2)")
    for size in range(2, 20):
        a.encode(torch.randn(size))
    assert len(a.state_dict()) == 4


def test_the_error_of_one_shape_is_not_added_to_another():
    a = codec("ef(block:2)")
    a.encode(torch.randn(6, 4))
    x = torch.randn(4, 6)
    assert torch.equal(a.decode(a.encode(x)), codec("block:2").decode(codec("block:2").encode(x)))


def test_error_feedback_has_a_memory_for_each_layout_of_a_shape():
    """A tensor is packed in the order it has in memory; its error must come back to the same elements."""
    x = torch.randn(2, 3, 4, 4)
    a = codec("ef(uniform:2)")
    rounds = 100
    layouts = [x, x.contiguous(memory_format=torch.channels_last)]
    mean = sum(a.decode(a.encode(layouts[k % 2])) for k in range(rounds)) / rounds
    assert (mean - x).abs().max() < 0.15
