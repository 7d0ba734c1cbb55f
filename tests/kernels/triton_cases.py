"""Compares triton's kernels with the reference, byte for byte, and prints one JSON object: differences by case.

Run as ``python triton_cases.py cpu kernels``, with TRITON_INTERPRET=1, or with ``cuda`` on a GPU; with ``codecs`` it
compares the codecs that call them. It is a process of its own, because triton decides when it is imported whether it
interprets.
"""

import json
import os
import sys
import warnings
from itertools import product

import torch

from thinpipe import codec
from thinpipe.codecs.laplace import tables
from thinpipe.kernels import REFERENCE, gpu_kernels, using

SIZES = (1, 300, 2049)
WIDTHS = (1, 3, 4, 8, 14)
SLOW = os.environ.get("TRITON_INTERPRET") == "1"
"""The interpreter takes a second where a GPU takes a millisecond: it has the large tensors of a few kinds alone."""
CODECS = (
    *("uniform:8", "sort:6+2", "sort:6+2,exact", "block:4", "had:4/64", "nf:4", "wave:2/4"),
    *("topk:0.5", "topk:0.3|uniform:8", "power:2/2|uniform:8"),
)
"""Those whose arithmetic outside of kernels has one order on a GPU."""


def tensors(device):
    """Makes tensors of every kind that has given trouble."""
    torch.manual_seed(0)
    for size in SIZES:
        plain = torch.randn(size)
        spoilt = plain.clone()
        spoilt[size // 2] = torch.nan
        endless = plain.clone()
        endless[size // 3] = -torch.inf
        kinds = {
            "plain": plain,
            "relu": plain.relu(),
            "constant": torch.full((size,), 1.1),
            "zero": torch.zeros(size),
            "offset": plain * 1e-3 + 1000,
            "huge": plain.clamp(-3, 3) * 1.1e38,
            "tiny": plain * 1e-38,
            "nan": spoilt,
            "inf": endless,
        }
        for kind, x in kinds.items():
            if SLOW and size == max(SIZES) and kind not in ("plain", "nan"):
                continue
            yield f"{kind} {size}", x.to(device)


def differences(ours, theirs):
    """Counts bytes that differ; a NaN is a NaN, whatever its bits: devices disagree about those."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    return sum(int((raw(a) != raw(b)).sum()) if a.shape == b.shape and a.dtype == b.dtype else 10**9 for a, b in pairs)


def raw(x):
    x = torch.where(x.isnan(), torch.tensor(torch.nan, device=x.device), x) if x.is_floating_point() else x
    return x.reshape(-1).contiguous().view(torch.uint8).cpu()


def compare(device):
    """Runs every kernel on every tensor."""
    ours, found = gpu_kernels(), {}

    def case(name, kernel, *arguments):
        result = getattr(REFERENCE, kernel)(*arguments)
        found[f"{kernel} {name}"] = differences(getattr(ours, kernel)(*arguments), result)
        return result

    for name, x in tensors(device):
        low, high = case(name, "extent", x).unbind()
        borders = torch.nan_to_num(x)[: x.numel() // 2 : 100][:3].sort().values + 0.0
        case(name, "grids", x, borders, 63)
        case(f"{name} one", "grids", x, x[:0], 255)
        for bits in WIDTHS:
            step = (high.double() - low.double()) / (2**bits - 1)
            scale = torch.where(step > 0, (2 / step).clamp(max=3e38), 0.0).float()
            packed = case(f"{name} bits {bits}", "affine", x, low, scale, bits, None)
            case(f"{name} bits {bits}", "lookup", packed, torch.randn(2**bits, device=device), x.numel(), bits)
            blocks = case(f"{name} bits {bits}", "blocks_encode", x, bits, 32, None)
            case(f"{name} bits {bits}", "blocks_decode", *blocks, x.numel(), bits, 32)
        case(f"{name} dice", "affine", x, low, torch.full_like(low, 40.0), 4, 5)
        case(f"{name} dice", "blocks_encode", x, 4, 128, 5)
        lows = torch.where(low.isnan(), low, torch.stack([low, high - (high - low) / 2, high, high]))
        case(name, "buckets", x, lows, torch.full_like(lows, 50.0), 6, 2)
        case(name, "order_statistics", torch.nan_to_num(x, posinf=1.0, neginf=-1.0), [0, x.numel() // 2])
        case(name, "nearest", torch.nan_to_num(x), torch.tensor([-1.0, 0.0, 1.0], device=device), 2)
        for bits, group in ((1, 64), (4, 128), (7, 16)):
            turned = case(f"{name} bits {bits}", "hadamard_encode", x, bits, group)
            case(f"{name} bits {bits}", "hadamard_decode", *turned, x.numel(), bits, group)
        # The interpreter cuts a bfloat16 off where a GPU rounds it.
        for dtype in (torch.float32, torch.float16, *([torch.bfloat16] if device.type == "cuda" else [])):
            for shape in ((1, -1, 1), (1, 1, -1), (3, 10, -1), (1, -1, 3)):
                if x.numel() % abs(shape[0] * shape[1] * shape[2]) == 0:
                    case(f"{name} {shape} {dtype}", "turned", x.view(shape), dtype)
                    case(f"{name} {shape} from {dtype}", "turned", x.view(shape).to(dtype), torch.float32)
    edges, levels = (table.to(device) for table in tables(torch.device("cpu")))
    for count in (1, 8, 333, 1048, 2049):
        widths = torch.tensor([8, 1, 3, 2, 5], dtype=torch.int32, device=device)
        x, factor = (torch.randn(5, count) * 2).to(device), torch.randn(count).to(device)
        x[1, count // 2], x[3, count // 3], x[0, 0] = torch.nan, -torch.inf, 1e30
        packed = case(f"of {count}", "waves_encode", x, torch.rand(5).to(device), factor, widths, edges, 19)
        case(f"of {count}", "waves_decode", packed, torch.randn(5).to(device), widths, levels, count)
    case("many tiles", "turned", torch.randn(2, 200, 130, device=device), torch.float16)
    # Several tiles, and many equal values at both ends.
    x = torch.nn.functional.relu6(torch.randn(40_001) * 4).to(device)
    case("relu6 40001", "grids", x, torch.tensor([0.0, 0.0, 2.5, 6.0], device=device).clamp(max=x.max()), 63)
    return found


def compare_codecs(device):
    """Packs an activation and its gradient with every codec, by either set of kernels, and unpacks them."""
    torch.manual_seed(0)
    found = {}
    for dtype, last in [(torch.float32, True)] if SLOW else product((torch.float32, torch.bfloat16), (False, True)):
        layout = torch.channels_last if last else torch.contiguous_format
        x, grad = (torch.randn(2, 16, 6, 6).to(device, dtype).contiguous(memory_format=layout) for _ in range(2))
        for spec in CODECS:
            ours, theirs = (_crossed(spec, x, grad, kernels) for kernels in (gpu_kernels(), REFERENCE))
            found[f"{spec} {dtype} {layout}"] = differences(ours, theirs)
    return found


def _crossed(spec, x, grad, kernels):
    """Returns the sections of two packets, an activation's and its gradient's, and what they are decoded to."""
    with using(kernels):
        there = codec(spec).encode(x)
        chosen = codec(spec).for_gradient_of(there)
        back = chosen.encode(grad)
        return (*there.sections, codec(spec).decode(there), *back.sections, chosen.decode(back))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the interpreter's numpy tells of overflows that are meant
    compared = {"kernels": compare, "codecs": compare_codecs}[sys.argv[2]]
    sys.stdout.write(json.dumps(compared(torch.device(sys.argv[1]))))
