"""A step of training gives on a GPU what it gives on a CPU, with every codec at both cuts."""

import pytest
import torch

from runtime.step_on_devices import NUDGES, SPECS, apart, crossed, crossing, differences
from thinpipe.codecs import CATALOGUE
from thinpipe.codecs.topk import Masked


def on_a_gpu(test):
    """Marks a test that needs a GPU."""
    return pytest.mark.cuda(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@pytest.fixture(autouse=True)
def _exact_products():
    """Compares like with like: no TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def test_every_codec_is_compared():
    assert all(any(name in spec for spec in SPECS) for name in CATALOGUE)


def test_gradients_that_arrive_in_wrong_places_would_be_seen(monkeypatch):
    """As a GPU once put them; without that a step on the CPU is the same every time."""
    compared = {"dtype": torch.bfloat16, "compiled": False, "device": "cpu"}
    found = differences("topk:0.8", **compared)
    assert (found.outputs, found.gradients) == (0, 0)
    assert within(found.nudged_gradients, found.nudged_gradients)
    unpack = Masked.unpack
    monkeypatch.setattr(Masked, "unpack", lambda *arguments: unpack(*arguments).flip(1))
    found = differences("topk:0.8", **compared)
    assert not within(found.gradients, found.nudged_gradients), found


def within(apart, nudged):
    """Tells whether devices are no further apart than rounding can bring them."""
    # A hundredth on top: a single code that falls to the other side of a rounding is more than all last bits together.
    return apart <= 3 * nudged + 0.01


@on_a_gpu
@pytest.mark.parametrize("dtype", NUDGES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.timeout(300)
def test_a_gpu_is_no_further_from_the_cpu_than_the_last_bits_of_the_images_bring_the_cpu(spec, compiled, dtype):
    found = differences(spec, dtype=dtype, compiled=compiled)
    assert within(found.outputs, found.nudged_outputs), found
    assert within(found.gradients, found.nudged_gradients), found


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_what_crosses_a_cut_arrives_alike_through_a_gpus_codec(spec, dtype):
    for name, activation, gradient in crossing(dtype):
        here, there = (crossed(spec, activation.to(device), gradient.to(device)) for device in ("cpu", "cuda"))
        _same(there.activation, here.activation, activation, f"activation at {name}")
        _same(there.gradient, here.gradient, gradient, f"gradient at {name}")


def _same(there, here, sent, what):
    error, rounding = apart(here, sent), 1e-6 if sent.dtype == torch.float32 else 1e-3
    assert apart(there, here) <= 0.05 * error + rounding, f"{what}: a codec that errs by {error:.2g}"
