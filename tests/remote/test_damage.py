"""A damaged file costs some steps and never a training: both sides fall back to an older step that both have."""

import json
import os
import re
import shutil
import signal
import time

import pytest
import torch

from links.net.ends import until
from remote.lives import Life, free_port, serve, train
from remote.models import batch, offer
from remote.strangers import client_of, states, verify_same_states
from thinpipe.errors import CheckpointError, PeerLost, RefusedError, RolledBackError
from thinpipe.remote.past import Past
from thinpipe.remote.saved import Store
from thinpipe.remote.server import Server

OPTIONS = {"chunks": 2, "every": 5, "codec": "ef(block:4)", "grad_codec": "ef(block:4)", "offer": "dropping"}
STEPS = 12
FILES = ("manifest.json", "tensors.safetensors")


def running(folder, **options):
    return Server({"dropping": offer(dropout=0.2)}, folder=folder, **{"listen": "127.0.0.1:0"} | options)


def client_in(server, folder, **options):
    return client_of(server, folder=folder, **OPTIONS | options)


def steps_to(client, goal):
    """Trains to a step; the learning rate and the clipping are other ones at every step."""
    found = {}
    while client.committed < goal:
        step = client.committed
        found[step + 1] = client.step(*batch(step), lr=0.1 / (1 + step), clip=1.0 + step).item()
    return found


def killed(client):
    """Leaves a client as if its process had been killed."""
    client._lose()
    client._release()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Twelve steps that nothing happened to: their losses, and what both sides have in the end."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("calm")
    with running(folder) as server, client_in(server, None) as client:
        losses = steps_to(client, STEPS)
    return losses, states(client, folder)


@pytest.fixture
def ten(tmp_path):
    """Ten steps of both sides in folders, which have steps 5 and 10."""
    with running(tmp_path / "server") as server, client_in(server, tmp_path / "client") as client:
        steps_to(client, 10)
    place = Sides(tmp_path, client.session)
    assert Store(place.client).steps() == Store(place.server).steps() == [5, 10]
    return place


class Sides:
    def __init__(self, folder, session):
        self.folder, self.session = folder, session
        self.client, self.server = folder / "client", folder / "server" / session

    def path(self, side, step, file):
        return getattr(self, side) / f"step-{step:08d}" / file

    def damage(self, side, step, file="tensors.safetensors", how="flip"):
        path = self.path(side, step, file)
        content = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
            return
        if how == "flip":
            content[len(content) // 2] ^= 1
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(how, bytes(content)))

    def goes_on(self, calm, caplog=None, *, first=5):
        """Trains the rest, and compares all with what nothing happened to."""
        with running(self.folder / "server") as server, client_in(server, self.client) as client:
            assert client.committed == first
            losses = steps_to(client, STEPS)
        assert losses == {step: calm[0][step] for step in range(first + 1, STEPS + 1)}
        verify_same_states(states(client, self.folder / "server"), calm[1])


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("sides", [("client",), ("server",), ("client", "server")], ids=" and ".join)
def test_a_damaged_step_is_repeated_from_the_one_before_it_and_both_sides_say_so(ten, calm, caplog, sides, file, how):
    for side in sides:
        ten.damage(side, 10, file, how)
    ten.goes_on(calm)
    said = [record.getMessage() for record in caplog.records]
    for side in sides:
        whose = "this client" if side == "client" else "the server"
        text = rf"step 10 of {whose} is damaged \([^/]*{file}[^/]*\); going on from step 5, 5 steps are repeated"
        heard = [line for line in said if re.search(text, line)]
        # In the log of the side itself, and in that of the other one, who says from whom it has it.
        assert len(heard) == 2, said
        assert any(line.startswith("anonymous, session") for line in heard)
    # Put aside until training is beyond it: whoever can make something of it may.
    assert all((getattr(ten, side) / "damaged-00000010").is_dir() for side in sides)


def test_without_damage_nothing_is_repeated_and_nothing_said_but_that_it_goes_on(ten, calm, caplog):
    ten.goes_on(calm, first=10)
    assert [record.getMessage() for record in caplog.records] == [
        f"{ten.client} has a training of dropping: going on from its step 10; to begin anew, choose another folder"
    ]


