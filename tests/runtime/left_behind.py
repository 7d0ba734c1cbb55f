"""Threads of pipelines that were closed."""

import threading
import time


def threads_left():
    """Names those there are; they may take a moment to end."""
    until = time.monotonic() + 5.0
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("thinpipe")]
        if not names or time.monotonic() > until:
            return names
        time.sleep(0.01)
