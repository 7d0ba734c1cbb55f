"""Starts ranks of a Pipeline cheaply, and lets one of them come to grief.

Run as ``python fault_ranks.py``. It has imported everything once; each line of its input is a JSON object that tells of
a rank, for which it forks. It answers with lines of JSON: the process of a rank that started, or the status of one that
ended, and when. A rank ends as a script would: with an uncaught exception, through the shutdown of the interpreter.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # which PyTorch imports in the first step of a pipeline; that takes seconds
import torch.distributed as dist
from torch import nn

from thinpipe import Pipeline

RANKS = 4
CHUNKS = 4
STEP, MICRO = 1, 1  # where things happen: not at the start of anything


def note(folder, what):
    """Leaves the time at which something happened, for whoever reads the folder."""
    part = Path(folder, f"{what}.part")
    part.write_text(str(time.time()))
    part.rename(Path(folder, what))


class Backfire(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, event):
        ctx.event = event
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.event()
        return grad, None


class Snag(nn.Module):
    """Passes tensors on, and does something else at one micro-batch of one step."""

    def __init__(self, event, *, backward):
        super().__init__()
        self.event, self.backward, self.calls = event, backward, 0

    def forward(self, x):
        self.calls += 1
        if self.calls != STEP * CHUNKS + MICRO + 1:
            return x
        if self.backward:
            return Backfire.apply(x, self.event)
        self.event()
        return x


def events(job):
    """What may happen in the middle of a step: for each name, a function."""
    pause = job["timeout"] / 2  # long enough for all others to know where this rank is

    def happen(action):
        time.sleep(pause)
        note(job["folder"], "happened")
        action()

    def boom():
        raise ValueError("a layer of the test does not like this micro-batch")

    def compute():
        until = time.time() + 2 * job["timeout"]
        while time.time() < until:  # keeps the interpreter busy, as real work does
            torch.ones(64, 64).sum()

    return {
        "killed": lambda: happen(lambda: os.kill(os.getpid(), signal.SIGKILL)),
        "stopped": lambda: happen(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
        "interrupted": lambda: happen(lambda: os.kill(os.getpid(), signal.SIGINT)),
        "raises": lambda: happen(boom),
        "exits": lambda: happen(lambda: sys.exit(7)),
        "computes": compute,
    }


def pipeline(job, event=None, *, backward=False, trace=None):
    workers = RANKS // job["replicas"]
    stages = 2 * workers if job["schedule"] == "interleaved" else workers
    layers = [[nn.Linear(4, 4), nn.Tanh()] for _ in range(stages)]
    if event is not None and job["rank"] == job["culprit"]:
        layers[job["rank"] % workers].append(Snag(event, backward=backward))
    return Pipeline(
        [nn.Sequential(*each) for each in layers],
        chunks=CHUNKS,
        loss_fn=nn.functional.mse_loss,
        schedule=job["schedule"],
        replicas=job["replicas"],
        timeout=job["timeout"],
        patience=job["patience"],
        start_timeout=job["timeout"],
        trace=trace,
    )


def train(pipe, steps):
    for _ in range(steps):
        pipe.step(torch.randn(8, 4), torch.ones(8, 4))


# -- stories: what each rank does --------------------------------------------------------------------------------------


def in_a_step(job):
    """The culprit's fault in the middle of the second step of three."""
    pipe = pipeline(job, events(job)[job["event"]], backward=job.get("backward", False))
    train(pipe, 3)
    pipe.close()


def between_steps(job):
    pipe = pipeline(job)
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        events(job)[job["event"]]()
    train(pipe, 1)


def between_steps_of_a_context(job):
    with pipeline(job) as pipe:
        train(pipe, 2)
        if job["rank"] == job["culprit"]:
            events(job)[job["event"]]()
        train(pipe, 1)


def never_steps(job):
    pipe = pipeline(job)
    train(pipe, 1)
    if job["rank"] == job["culprit"]:
        note(job["folder"], "happened")
        time.sleep(2 * job["patience"])
    train(pipe, 1)


