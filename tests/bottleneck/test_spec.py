"""Bottlenecks are named by texts, which are read and written again, or refused with a finger on the mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.bottleneck import RankDecay, parse, parse_cuts
from thinpipe.bottleneck.spec import ConvSet, ConvSpec, LinearSet, LinearSpec
from thinpipe.errors import SpecError

CONVS = st.builds(ConvSet, st.integers(1, 2000), st.integers(1, 64), st.integers(1, 64))
PIXELS = st.builds(ConvSet, st.integers(1, 2000))
LINEARS = st.builds(LinearSet, st.integers(1, 2000), st.sampled_from(["features", "sequence"]))


@st.composite
def decays(draw, sets):
    rates = draw(st.lists(st.sampled_from([0.5, 0.9, 0.95]), min_size=1, max_size=1) | st.just([0.75] * sets))
    step = draw(st.integers(1, 1000))
    stop, penalty = draw(st.integers(step, 10**6)), draw(st.sampled_from([1e-4, 0.5, 1e-7]))
    return RankDecay(rates=tuple(rates), step=step, stop=stop, penalty=penalty)


@st.composite
def specs(draw):
    if draw(st.booleans()):
        return ConvSpec((draw(CONVS), *draw(st.lists(PIXELS, max_size=2))))
    sets = tuple(draw(st.lists(LINEARS, min_size=1, max_size=3)))
    apart = len({each.over for each in sets}) == len(sets)
    return LinearSpec(sets, draw(st.none() | decays(len(sets))) if apart else None)


@given(specs())
def test_what_is_written_is_read_again(spec):
    assert parse(str(spec)) == spec


@given(st.lists(specs() | st.none(), min_size=1, max_size=4))
def test_the_texts_of_all_cuts_are_one_text(found):
    assert parse_cuts("/".join("none" if spec is None else str(spec) for spec in found)) == found


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("conv:20k3s3", [ConvSet(20, 3, 3)]),
        ("conv:20k3", [ConvSet(20, 3, 3)]),
        ("conv:320", [ConvSet(320)]),
        ("conv:32k4s4+16", [ConvSet(32, 4, 4), ConvSet(16)]),
        ("conv:400+180", [ConvSet(400), ConvSet(180)]),
        ("linear:50", [LinearSet(50)]),
        ("linear:s64", [LinearSet(64, "sequence")]),
        ("linear:384+s96", [LinearSet(384), LinearSet(96, "sequence")]),
    ],
)
def test_a_text_says_what_it_seems_to(text, sets):
    assert list(parse(text).sets) == sets


def test_none_is_no_bottleneck():
    assert parse("none") is None and parse_cuts("none/linear:50")[0] is None


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("cnov:20k3s3", 0, "did you mean conv:CHANNELS"),
        ("lossy", 0, "there are none, conv:CHANNELS"),
        ("conv", 5, "conv needs an argument"),
        ("conv:", 5, "conv needs an argument"),
        ("conv:x", 5, "written as 20k3s3"),
        ("conv:k3s3", 5, "the number of channels is a whole number"),
        ("conv:20k0s3", 8, "the edge of the kernel is a whole number from 1"),
        ("conv:20k3s0", 10, "the stride is a whole number from 1"),
        ("conv:20s3", 5, "a stride needs a kernel: 20k3s3"),
        ("conv:32k4s4+16k2", 12, "only the first set has a kernel; write 16 alone"),
        ("conv:20,sr", 8, "conv has no options"),
        ("none:3", 5, "none takes no argument"),
        ("linear:t64", 7, "the rank is a whole number"),
        ("linear:s", 8, "the rank over the sequence is a whole number"),
        ("linear:50,sr", 10, "linear has no option 'sr'"),
        ("linear:50,l1=1e-4", 13, "there is no decay="),
        ("linear:50,decay=0.9", 16, "a decay is written as 0.9@300..2700"),
        ("linear:50,decay=1@3..9", 16, "a rate of decay is below 1"),
        ("linear:50,decay=0.9@9..3", 23, "the step of the last decay is a whole number from 9"),
        ("linear:50,decay=0.9*0.9@3..9", 20, "one rate for all sets or one for each of the 1, got 2"),
        ("linear:50,decay=0.9@3..9,decay=0.9@3..9", 25, "decay is there twice"),
        ("linear:50+20,decay=0.9@3..9", 19, "one set over features, one over the sequence"),
    ],
)
def test_a_mistake_is_pointed_at(text, at, says):
    with pytest.raises(SpecError) as caught:
        parse(text)
    message, shown, finger = str(caught.value).rsplit("\n", 2)
    assert says in message and shown.strip() == text and finger.index("^") - 4 == at


def test_in_the_text_of_two_cuts_the_finger_is_at_the_second():
    with pytest.raises(SpecError) as caught:
        parse_cuts("conv:20k3s3/conv:x")
    assert str(caught.value).splitlines()[-1].index("^") - 4 == 17


def test_anything_but_a_text_is_refused():
    with pytest.raises(TypeError, match="named by a text such as 'conv:20k3s3', got 3"):
        parse(3)
