"""The processes of a ``RankPool``: each reads cases from its pipe, a line each, and answers.

Run as ``python pipeline_ranks.py STORE REQUESTS ANSWERS REQUESTS ANSWERS ...``, two file descriptors for each rank. The
process imports everything once, and forks for each rank.
"""

import faulthandler
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path

import torch
import torch._dynamo  # PyTorch imports it in the first backward, which takes seconds
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

import pipeline_batch_cases
import pipeline_cases
import pipeline_checkpoint_cases
import pipeline_feature_cases
import pipeline_hf_cases
import pipeline_mesh_cases
import pipeline_refusal_cases
from left_behind import threads_left

MODULES = (
    pipeline_batch_cases,
    pipeline_cases,
    pipeline_checkpoint_cases,
    pipeline_feature_cases,
    pipeline_hf_cases,
    pipeline_mesh_cases,
    pipeline_refusal_cases,
)


@dataclass(frozen=True)
class Site:
    """Where a case runs."""

    rank: int
    world: int
    group: dist.ProcessGroup


def serve(rank, ranks, store, requests, answers):
    """Runs cases until there are no more requests."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    groups = {world: dist.new_group(list(range(world)), timeout=limit) for world in range(1, ranks + 1)}
    answer(answers, "here")
    for line in requests:
        request = json.loads(line)
        site = Site(rank, request["world"], groups[request["world"]])
        case = next(getattr(module, request["case"]) for module in MODULES if hasattr(module, request["case"]))
        try:
            torch.manual_seed(0)
            answer(answers, {"answer": case(site, **request["arguments"]), "threads": threads_left()})
        except BaseException:
            answer(answers, {"error": traceback.format_exc()})


def answer(answers, value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def main():
    store, ends = sys.argv[1], [int(end) for end in sys.argv[2:]]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    for rank, (requests, answers) in enumerate(pairs):
        if os.fork() == 0:
            # A pipe ends when the last process that has it does: no rank must have another's.
            for end in chain(*(pair for other, pair in enumerate(pairs) if other != rank)):
                os.close(end)
            errors = os.open(f"{store}.{rank}.errors", os.O_WRONLY | os.O_CREAT)
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            try:
                with os.fdopen(requests) as lines, os.fdopen(answers, "w") as out:
                    serve(rank, len(pairs), store, lines, out)
            finally:
                traceback.print_exc()
                sys.stderr.flush()
                # See ddp_rank.py for why nothing is shut down.
                os._exit(0)
    for end in ends:
        os.close(end)
    for _ in pairs:
        os.wait()


if __name__ == "__main__":
    main()