def test_a_folder_of_before_with_a_single_step_and_a_plain_note_is_gone_on_with(ten, calm):
    for folder in (ten.client, ten.server):
        shutil.rmtree(folder / "step-00000005")
        (folder / "session.json.copy").unlink()
        note = json.loads((folder / "session.json").read_text())
        del note["digest"]
        (folder / "session.json").write_text(json.dumps(note, indent=2))
    ten.goes_on(calm, first=10)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_damaged_note_is_read_from_its_copy(ten, calm, caplog, side, how):
    path = getattr(ten, side) / "session.json"
    content = path.read_bytes()
    place = content.index(b"dropping")
    found = {"flip": content[:place] + b"tropping" + content[place + 8 :], "cut": content[:place], "empty": b""}
    path.unlink() if how == "gone" else path.write_bytes(found[how])
    ten.goes_on(calm, first=10)
    assert f"{path} is damaged or missing; its copy beside it is used" in caplog.text


# -- nothing in common -------------------------------------------------------------------------------------------------


def test_a_client_whose_steps_are_all_damaged_says_so_and_what_to_do(ten):
    for step in (5, 10):
        ten.damage("client", step)
    with running(ten.folder / "server") as server:
        for _ in range(2):  # it says the same again: nothing was moved or removed
            with pytest.raises(CheckpointError) as caught:
                client_in(server, ten.client)
            assert "step 5 of this client is damaged (the checksum of tensors.safetensors is wrong)" in str(
                caught.value
            )
            assert "begin anew, with another folder" in str(caught.value)


def test_a_server_whose_steps_are_all_damaged_says_so_without_its_folders(ten, caplog):
    for step in (5, 10):
        ten.damage("server", step)
    with running(ten.folder / "server") as server:
        for _ in range(2):
            with pytest.raises(RefusedError) as caught:
                client_in(server, ten.client)
            assert "step 5 of the server is damaged (the checksum of tensors.safetensors is wrong)" in str(caught.value)
            assert "Bring back the server's files from a copy, or begin anew" in str(caught.value)
            assert str(ten.folder) not in str(caught.value)
    assert str(ten.server) in caplog.text  # for the server's owner


def test_other_steps_damaged_on_each_side_leave_nothing_in_common(ten, calm):
    ten.damage("client", 10)
    ten.damage("server", 5)
    copy = ten.folder / "copy"
    shutil.copytree(ten.server, copy)
    with running(ten.folder / "server") as server, pytest.raises(RefusedError, match=r"nothing else is left that both"):
        client_in(server, ten.client)
    # As the message says: with a copy of one side's files it goes on.
    shutil.rmtree(ten.server / "step-00000005", ignore_errors=True)
    shutil.copytree(copy / "step-00000005", ten.server / "step-00000005")
    ten.damage("server", 5)  # the other way round, which brings the bit back
    ten.goes_on(calm)


# -- while the other side lives ----------------------------------------------------------------------------------------


def restarted(server, folder, *damaged):
    """Begins a server again that has lost some steps."""
    server.close()
    for path in damaged:
        content = bytearray((path / "tensors.safetensors").read_bytes())
        content[-1] ^= 1
        (path / "tensors.safetensors").write_bytes(content)
    return running(folder, listen=server.address)


def test_a_client_that_lives_feeds_its_batches_again_from_the_older_step(tmp_path, calm):
    server = running(tmp_path / "server")
    with client_in(server, tmp_path / "client", give_up=20.0) as client:
        steps_to(client, 11)
        place = Sides(tmp_path, client.session)
        server = restarted(server, tmp_path / "server", *(place.server / f"step-000000{n}" for n in (10, 11)))
        steps_to(client, STEPS)
        until(lambda: server.counters.steps == 7)  # 6 to 12; the last commit may be on its way
    server.close()
    verify_same_states(states(client, tmp_path / "server"), calm[1])


def test_a_client_that_finds_its_own_step_damaged_asks_for_an_older_one(tmp_path, calm, caplog):
    server = running(tmp_path / "server")
    with client_in(server, tmp_path / "client", give_up=20.0) as client:
        steps_to(client, 11)
        place = Sides(tmp_path, client.session)
        place.damage("client", 10)
        server = restarted(server, tmp_path / "server", place.server / "step-00000011")
        steps_to(client, STEPS)
        until(lambda: server.counters.steps == 7)
    server.close()
    verify_same_states(states(client, tmp_path / "server"), calm[1])
    assert "step 10 of this client is damaged" in caplog.text


def test_a_client_that_never_had_the_batches_is_told_where_to_go_on(tmp_path, calm):
    server = running(tmp_path / "server")
    client = client_in(server, tmp_path / "client")
    steps_to(client, 10)
    killed(client)
    with client_in(server, tmp_path / "client", give_up=20.0) as client:
        steps_to(client, 11)
        place = Sides(tmp_path, client.session)
        server = restarted(server, tmp_path / "server", *(place.server / f"step-000000{n}" for n in (10, 11)))
        with pytest.raises(RolledBackError, match="both sides went back to step 5"):
            client.step(*batch(11))
        assert client.committed == 5
        steps_to(client, STEPS)
    server.close()
    verify_same_states(states(client, tmp_path / "server"), calm[1])


