"""A step of training gives on a GPU what it gives on a CPU, with every codec at both cuts."""

import pytest
import torch

from runtime.step_on_devices import NUDGES, SPECS, apart, crossed, crossing, differences

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
        here, there = (crossed(spec, activation.to(device), gradient.to(device)) for device in ("cpu", "cuda"))
        _same(there.activation, here.activation, activation, f"activation at {name}")
        _same(there.gradient, here.gradient, gradient, f"gradient at {name}")


def _same(there, here, sent, what):
    error, rounding = apart(here, sent), 1e-6 if sent.dtype == torch.float32 else 1e-3
    assert apart(there, here) <= 0.05 * error + rounding, f"{what}: a codec that errs by {error:.2g}"
