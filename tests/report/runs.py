"""Folders of runs, written as training writes them, for the tests of reports."""

from thinpipe.remote.cost import StepCost
from thinpipe.schedule.action import Action
from thinpipe.trace import Span, Trace, write_chrome
from thinpipe.train import resolved
from thinpipe.train.log import EvaluationLine, Origin, RunFolder, StepLine
from thinpipe.train.settings import Settings

CONNECTED = Settings(connect="10.0.0.7:5555", codec="had:4", grad_codec="block:4", bandwidth="20mbit")
IN_PROCESS = Settings(stages=2, codec="had:4")
RANKS = Settings(ranks=3, map="0,1,2")
DATA_PARALLEL = Settings(ranks=2, data_parallel=True)
ONE_DEVICE = Settings()


def cost(number, *, scale=1.0, seconds=0.5):
    times = {"seconds": seconds, "computed": 0.1, "server_computed": 0.1, "encode": 0.01, "decode": 0.02}
    times |= {"server_encode": 0.03, "server_decode": 0.04, "stalled": 0.3, "server_stalled": 0.2}
    sizes = {"sent": int(600_000 * scale), "received": int(400_000 * scale)}
    sizes |= {"raw_sent": 3_000_000, "raw_received": 1_000_000}
    peaks = {"peak_sent": 1e6 + number, "peak_received": 2e6, "server_peak_sent": 3e6, "server_peak_received": 4e6}
    return StepCost(step=number + 1, rows=64, **times, **sizes, **peaks)


def untimed(number, *, seconds=0.02):
    """Makes what a step costs in one process: nobody there knows how its seconds are made up."""
    zeros = dict.fromkeys(("server_computed", "encode", "decode", "server_encode", "server_decode"), 0.0)
    zeros |= dict.fromkeys(("stalled", "server_stalled", "peak_sent", "peak_received"), 0.0)
    zeros |= dict.fromkeys(("server_peak_sent", "server_peak_received"), 0.0)
    sizes = {"sent": 17_000, "received": 131_000, "raw_sent": 131_000, "raw_received": 131_000}
    return StepCost(step=number + 1, rows=64, seconds=seconds, computed=seconds, **zeros, **sizes)


def write_run(path, settings=CONNECTED, *, fields=None, epochs=2, accuracy=0.4, costs=cost, mcc=None, seconds=0.5):
    """Writes a run of so many finished epochs, of 23 steps each."""
    folder = RunFolder(path)
    folder.begin(Origin.now(resolved("digits", {"epochs": 3} | (fields or {})), settings))
    log = folder.log(0)
    for number in range(23 * epochs):
        last, epoch = number % 23 == 22, number // 23
        told = {} if costs is None else costs(number).to_json()
        rows, loss = 30 if last else 64, 2 / (1 + number)
        log.add(StepLine(step=number, epoch=epoch, rows=rows, loss=loss, seconds=seconds, lr=0.1, cost=told))
        if last:
            told = {"accuracy": accuracy * (epoch + 1), "mcc": mcc}
            log.add(EvaluationLine(step=number + 1, epoch=epoch + 1, rows=359, loss=0.5, seconds=1, **told))
    return path


def write_trace(path, *, steps=12, length=0.1, micros=2):
    """Writes a trace of a client and a server, as ``thinpipe train --trace`` does; the last step is an evaluation."""
    spans, at = [], 0.0
    for step in range(1, steps + 1):
        took = length / (12 * micros)
        for kind in "FB" if step < steps else "F":
            for stage in (0, 1, 2) if kind == "F" else (2, 1, 0):
                for micro in range(micros):
                    name, rank = f"{kind}{stage}.{micro}", stage % 2
                    assert str(Action.parse(name)) == name
                    about = {"step": step}
                    spans.append(Span(rank, "compute", name, at, at + took, about | {"action": name}))
                    spans.append(Span(rank, "encode", name, at + took, at + 1.2 * took, about))
                    sent = about | {"peer": 1 - rank, "bytes": 1000}
                    spans.append(Span(rank, "wire", name, at + 1.2 * took, at + 1.8 * took, sent))
                    spans.append(Span(1 - rank, "decode", name, at + 1.8 * took, at + 2 * took, about))
                    at += 2 * took
    return write_chrome(path, Trace.of(spans, {1: 0.0002}))