def test_a_step_that_only_the_memory_of_a_client_has_does_not_count_as_saved(tmp_path, calm):
    """The connection broke between the commit of step 10 and the client's save: the server must not forget step 5."""
    server = running(tmp_path / "server")
    client = client_in(server, tmp_path / "client")
    steps_to(client, 9)
    client._is_due = lambda: False
    steps_to(client, 10)
    client._lose()
    assert client.evaluate(batch(0)[0]) is not None  # it comes back, at step 10, and has not saved it
    assert Store(tmp_path / "client").steps() == [0, 5]
    killed(client)
    place = Sides(tmp_path, client.session)
    assert 5 in Store(place.server).steps()
    server.close()
    place.goes_on(calm)


def test_a_save_that_a_broken_connection_left_out_is_made_up_for(tmp_path):
    with running(tmp_path / "server") as server, client_in(server, tmp_path / "client") as client:
        steps_to(client, 4)
        tell = client._told

        def broken(word, value):
            tell(word, value)
            if word == "commit":
                client._told = tell
                client._channel.break_off(PeerLost("the cable was pulled"))
                tell(word, value)

        client._told = broken
        steps_to(client, 6)
        assert 5 in Store(tmp_path / "client").steps()
        assert 5 in Store(tmp_path / "server" / client.session).steps()


def test_no_more_than_three_steps_are_on_a_disk(tmp_path):
    seen = set()
    with running(tmp_path / "server") as server, client_in(server, tmp_path / "client", every=2) as client:
        for step in range(1, 24):
            steps_to(client, step)
            for folder in (tmp_path / "client", tmp_path / "server" / client.session):
                seen.add(len(Store(folder).steps()))
                assert not list(folder.glob("*.part"))
    assert max(seen) <= 3
    assert Store(tmp_path / "client").steps()[-2:] == [22, 23]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def _dying_at(step, *, before):
    save = Past.save

    def saved(self, half):
        if before and half.committed == step:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, half)
        if half.committed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Past.save = saved


def serve_and_die(address, folder, step, before):
    _dying_at(step, before=before)
    serve(address, folder)


def train_and_die(address, folder, steps, journal, options, step, before):
    _dying_at(step, before=before)
    train(address, folder, steps, journal, options)


def finished(life, seconds=60):
    until = time.monotonic() + seconds
    while life.is_alive:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twelve steps of processes that nobody killed."""
    return lives(tmp_path_factory.mktemp("straight"))


def lives(folder, *, dies=None, before=False, damaged=None):
    """Trains twelve steps in two processes; perhaps one dies as it saves step 10, and finds a file damaged."""
    address, options = f"127.0.0.1:{free_port()}", {"chunks": 3, "every": 5, "codec": "ef(block:4)"}
    words = (address, folder / "client", STEPS, folder / "journal", options)
    server = Life(serve, address, folder / "server")
    if dies == "server":
        server.kill()
        server = Life(serve_and_die, address, folder / "server", 10, before)
    client = Life(train_and_die, *words, 10, before) if dies == "client" else Life(train, *words)
    if dies is not None:
        finished(server if dies == "server" else client)
        (client if dies == "server" else server).kill()  # so that both begin from their files
        (session,) = [path for path in (folder / "server").iterdir() if path.is_dir()]
        if damaged is not None:
            Sides(folder, session.name).damage(damaged, 5)
        server, client = Life(serve, address, folder / "server"), Life(train, *words)
    finished(client)
    assert client.process.exitcode == 0
    server.terminate()
    (session,) = [path for path in (folder / "server").iterdir() if path.is_dir()]
    return [Store(place).load(STEPS) for place in (folder / "client", session)]


@pytest.mark.parametrize("damaged", [None, "client", "server"])
@pytest.mark.parametrize("before", [True, False], ids=["before its save", "after its save"])
@pytest.mark.parametrize("dies", ["client", "server"])
def test_kill_9_around_the_two_saves_and_a_damaged_step_change_nothing(tmp_path, straight, dies, before, damaged):
    for found, expected in zip(lives(tmp_path, dies=dies, before=before, damaged=damaged), straight, strict=True):
        assert found.plain == expected.plain
        assert found.tensors.keys() == expected.tensors.keys()
        assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())
