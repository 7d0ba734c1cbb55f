"""Two ranks that train one run after the other, for test_ways_ranks.py; started once, by torchrun.

Run as ``torchrun --nproc-per-node 2 ways_ranks.py FOLDER CASES``; cases are a JSON list of objects with the name of the
run, the recipe (``digits``, unless it is said), its fields, settings, whether to resume, the folder of data sets of
each rank, and after how many lines of its log rank 1 gets a SIGTERM. The exit statuses of all cases, or what they
raised, are written beside the runs, by rank.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from thinpipe import join
from thinpipe.errors import ThinpipeError
from thinpipe.train.beginning import begin, resume
from thinpipe.train.together import share
from thinpipe.train.torchrun import Torchrun, leave
from thinpipe.train.training import train


def interrupted(log, lines):
    """Sends this process a SIGTERM when the run has come so far."""
    while not (log.exists() and log.read_text().count("\n") >= lines):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)


def run(case, folder, here):
    path = folder / case["run"]
    words = {**case["settings"], "ranks": here.world}
    choose = resume if case.get("resume") else begin
    name = case.get("recipe", "digits")
    found = share(None if here.rank else choose(name, case["fields"], words, path))
    if here.rank and "stop_after" in case:
        threading.Thread(target=interrupted, args=(path / "log.jsonl", case["stop_after"]), daemon=True).start()
    if "data" in case:
        os.environ["THINPIPE_DATA"] = case["data"][here.rank]
    try:
        return train(*found, here=here, trace=None)
    except ThinpipeError as error:
        return f"{type(error).__name__}: {error}"


def main():
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    here = Torchrun.here()
    join()
    statuses = [run(case, folder, here) for case in cases]
    (folder / f"statuses-{here.rank}.json").write_text(json.dumps(statuses))
    leave(0)


if __name__ == "__main__":
    main()
