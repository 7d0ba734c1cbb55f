"""How a process of a benchmark lives: it says lines of JSON, ends with its parent, and ends without an abort."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

Say: TypeAlias = Callable[[dict[str, Any]], None]


def live(work: Callable[[str, Say], None], *, listens: bool = False) -> None:
    """Does the work that the command line describes, and ends the process.

    Args:
        work: called with the one argument of the command line, and with what says a line.
        listens: whether the work itself reads the input, and ends with it (default: the process does, at once).
    """
    # Libraries print to the standard output as they like, gloo does so from C++: lines of ours go where it went before.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not listens:
        threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(entries: dict[str, Any]) -> None:
        lines.write(json.dumps(entries) + "\n")
        lines.flush()

    code = 0
    try:
        work(sys.argv[1], say)
    except BaseException:
        traceback.print_exc()
        code = 1
    # Gloo's threads let go of the last tensors when it suits them; once the interpreter is half gone, that aborts.
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    """Ends this process once nobody holds the other end of its input: its parent is gone, however that came."""
    # Below Python's own buffered input: a daemon thread inside that one would abort the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)
