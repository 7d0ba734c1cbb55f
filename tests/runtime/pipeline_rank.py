"""One of the four processes of a ``RankPool``: reads cases from its input, a line each, and answers.

Run as ``python pipeline_rank.py RANK STORE``.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

RANKS = 4


@dataclass(frozen=True)
class Site:
    """Where a case runs."""

    rank: int
    world: int
    group: dist.ProcessGroup


def main():
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.enable()
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit)
    groups = {world: dist.new_group(list(range(world)), timeout=limit) for world in range(2, RANKS + 1)}
    import pipeline_cases
    import pipeline_feature_cases
    import pipeline_refusal_cases

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a case prints is not an answer
    modules = (pipeline_cases, pipeline_feature_cases, pipeline_refusal_cases)
    for line in sys.stdin:
        request = json.loads(line)
        site = Site(rank, request["world"], groups[request["world"]])
        case = next(getattr(module, request["case"]) for module in modules if hasattr(module, request["case"]))
        try:
            torch.manual_seed(0)
            answer = {"answer": case(site, **request["arguments"]), "threads": threads_left()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # See ddp_rank.py for why nothing is shut down.
    os._exit(0)


def threads_left():
    """Names threads of pipelines that were closed; they may take a moment to end."""
    until = time.monotonic() + 5.0
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("thinpipe")]
        if not names or time.monotonic() > until:
            return names
        time.sleep(0.01)


if __name__ == "__main__":
    main()
