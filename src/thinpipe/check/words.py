"""The words that ``thinpipe check`` and ``thinpipe probe`` have in common: a factory, its inputs, and devices."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Your factory: package.module:factory or path/to/file.py:factory. It returns a model, (model, inputs) "
        "or (model, inputs, loss_fn), with loss_fn(outputs) a scalar.",
        show_default=False,
    ),
]
Shape: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="16x3x32x32",
        help="Draw inputs of this shape, if the factory returns none; integers as 16x128:int64.",
        show_default=False,
    ),
]
High: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Integers are drawn below this: the vocabulary.", show_default=False),
]
Devices: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="One for each stage (default: all GPUs, or the CPU).", show_default=False),
]
