"""The local link delivers each parcel once, and a failure to everybody."""

import gc
import threading
import weakref

import pytest

from thinpipe.links import Closed, LocalLink


class Parcel:
    pass


def test_a_parcel_waits_for_whoever_asks_and_is_then_forgotten():
    link, parcel = LocalLink(), Parcel()
    link.send("a", parcel)
    assert link.receive("a") is parcel
    ref = weakref.ref(parcel)
    del parcel
    gc.collect()
    assert ref() is None


def test_whoever_asks_waits_for_the_parcel():
    link, got = LocalLink(), []
    thread = threading.Thread(target=lambda: got.append(link.receive("a")))
    thread.start()
    link.send("b", 2)
    link.send("a", 1)
    thread.join(10)
    assert got == [1] and link.receive("b") == 2


def test_closing_ends_every_wait_now_and_later():
    link, ended = LocalLink(), []

    def wait():
        with pytest.raises(Closed):
            link.receive("never")
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    link.send("a", 1)
    link.close()
    thread.join(10)
    assert ended
    with pytest.raises(Closed):
        link.receive("a")
    with pytest.raises(Closed):
        link.check()
