"""docs/wire-format.md draws what the code writes: versions, the places of fields, types, words and limits."""

import re
import struct
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from thinpipe import codec
from thinpipe.codecs import catalogue, lossless, packet
from thinpipe.codecs.codec import MOST_EXPANSION
from thinpipe.links import forecast
from thinpipe.links.net import pieces
from thinpipe.remote import half, protocol, terms
from thinpipe.runtime import frame, post

PAGE = (Path(__file__).parent.parent / "docs" / "wire-format.md").read_text()
DRAWINGS = {
    match[1]: match[0] for match in re.finditer(r'^ byte 0(?:.*\n){2} +│ "(TP\w\w)" (?:.*\n)+?```$', PAGE, re.MULTILINE)
}
FORMATS = {
    "TPKT": (packet.VERSION, packet._FIXED.format),
    "TPFR": (frame.VERSION, frame._FIXED.format),
    "TPLN": (forecast._VERSION, forecast._FIELDS.format + forecast._CRC.format.strip("<")),
    "TPNT": (pieces._VERSION, pieces._FIELDS.format),
}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("│").split("│")]


@pytest.mark.parametrize("magic", FORMATS)
def test_a_drawing_has_the_version_and_the_places_of_the_code(magic):
    version, form = FORMATS[magic]
    places, _, names, values, *_ = DRAWINGS[magic].splitlines()
    kinds = re.findall(r"\d*[a-zA-Z]", form)
    ends = [struct.calcsize("<" + "".join(kinds[:k])) for k in range(len(kinds) + 1)]
    assert [int(place) for place in re.findall(r"\d+", places)] == ends
    assert cells(values)[cells(names).index("version")].split()[0] == str(version)


def test_every_drawing_is_compared():
    assert DRAWINGS.keys() == FORMATS.keys()
    assert len(re.findall("^ byte 0 ", PAGE, re.MULTILINE)) == len(FORMATS)


def test_the_version_of_packets_and_their_types_are_those_of_the_code():
    assert f"| version | {packet.VERSION}. A receiver refuses any other. |" in PAGE
    types = ", ".join(f"{k} {str(dtype).removeprefix('torch.')}" for k, dtype in enumerate(packet.DTYPES))
    assert f"| dtype | of the tensor: {types} |" in PAGE
    images = torch.zeros(1, 1, 1, 1)
    sizes = [codec(spec).encode(images).header_size for spec in ("sort:6+2", "had:4/128")]
    assert "{} for a float32 image batch in `sort:6+2`, {} in `had:4/128`".format(*sizes) in PAGE


def test_every_codec_has_a_row():
    named = set(re.findall(r"`(\w+)", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert {entry.name for entry in catalogue.CATALOGUE.values()} - {"zstd"} <= named
    assert "| `...\\|zstd` |" in PAGE and "| `ef(...)` |" in PAGE


def rows_of(heading):
    """Lists the names of the table that begins with a heading."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)[1]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def test_every_word_and_every_field_of_the_first_words_is_listed():
    words = {value for name, value in vars(protocol).items() if name.isupper() and type(value) is str}
    assert rows_of("word") == words
    assert rows_of("`hello`") == {field.name for field in fields(protocol.Hello)}
    assert rows_of("`welcome`") == {field.name for field in fields(protocol.Welcome)}
    row = re.search(r"^\| `terms` \| (.*) \|$", PAGE, re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", row)) == {field.name for field in fields(terms.Terms)}
    assert f"| `protocol` | {protocol.PROTOCOL}, " in PAGE


def test_limits_are_those_of_the_code():
    text = " ".join(PAGE.split())
    for limit in (
        f"at most {packet.MOST_SECTIONS} sections, {packet.MOST_DIMS} dimensions",
        f"a codec of {packet.MOST_SPEC} characters",
        f"1 MiB and {MOST_EXPANSION:,} times",
        f"1 MiB and {catalogue._MOST_EXPANSION:,} times",
        f"{lossless._MOST_OF_BLOCK >> 10} KiB for every {lossless._LEAST_BLOCK} bytes",
        f"A chain has at most {catalogue._MOST_STAGES} codecs",
        f"`max_message` ({half.MOST >> 20} MiB), or {post._EXPANSION} times the message",
        f"a head of {pieces.HEAD} bytes and up to {pieces.PIECE >> 10} KiB",
        f"{pieces.WORD >> 10} KiB at most",
        f"{protocol.MOST_STEPS} at most",
    ):
        assert limit in text, limit
