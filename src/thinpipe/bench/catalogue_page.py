"""Writes what was measured of each codec into the catalogue, ``docs/codecs.md``, between the lines that ask for it::

<!-- measured block:4 block:2/32 -->
...
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from thinpipe.bench.codecs import BENCH, table_rows
from thinpipe.bench.codecs_sheet import ACTIVATIONS, GRADIENTS
from thinpipe.bench.page import line
from thinpipe.bench.record import Record

_ASKED = re.compile(r"(<!-- measured (?P<specs>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_CUTS = ("MobileNetV2 cut 1", "cut 2", "MiniLM cut 1", "cut 2", "of 128 tokens cut 1", "cut 2")
_HEADS = ("", "bits", *_CUTS, "encode, decode GB/s")

_Rows = Mapping[str, Mapping[str, float | None]]


def fill_catalogue(text: str, results: Path) -> str:
    """Returns the catalogue's text with the figures that are recorded now.

    Args:
        text: the catalogue.
        results: where the records are.

    Raises:
        ValueError: it asks for a codec that was not measured.
    """
    kinds = {
        kind: [table_rows(Record.load(results / BENCH / f"{name}.json")) for name in names]
        for kind, names in (("activations", ACTIVATIONS), ("gradients", GRADIENTS))
    }

    def filled(match: re.Match[str]) -> str:
        lines = [line(_HEADS), line(["---"] * len(_HEADS))]
        for spec in match["specs"].split(" "):
            lines += [line(_cells(spec, kind, tensors)) for kind, tensors in kinds.items()]
        return match[1] + "\n".join(lines) + "\n" + match[3]

    return _ASKED.sub(filled, text)


def _cells(spec: str, kind: str, tensors: Sequence[_Rows]) -> list[str]:
    found = [rows[spec] for rows in tensors if spec in rows]
    if len(found) < len(tensors):
        raise ValueError(f"the catalogue asks for {spec!r}, which `thinpipe bench codecs` has not measured")
    bits = sum(row["bits"] or 0 for row in found) / len(found)
    errors = [f"{row['error']:.1e}" for row in found]
    # The first cut of MobileNetV2 is the largest tensor: the others are too small to tell speeds by.
    speeds = f"{found[0]['encode']:.1f}, {found[0]['decode']:.1f}"
    return [f"`{spec}` {kind}", f"{bits:.2f}", *errors, speeds]
