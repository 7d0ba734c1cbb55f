"""``thinpipe codecs``: which codecs there are, and what each would send."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from thinpipe import arguments
from thinpipe.codecs.catalogue import CATALOGUE, DEFAULT, codec
from thinpipe.errors import CodecError, SpecError

DTYPES = ("float32", "float16", "bfloat16", "float64")


def codecs_command(
    *,
    specs: Annotated[
        list[str] | None, typer.Argument(help="Codecs to compute the bytes of, as block:4 'topk:0.1|uniform:8'.")
    ] = None,
    shape: Annotated[str, typer.Option(help="Of the tensor that crosses.")] = "16,32,112,112",
    dtype: Annotated[str, typer.Option(help=f"Of the tensor: {', '.join(DTYPES)}.")] = "float32",
) -> None:
    """Lists the codecs; or tells how many bytes a tensor takes in the codecs you name.

    Example: [bold]thinpipe codecs[/bold], then
    [bold]thinpipe codecs wave:4 'topk:0.1|uniform:8' --shape 32,128,768[/bold]
    """
    console = Console(highlight=False)
    try:
        sizes = [arguments.whole("each size", int(size), least=1) for size in shape.split(",")]
        if dtype not in DTYPES:
            raise ValueError(dtype)
    except ValueError as error:
        raise typer.BadParameter(
            f"a shape is written as 16,32,112,112 and a type is one of {', '.join(DTYPES)}, got {shape!r} and {dtype!r}"
        ) from error
    if not specs:
        console.print(_listing())
        console.print(
            f"The default is {DEFAULT}. Join two with |, as in 'topk:0.1|uniform:8'; docs/codecs.md says more."
        )
        return
    try:
        console.print(_bytes(specs, sizes, getattr(torch, dtype)))
    except (SpecError, CodecError) as error:
        raise typer.BadParameter(str(error)) from error


def _listing() -> Table:
    table = Table("codec", "what it does", "options", title="codecs")
    for entry in CATALOGUE.values():
        table.add_row(escape(entry.form), entry.summary, " ".join(f",{option}" for option in entry.options))
    table.add_row("ef(...)", "what was lost is added to the next tensor", "")
    return table


def _bytes(specs: list[str], shape: list[int], dtype: torch.dtype) -> Table:
    count = torch.Size(shape).numel()
    raw = count * dtype.itemsize
    title = f"{' x '.join(map(str, shape))} {str(dtype).removeprefix('torch.')}, {raw:,} bytes"
    table = Table("codec", "bytes", "of raw", "bits an element", title=title)
    for spec in specs:
        chosen = codec(spec)
        size = chosen.nbytes(shape, dtype)
        most = "" if chosen.fixed_rate else "at most "
        ratio, bits = (size / raw, 8 * size / count) if count else (1.0, 0.0)
        table.add_row(escape(chosen.spec), f"{most}{size:,}", f"{ratio:.2%}", f"{bits:.2f}")
    return table
