"""Triton's kernels compile for an H100 and an H200, without one: what the interpreter takes, the compiler may not."""

import importlib
import os

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

TYPES = {
    "x": "*fp32", "levels": "*i32", "edges": "*fp32", "steps": "*i32", "matrix": "*fp16", "meta": "*i16",
    "packed": "*u8", "count": "i32", "total": "i32",
}  # fmt: skip
"""Of arguments, by their names, where a case does not say otherwise."""


def rotated(kernel, bits, group):
    """Makes a case of a kernel for rotated blocks: it is launched as its module says."""
    launch = getattr(importlib.import_module("thinpipe.kernels.gpu_rotated"), kernel.strip("_").upper())
    constants = {"BITS": bits, "GROUP": group, "ROWS": launch.rows, "TILES": launch.tiles}
    constants |= {"CELL": 64, "CELLS": 546} if kernel == "_encode" else {}
    return "gpu_rotated", kernel, {"out": "*u8" if kernel == "_encode" else "*fp32"}, constants, launch.options(group)


def turn(there, back, *, bounded=False):
    """Makes a case of the kernel that turns matrices, from one type to another."""
    types = {"x": there, "out": back, "rows": "i32", "columns": "i32", "most": "fp32"}
    return "gpu_turn", "_turn", types, {"BOUNDED": bounded, "ROWS": 64, "COLUMNS": 64}, {}


WAVES = {
    "gains": "*fp32", "factors": "*fp32", "scales": "*fp32",
    "levels": "*fp32", "row": "*i32", "place": "*i32", "widths": "*i32",
    "first": "*i32", "size": "i64",
}  # fmt: skip

CASES = [
    *(rotated(kernel, bits, group) for kernel in ("_encode", "_decode") for bits, group in ((4, 128), (1, 16))),
    *(rotated(kernel, 7, 256) for kernel in ("_encode", "_decode")),
    ("gpu_waves", "_encode_rows", WAVES | {"out": "*u8"}, {"BYTES": 64}, {}),
    ("gpu_waves", "_encode", WAVES | {"out": "*u8"}, {"ROWS": 256}, {}),
    ("gpu_waves", "_decode", WAVES | {"out": "*fp32"}, {"COLUMNS": 1024}, {}),
    turn("*bf16", "*fp32"),
    turn("*fp32", "*bf16", bounded=True),
]
"""A kernel's module and name, types of arguments, constants, and options of the compiler."""


def compiled(module, kernel, types, constants, options):
    """Compiles one kernel; returns what the compiler made, by stage."""
    function = getattr(importlib.import_module(f"thinpipe.kernels.{module}"), kernel)
    types = {**TYPES, **types, **dict.fromkeys(constants, "constexpr")}
    names = list(enumerate(function.arg_names))
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: types[name] for _, name in names},
        constexprs={(k,): constants[name] for k, name in names if name in constants},
        attrs={(k,): [["tt.divisibility", 16]] for k, name in names if name not in constants},
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options=options).asm


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="triton interprets")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}.{case[1]} {case[3]}")
def test_a_kernel_compiles_for_hopper(case):
    products = [line for line in compiled(*case)["ttgir"].splitlines() if " = ttng.warp_group_dot " in line]
    # A product that starts from another and not from 0 has sums of more bits than a float32.
    assert all("%cst" in line.split(",")[2] for line in products)
