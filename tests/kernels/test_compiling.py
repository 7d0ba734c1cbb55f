"""The kernels for the CPU are compiled when a pipe is made, and never in a step; somebody who waits is told why."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("numba")

PROGRAM = """
import sys
import torch
from torch import nn
from numba.core import event
import thinpipe

class Compilations(event.Listener):
    count = 0
    def on_start(self, event):
        self.count += event.data["dispatcher"].py_func.__module__.startswith("thinpipe.")
    def on_end(self, event):
        pass

found = Compilations()
event.register("numba:compile", found)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 3))
pipe = thinpipe.Pipe(model, [2, 1], devices=["cpu", "cpu"], chunks=2, codec=sys.argv[1], grad_codec=sys.argv[2])
made = found.count
for rows, edge in ((4, 32), (3, 7)):
    pipe(torch.rand(rows, 3, edge, edge)).sum().backward()
print(made, found.count - made)
"""


def run(*codecs, **environment):
    """Takes two steps with codecs at a cut; gives what was compiled before them and in them, and what was said."""
    command = [sys.executable, "-c", PROGRAM, *codecs]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    before, within = map(int, done.stdout.split())
    return before, within, done.stderr


def test_kernels_are_compiled_once_a_machine_before_the_first_step_and_it_is_said(tmp_path):
    before, within, said = run("sort:6+2", "block:4", NUMBA_CACHE_DIR=str(tmp_path))
    assert before > 0 and within == 0
    (line,) = said.splitlines()
    assert line.startswith("compiling codecs for this CPU, which takes some seconds, once: ") and str(tmp_path) in line
    assert run("sort:6+2", "block:4", NUMBA_CACHE_DIR=str(tmp_path)) == (0, 0, "")


def test_without_a_folder_to_keep_them_it_is_said_that_every_process_compiles(tmp_path):
    (tmp_path / "file").touch()
    nowhere = {"NUMBA_CACHE_DIR": str(tmp_path / "file/x"), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    before, within, said = run("uniform:4", "uniform:4", **nowhere)
    assert before > 0 and within == 0 and re.search("in every process: .* set NUMBA_CACHE_DIR", said)


FULL = """
import numba.core.caching as caching
def full(self, name, data):
    raise OSError(28, "No space left on device")
caching.IndexDataCacheFile._save_data = full
"""


def test_a_full_disk_that_cannot_keep_them_ends_nothing(tmp_path):
    code = FULL + "import thinpipe, torch; print(thinpipe.codec('uniform:4').encode(torch.ones(64)).nbytes)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr


SHAPES = """
import sys, torch
from numba.core.dispatcher import Dispatcher
from thinpipe.codecs import codec
from thinpipe.codecs.warm import warm
from thinpipe.kernels import cpu_kernels

torch.set_num_threads(1)
cpu_kernels()
functions = {id(each): each for name, module in list(sys.modules.items()) if name.startswith("thinpipe.kernels.cpu")
             for each in vars(module).values() if isinstance(each, Dispatcher)}
assert len(functions) > 20
def compiled():
    return {(each.py_func.__qualname__, signature) for each in functions.values() for signature in each.signatures}

for spec in sys.argv[1:]:
    warm([spec])
    before = compiled()
    for shape in ((8, 64, 14, 14), (4, 64, 2, 2), (2, 128, 384), (7, 33), (70000,), (3, 5, 7)):
        for dtype in (torch.float32, torch.bfloat16):
            plain = torch.arange(torch.Size(shape).numel()).mul(0.7).sin().view(shape).to(dtype)
            for x in (plain, plain.relu(), plain.transpose(0, -1)):
                made = codec(spec)
                packet = made.encode(x)
                made.decode(packet)
                made.for_gradient_of(packet).encode(x)
    assert compiled() == before, (spec, compiled() - before)
"""


def test_the_kernels_that_are_warmed_are_all_that_tensors_of_other_shapes_need():
    forms = (
        "uniform:4",
        "uniform:4,sr",
        "sort:6+2",
        "sort:4+3",
        "kmeans:4",
        "block:4",
        "block:3/7,sr",
        "had:4",
        "nf:4",
    )
    forms += ("wave:4", "wave:0.6", "topk:0.1", "topk:0.1|uniform:8", "ef(had:3/64)", "block:4|zstd")
    done = subprocess.run([sys.executable, "-c", SHAPES, *forms], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
