"""One of four processes that exchange messages over lanes, case after case.

Run as ``python lanes_rank.py RANK STORE``. Ranks 0 and 1 play the cases and print a JSON object with what went wrong
in each, or an empty text; rank 2 is there to be killed, rank 3 to be stopped.
"""

import json
import os
import sys
import time
import traceback

import lanes_cases
import lanes_trouble
import torch
import torch.distributed as dist


def verdict(case, *args):
    start = time.monotonic()
    try:
        case(*args)
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stderr.write(f"{case.__name__}: {time.monotonic() - start:.2f} s\n")
    return ""


def main():
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    pair, doomed, killed, stopped = (dist.new_group(ranks) for ranks in ([0, 1], [0, 1], [0, 2], [0, 3]))
    if rank == 2:
        lanes_trouble.be_killed(killed)
    if rank == 3:
        lanes_trouble.be_stopped(stopped)
    results = {}
    for case in lanes_cases.CASES:
        group = doomed if case is lanes_cases.hanging_up_ends_the_threads else pair
        results[case.__name__] = verdict(case, group, rank)
    if rank == 0:
        for case, group in zip(lanes_trouble.CASES, (killed, stopped), strict=True):
            results[case.__name__] = verdict(case, group)
    sys.stdout.write(json.dumps(results))
    sys.stdout.flush()
    sys.stderr.flush()
    if rank == 0:
        # One rank leaves at once, with a stopped peer behind it. The other leaves like any program, with lanes that
        # were never closed: their threads, asleep inside gloo, must not abort it.
        os._exit(0)


if __name__ == "__main__":
    main()
