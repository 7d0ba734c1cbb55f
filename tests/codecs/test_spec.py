"""The texts that name codecs: what is read, what is refused, and what the refusal points at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_support import SPECS
from thinpipe import codec
from thinpipe.codecs import CATALOGUE, DEFAULT
from thinpipe.errors import SpecError

pieces = st.sampled_from(
    [
        *CATALOGUE,
        *":,|()+/. ",
        "ef(",
        "ef",
        "0",
        "1",
        "4",
        "8",
        "16",
        "17",
        "0.1",
        "1e-3",
        "-1",
        "zero",
        "sr",
        "own",
        "é",
    ]
)
texts = st.one_of(st.text(max_size=30), st.lists(pieces, max_size=8).map("".join))


@settings(deadline=None, max_examples=600)
@given(text=texts)
def test_any_text_names_a_codec_or_is_pointed_at(text):
    try:
        a = codec(text)
    except SpecError as error:
        why, rest = str(error).split("\n    " + text + "\n    ")
        assert why
        assert rest == " " * (len(rest) - 1) + "^"
        assert len(rest) - 1 <= len(text)
    else:
        assert codec(a.spec).spec == a.spec
        assert a.spec.isascii()


@pytest.mark.parametrize("spec", [*SPECS, DEFAULT])
def test_what_a_codec_calls_itself_makes_the_same_codec(spec):
    assert codec(codec(spec).spec).spec == codec(spec).spec
    assert codec(codec(spec).spec).nbytes([7, 31, 5]) == codec(spec).nbytes([7, 31, 5])


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("sort:2", "sort:1+1"),
        ("sort:4", "sort:3+1"),
        ("sort:6", "sort:5+1"),
        ("sort:8", "sort:6+2"),
        ("sort:12", "sort:9+3"),
        ("sort:16", "sort:12+4"),
        ("block:4", "block:4/128"),
        ("had:4", "had:4/128"),
        ("nf:4", "nf:4/64"),
        ("topk:0.10", "topk:0.1"),
        ("topk:.5,own", "topk:0.5,own"),
        ("topk:1", "topk:1"),
        ("topk:1e-3|block:4", "topk:0.001|block:4/128"),
        ("topk:0.1|none", "topk:0.1"),
        ("power:3|none|zstd", "power:3|zstd"),
        ("power:3/03|none", "power:3/3"),
        ("uniform:8,sr,zero", "uniform:8,zero,sr"),
        ("ef(block:4,sr)", "ef(block:4/128,sr)"),
        ("downsample:2|topk:0.5|uniform:08", "downsample:2|topk:0.5|uniform:8"),
    ],
)
def test_defaults_are_written_out(short, long):
    assert codec(short).spec == long


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 0, "no codec is called ''"),
        ("blok:4", 0, "did you mean block:B/G?"),
        ("code:4", 0, "there are none, fp16, bf16, uniform:B, sort:Q+S"),
        ("Block:4", 0, "no codec is called 'Block'"),
        (" block:4", 0, "no codec is called ' block'"),
        ("block", 5, "block needs an argument: block:B/G"),
        ("block:", 6, "block needs an argument"),
        ("block:0", 6, "from 1 to 16, got '0'"),
        ("block:17", 6, "from 1 to 16, got '17'"),
        ("block:9,sr", 6, "from 1 to 8, got '9'"),
        ("block:4/1", 8, "the size of a block is a whole number from 2 to"),
        ("block:4/64/2", 11, "all there is"),
        ("block:4 ", 6, "got '4 '"),
        ("block:4,zero", 8, "block has no option 'zero'; it has sr"),
        ("sort:8,sr", 7, "sort has no option 'sr'; it has exact"),
        ("uniform:8,sr,sr", 13, "there twice"),
        ("uniform:-1", 8, "whole number"),
        ("uniform:1.5", 8, "whole number"),
        ("uniform:٣", 8, "whole number"),
        ("sort:6+", 7, "from 1 to 8"),
        ("sort:6+2+1", 9, "sort takes a width"),
        ("sort:9+8", 7, "from 1 to 7"),
        ("sort:1", 5, "from 2 to 16"),
        ("nf:8", 3, "from 4 to 4"),
        ("had:4/100", 6, "power of two, got 100"),
        ("power:3/0", 8, "the number of passes is a whole number from 1 to 64, got '0'"),
        ("power:3/3/3", 10, "a rank and the passes over a tensor, as 3/3, are all there is"),
        ("kmeans:9", 7, "from 1 to 8"),
        ("topk:0", 5, "above 0 and up to 1"),
        ("topk:1.5", 5, "above 0 and up to 1"),
        ("topk:nan", 5, "above 0 and up to 1"),
        ("none:1", 5, "none takes no argument"),
        ("zstd:3", 5, "zstd takes no argument"),
        ("uniform:8|topk:0.1", 10, "only zstd can follow"),
        ("uniform:8|zstd|zstd", 15, "one lossless stage"),
        ("zstd|uniform:8", 5, "only zstd can follow"),
        ("topk:0.1||zstd", 9, "no codec is called ''"),
        ("ef(block:4", 10, "ef( is not closed"),
        ("ef()", 3, "no codec is called ''"),
        ("ef(ef(block:4))", 5, "'(' is out of place"),
        ("ef(block:4)|zstd", 16, "ef( is not closed"),
        ("block:4)", 7, "')' is out of place"),
        ("topk:0.1|ef(block:4)", 11, "'(' is out of place"),
        ("block:4:4", 6, "whole number"),
        ("svd:1|" * 8 + "none", 48, "at most 8 codecs, got 9"),
    ],
)
def test_a_refusal_points_at_the_offending_character(text, at, words):
    with pytest.raises(SpecError) as caught:
        codec(text)
    why, shown, pointer = str(caught.value).rsplit("\n", 2)
    assert words in why
    assert shown == "    " + text
    assert pointer.index("^") - 4 == at


def test_a_refusal_of_an_unknown_name_lists_every_codec_there_is():
    with pytest.raises(SpecError) as caught:
        codec("best")
    assert all(entry.form in str(caught.value) for entry in CATALOGUE.values())
    assert "ef(...)" in str(caught.value)


@pytest.mark.parametrize("thing", [None, 4, b"block:4", ["block:4"]])
def test_what_is_no_text_is_a_type_error(thing):
    with pytest.raises(TypeError, match="named by a text such as 'block:4'"):
        codec(thing)


def test_a_chain_has_up_to_eight_codecs():
    text = "topk:0.5|" * 7 + "block:4/128"
    assert codec(text).spec == text


def test_a_lossless_stage_alone_compresses_the_elements_as_they_are():
    assert codec("zstd").spec == "none|zstd"
