"""Twenty faults in two hundred steps, and the weights are those of a run that had none."""

import os
import random
import time

import pytest
import torch

from remote.lives import Life, free_port, serve, train
from remote.proxy import Cable
from thinpipe.remote.saved import Store

STEPS, FAULTS = 200, 20


def last_state(folder):
    store = Store(folder)
    return store.load(store.steps()[-1])


def progress(journal):
    return journal.read_text().splitlines() if journal.exists() else []


class Run:
    """A client and a server, with a cable between them."""

    def __init__(self, folder, **options):
        self.folder = folder
        folder.mkdir()
        self.journal = folder / "journal"
        self.address = f"127.0.0.1:{free_port()}"
        self.server = Life(serve, self.address, folder / "server")
        self.cable = Cable(self.address)
        options = {"chunks": 3, "every": 10} | options
        self.client = Life(train, self.cable.address, folder / "client", STEPS, self.journal, options)

    def finish(self, seconds=90):
        until = time.monotonic() + seconds
        while self.client.is_alive:
            assert time.monotonic() < until, f"stuck after {progress(self.journal)[-3:]}"
            time.sleep(0.02)
        assert self.client.process.exitcode == 0
        self.server.terminate()
        self.cable.close()
        (session,) = (self.folder / "server").iterdir()
        return last_state(self.folder / "client"), last_state(session)


def same(one, other):
    assert one.step == other.step == STEPS
    assert one.plain == other.plain
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


def wreak(run, kind, dice):
    if kind == "kill client":
        run.client.kill()
        run.client.begin()
    elif kind == "kill server":
        run.server.kill()
        run.server.begin()
    elif kind == "end client":
        run.client.terminate()
        run.client.begin()
    elif kind == "end server":
        run.server.terminate()
        run.server.begin()
    elif kind == "cut cable":
        run.cable.cut(dice.uniform(0, 0.3))
    else:
        run.cable.hang(dice.uniform(1.2, 2.0))


@pytest.mark.timeout(300)
def test_twenty_faults_change_nothing(tmp_path):
    # Error feedback: a step that was taken back or computed twice would be in all later ones.
    options = {"codec": "ef(block:4)", "grad_codec": "ef(block:4)"}
    calm = Run(tmp_path / "calm", **options)
    expected = calm.finish()
    dice = random.Random(int(os.environ.get("THINPIPE_FAULTS", "7")))
    kinds = ["kill client", "kill server", "cut cable"] * 5 + ["end client", "end server", "hang"] + ["cut cable"] * 2
    dice.shuffle(kinds)
    assert len(kinds) == FAULTS
    stormy = Run(tmp_path / "stormy", **options)
    for number, kind in enumerate(kinds):
        goal = number * STEPS // FAULTS + dice.randrange(STEPS // FAULTS)
        until = time.monotonic() + 60
        while max([int(line.split()[0]) for line in progress(stormy.journal)], default=0) < goal:
            assert stormy.client.is_alive and time.monotonic() < until, f"{kind}: {progress(stormy.journal)[-3:]}"
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.02))
        wreak(stormy, kind, dice)
    client, server = stormy.finish()
    same(client, expected[0])
    same(server, expected[1])
    # Every step that was ever committed had the loss that it has in the calm run: no sample was skipped or repeated.
    calm_losses = dict(line.split() for line in progress(calm.journal))
    assert len(calm_losses) == STEPS
    for line in progress(stormy.journal):
        step, loss = line.split()
        assert calm_losses[step] == loss
    assert {line.split()[0] for line in progress(stormy.journal)} == set(calm_losses)
