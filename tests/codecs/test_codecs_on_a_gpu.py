"""Codecs on a GPU write the bytes that they write on the CPU, and read them back to the same bits."""

import pytest
import torch

from codec_support import DTYPES, FEEDBACK, SPECS, TEMPERS, VALUES, same_bits, tensor_of
from thinpipe import Packet, codec

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SAME_EVERYWHERE = [spec for spec in VALUES if not spec.startswith(("kmeans", "wave"))]
SAME_EVERYWHERE += ["topk:0.1", "topk:0.1|uniform:8"]
"""Codecs whose arithmetic has one order; that of the others is left to the device's own linear algebra and sums."""


@pytest.mark.parametrize("spec", SAME_EVERYWHERE)
def test_a_packet_has_the_same_bytes_wherever_it_was_made(spec):
    for dtype in DTYPES:
        for temper in TEMPERS:
            x = tensor_of(temper, (3, 5, 77), dtype)
            here, there = codec(spec).encode(x), codec(spec).encode(x.cuda())
            assert bytes(here) == bytes(there), (dtype, temper)
            back = codec(spec).decode(there)
            assert back.is_cuda
            assert same_bits(back.cpu(), codec(spec).decode(here)), (dtype, temper)


@pytest.mark.parametrize("spec", [spec for spec in [*SPECS, *FEEDBACK] if spec not in SAME_EVERYWHERE])
def test_every_other_codec_errs_alike_on_a_gpu(spec):
    if "zstd" in spec:
        pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    x = tensor_of("gaussian", (2, 3, 16, 16))
    here, there = codec(spec), codec(spec)
    errors = [(a.decode(a.encode(y)) - y).double().square().sum().sqrt() for a, y in ((here, x), (there, x.cuda()))]
    torch.testing.assert_close(errors[0], errors[1].cpu(), rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("spec", ["uniform:8", "sort:6+2", "block:4", "had:4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_tensor_in_channels_last_has_the_same_bytes_too(spec, dtype):
    x = tensor_of("relu", (4, 32, 56, 57), dtype).contiguous(memory_format=torch.channels_last)
    here, there = codec(spec).encode(x), codec(spec).encode(x.cuda())
    assert bytes(here) == bytes(there)
    back = codec(spec).decode(there)
    assert back.stride() == x.stride()
    assert same_bits(back.cpu(), codec(spec).decode(here))


@pytest.mark.parametrize("spec", ["wave:0.5", "wave:2/8"])
def test_waves_are_decoded_alike_on_either_side(spec):
    """Bytes may differ by roundings; what they say may not, and each side reads the other's."""
    x = torch.nn.functional.interpolate(tensor_of("gaussian", (4, 8, 7, 7)), (56, 50), mode="bicubic")
    here, there = codec(spec).encode(x), codec(spec).encode(x.cuda())
    for packet in (here, there):
        received = Packet.from_bytes(bytes(packet))
        on_cpu, on_gpu = codec(spec).decode(received), codec(spec).decode(received.to("cuda"))
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(codec(spec).decode(there).cpu(), codec(spec).decode(here), rtol=0.1, atol=0.1)
