"""A client in a process of its own, which does as it is told on its command line."""

import sys
import time

from links.net.ends import Taken
from thinpipe.links import Meter
from thinpipe.links.net import dial


def main(address, what):
    channel = dial(address)
    taken = Taken(channel, 1)
    channel.tell("hello")
    print("ready", flush=True)  # noqa: T201
    if what == "leave":
        channel.hear(60)
        return  # without a close
    if what == "echo":
        lane = channel.sender(1, Meter())
        while True:
            lane.send([taken.next(60)])
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
