"""The documents' bottlenecks at both cuts, packed once for all tests that look at what they take."""

import pytest

from thinpipe.bottleneck.ratios import documents


@pytest.fixture(scope="session")
def plain():
    return documents()


@pytest.fixture(scope="session")
def coded():
    return documents("had:4")
