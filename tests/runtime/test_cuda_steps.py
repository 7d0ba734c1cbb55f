"""A step of training gives on a GPU what it gives on a CPU, with every codec at both cuts."""

import pytest
import torch

from runtime.step_on_devices import NUDGES, SPECS, apart, crossing, differences
from thinpipe import codec

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _exact_products():
    """Compares like with like: no TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("dtype", NUDGES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.timeout(300)
def test_a_gpu_is_no_further_from_the_cpu_than_the_last_bits_of_the_images_bring_the_cpu(spec, compiled, dtype):
    found = differences(spec, dtype=dtype, compiled=compiled)
    # A hundredth on top: a single code that falls to the other side of a rounding is more than all last bits together.
    assert found.outputs <= 10 * found.nudged_outputs + 0.01, found
    assert found.gradients <= 10 * found.nudged_gradients + 0.01, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_what_crosses_a_cut_arrives_alike_through_a_gpus_codec(spec, dtype):
    for name, activation, gradient in crossing(dtype):
        here, there = codec(spec), codec(spec)
        packets = [each.encode(x) for each, x in ((here, activation), (there, activation.cuda()))]
        arrived = [each.decode(packet) for each, packet in zip((here, there), packets, strict=True)]
        _same(arrived, activation, f"activation at {name}")
        back = [each.for_gradient_of(packet) for each, packet in zip((here, there), packets, strict=True)]
        arrived = [each.decode(each.encode(x)) for each, x in zip(back, (gradient, gradient.cuda()), strict=True)]
        _same(arrived, gradient, f"gradient at {name}")


def _same(arrived, sent, what):
    here, there = arrived[0], arrived[1].cpu()
    error = apart(here, sent)
    assert apart(there, here) <= 0.05 * error + 1e-6, f"{what}: a codec that errs by {error:.2g}"
