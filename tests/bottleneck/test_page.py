"""The page about bottlenecks says what is so; its programs are run with those of all pages."""

import re
from pathlib import Path

from thinpipe.bottleneck import parse, parse_cuts
from thinpipe.bottleneck.ratios import table

PAGE = (Path(__file__).parents[2] / "docs/bottlenecks.md").read_text()


def test_the_table_of_ratios_is_what_packets_take(plain, coded):
    shown = re.search(r"<!-- ratios -->\n(.*)\n<!-- end -->", PAGE, re.DOTALL)[1]
    assert shown == table(plain, coded, "had:4")


def test_every_text_on_the_page_is_one():
    found = re.findall(r"[`\"]((?:conv|linear|none)[:/][^`\"]*)[`\"]", PAGE)
    assert len(found) > 20
    for text in found:
        assert parse_cuts(text)


def test_what_is_said_to_be_the_same_is():
    assert parse("conv:20k3") == parse("conv:20k3s3")


def test_the_first_program_is_short():
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert len(program.splitlines()) < 25