def dies_before_the_start(job):
    """When all have met: who has not yet gets an error of gloo's own."""
    note(job["folder"], f"{job['rank']}.met")
    if job["rank"] == job["culprit"]:
        until = time.time() + 30
        while not all(Path(job["folder"], f"{rank}.met").exists() for rank in range(RANKS)):
            assert time.time() < until, "not all ranks came"
            time.sleep(0.01)
        note(job["folder"], "happened")
        os.kill(os.getpid(), signal.SIGKILL)
    pipeline(job)


def closes_early(job):
    """The culprit thinks that training is over."""
    pipe = pipeline(job)
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        note(job["folder"], "happened")
        pipe.close()
        return
    train(pipe, 1)


def ends_late(job):
    pipe = pipeline(job)
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        time.sleep(2 * job["timeout"])
    pipe.close()
    pipe.close()


def stops_before_its_trace(job):
    """All close, which brings their traces to rank 0, except for one."""
    pipe = pipeline(job, trace=f"{job['folder']}/trace.json")
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        events(job)["stopped"]()
    pipe.close()


def forgets_to_close(job):
    pipe = pipeline(job)
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        time.sleep(job["timeout"] / 2)


def held():
    """Counts the threads and the open files of this process."""
    return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")]


def one_after_the_other(job):
    """Pipelines that are closed, that nobody has any more, and that failed and were caught."""
    before = held()
    for ending in ("closed", "dropped", "caught", "dropped", "closed"):
        pipe = pipeline(job)
        try:
            train(pipe, 1)
            if ending == "caught":
                train(pipe, 1) if job["rank"] != job["culprit"] else pipe.step("no tensor", "at all")
                raise AssertionError("the step should have failed")
        except Exception as error:
            if ending != "caught" or isinstance(error, AssertionError):
                raise
        if ending != "dropped":
            pipe.close()
        del pipe
        gc.collect()
    until = time.time() + 2
    while held() != before:  # gloo's own threads need a moment
        assert time.time() < until, f"threads and files: {before} before, {held()} after"
        time.sleep(0.05)


def cut_off(job):
    """The test pulls the culprit's cable while all are training."""
    pipe = pipeline(job)
    train(pipe, 2)
    if job["rank"] == job["culprit"]:
        note(job["folder"], "trains")
    while True:
        train(pipe, 1)
        time.sleep(0.01)


STORIES = {
    each.__name__: each
    for each in (
        in_a_step,
        between_steps,
        between_steps_of_a_context,
        never_steps,
        dies_before_the_start,
        closes_early,
        ends_late,
        stops_before_its_trace,
        forgets_to_close,
        one_after_the_other,
        cut_off,
    )
}


def enter(namespace, interface):
    """Has this process use an interface of a network namespace, which is None for the one it is in."""
    if namespace is not None:
        with Path("/var/run/netns", namespace).open() as file:
            if ctypes.CDLL(None).setns(file.fileno(), 0):
                raise OSError(f"cannot enter the namespace {namespace}")
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def run(job):
    rank, folder = job["rank"], job["folder"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    if "interface" in job:
        enter(job["namespace"], job["interface"])
    atexit.register(note, folder, f"{rank}.left")  # called last, after all that the pipeline has registered
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        STORIES[job["story"]](job)
    finally:
        note(folder, f"{rank}.ended")


def serve():
    """Forks for each line of input; returns the description in the child, None when there is no more input."""
    children = {}
    pending = b""
    tell({"started": "nursery", "pid": os.getpid()})
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        for pid in list(children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                tell({"ended": children.pop(pid), "code": os.waitstatus_to_exitcode(status), "at": time.time()})
        if not ready:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return None
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            job = json.loads(line)
            pid = os.fork()
            if not pid:
                return job
            children[pid] = job["id"]
            tell({"started": job["id"], "pid": pid})


def tell(message):
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # or each rank would look through all of PyTorch when it ends
    mine = serve()
    if mine is not None:
        run(mine)
