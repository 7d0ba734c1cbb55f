"""Kills processes that save checkpoints, at any moment, and looks whether what they leave is whole.

Run as ``python checkpoint_killed.py FOLDER``; it prints what it found as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from thinpipe import checkpoint

KILLED = 25


def model_of(value):
    """A model all of whose weights are one number."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(value))
    return model


def save_for_ever(folder, first):
    for step in range(first, first + 100000):
        checkpoint.save(folder, model_of(step), step=step, extra={"step": step}, keep=2)


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dice = random.Random(0)
    checkpoint.save(folder, model_of(0), step=0, extra={"step": 0})
    whole = in_the_middle = 0
    for _ in range(KILLED):
        first = checkpoint.load(folder, model_of(-1)).step + 1
        pid = os.fork()
        if not pid:
            save_for_ever(folder, first)
        time.sleep(0.02 + 0.05 * dice.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        in_the_middle += bool(list(folder.glob(".saving-*")))
        model = model_of(-1)
        loaded = checkpoint.load(folder, model)
        values = {float(value) for parameter in model.parameters() for value in parameter.flatten()}
        whole += values == {float(loaded.step)} and loaded.extra == {"step": loaded.step}
    sys.stdout.write(json.dumps({"killed": KILLED, "whole": whole, "in the middle": in_the_middle}))


if __name__ == "__main__":
    main()
