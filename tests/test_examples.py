"""The examples run, learn, and stay short enough to read at once."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from thinpipe import Server

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *words):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, words)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["plain_loop.py", "trainer_style.py", "client_server.py"])
def test_an_example_has_less_than_sixty_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_an_example_of_your_own_model_has_less_than_forty_lines():
    # test_docs.py runs them, as the page about your own model does.
    sizes = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("own_*.py")}
    assert len(sizes) == 4 and max(sizes.values()) < 40, sizes


def test_a_plain_loop_learns_digits_in_a_pipe():
    last = run("plain_loop.py", "--epochs", 2).splitlines()[-1]
    assert float(re.search(r"accuracy ([\d.]+)%", last)[1]) > 85


def test_a_loop_with_the_trainers_words_trains_and_saves_a_model_that_transformers_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    last = run("trainer_style.py", tmp_path).splitlines()[-1]
    assert float(re.search(r"eval_accuracy': ([\d.]+)", last)[1]) > 0.8
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(model).__name__ == "RobertaForSequenceClassification"


def test_a_client_learns_digits_with_a_server_in_its_own_process():
    last = run("client_server.py", "--epochs", 3).splitlines()[-1]
    assert float(re.search(r"accuracy ([\d.]+)%", last)[1]) > 85


def test_a_client_that_is_started_again_goes_on_where_it_was(tmp_path):
    offer = runpy.run_path(str(EXAMPLES / "client_server.py"))["offer"]
    with Server({"middle": offer()}, listen="127.0.0.1:0") as server:
        words = ("--connect", server.address, "--folder", tmp_path)
        assert run("client_server.py", "--epochs", 1, *words).startswith("epoch 0: ")
        assert run("client_server.py", "--epochs", 2, *words).startswith("epoch 1: ")
