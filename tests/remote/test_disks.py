"""Disks that are full, folders that cannot be written, and two processes that want the same one."""

import logging
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from links.net.ends import until
from remote.lives import Life, free_port, serve
from remote.models import batch, offer
from remote.strangers import client_of, states, verify_same_states
from thinpipe.checkpoint import disk
from thinpipe.errors import BusyError, CheckpointError, DamagedError, DiskError, FolderError
from thinpipe.remote.saved import Store
from thinpipe.remote.server import Server
from thinpipe.remote.troubles import reason_for_others

OPTIONS = {"chunks": 2, "every": 5, "codec": "ef(block:4)", "offer": "dropping"}
WAITING = "no space left on its disk; waiting, trying again every 10 s"


def running(folder=None, **options):
    offers = {"dropping": offer(dropout=0.2), "middle": offer()}
    return Server(offers, folder=folder, **{"listen": "127.0.0.1:0"} | options)


def steps_of(client, steps):
    return [client.step(*batch(client.committed)).item() for _ in range(steps)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Twelve steps that nothing happened to: their losses, and what both sides have in the end."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("calm")
    with running(folder) as server, client_of(server, **OPTIONS) as client:
        losses = steps_of(client, 12)
    return losses, states(client, folder)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(disk, "SHORTEST", 0.05)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("nobody may mount a small disk here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder):
    with pytest.raises(OSError, match="No space left"):
        (folder / "filling").write_bytes(bytes(2**21))
    return folder / "filling"


class Stepping(threading.Thread):
    """Trains some steps beside the test."""

    def __init__(self, client, steps):
        super().__init__()
        self.client, self.steps, self.losses = client, steps, []
        self.start()

    def run(self):
        self.losses = steps_of(self.client, self.steps)


def messages(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_a_server_with_a_full_disk_says_so_and_training_goes_on_from_there_when_there_is_room(small_disk, calm, caplog):
    with running(small_disk / "server") as server, client_of(server, **OPTIONS) as client:
        losses = steps_of(client, 4)
        filling = fill(small_disk)
        others = sorted((small_disk / "server" / client.session).iterdir())
        stepping = Stepping(client, 8)
        until(lambda: messages(caplog, WAITING))
        time.sleep(1.0)  # several attempts
        assert stepping.is_alive() and client.committed == 5
        assert sorted((small_disk / "server" / client.session).iterdir()) == others  # nothing is left of them
        (said,) = messages(caplog, WAITING)  # once, however often it was tried
        assert re.fullmatch(rf"the server at \S+ cannot save step 5: {WAITING}", said)
        (logged,) = messages(caplog, "could not be saved")
        assert str(small_disk) in logged and logged.startswith("anonymous, session")
        filling.unlink()
        stepping.join()
        assert losses + stepping.losses == calm[0]
        assert messages(caplog, "there is room again; going on after step")
        assert messages(caplog, "step 5 is saved, and training goes on")
    verify_same_states(states(client, small_disk / "server"), calm[1])
    assert not any(record.exc_info for record in caplog.records)


def test_a_client_with_a_full_disk_says_so_on_both_sides_and_goes_on_from_there(small_disk, tmp_path, calm, caplog):
    with running(tmp_path / "server") as server, client_of(server, folder=small_disk / "client", **OPTIONS) as client:
        losses = steps_of(client, 4)
        filling = fill(small_disk)
        stepping = Stepping(client, 8)
        until(lambda: len(messages(caplog, WAITING)) == 2)
        time.sleep(1.0)
        assert stepping.is_alive()
        own, told = sorted(messages(caplog, WAITING), key=len)
        assert own == f"this client cannot save step 5: {WAITING}"
        assert re.fullmatch(rf"anonymous, session {client.session[:8]}: {own}", told)
        filling.unlink()
        stepping.join()
        assert losses + stepping.losses == calm[0]
        assert server.counters.replays == 0
    verify_same_states(states(client, tmp_path / "server"), calm[1])


def test_a_client_is_closed_when_its_server_has_room_again(small_disk, calm, caplog):
    with running(small_disk / "server") as server:
        client = client_of(server, **OPTIONS)
        steps_of(client, 12)
        filling = fill(small_disk)
        closing = threading.Thread(target=client.close)
        closing.start()
        until(lambda: messages(caplog, WAITING))
        assert closing.is_alive()
        filling.unlink()
        closing.join()
    verify_same_states(states(client, small_disk / "server"), calm[1])


def test_ctrl_c_ends_a_client_that_waits_for_its_server(small_disk):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from remote.strangers import client_of\nfrom remote.models import batch\n"
        "class Server: address = sys.argv[1]\n"
        "with client_of(Server, every=2) as client:\n"
        "    for step in range(4): client.step(*batch(step)); print(step, flush=True)\n"
    )
    with running(small_disk / "server") as server:
        words = [sys.executable, "-c", script, server.address, str(Path(__file__).parents[1])]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert client.stdout.readline() == "0\n"
            fill(small_disk)
            while WAITING not in (line := client.stderr.readline()):
                assert line, "it ended"
            client.send_signal(signal.SIGINT)
            _, said = client.communicate(timeout=20)
            assert "KeyboardInterrupt" in said
        finally:
            client.kill()


def test_a_session_that_cannot_be_saved_is_kept_and_makes_no_room(small_disk, calm, caplog):
    # It was let go of, and what it had learned since its last save with it.
    with running(small_disk / "server", max_clients=1, idle=1.0) as server, client_of(server, **OPTIONS) as client:
        losses = steps_of(client, 4)
        filling = fill(small_disk)
        until(lambda: server.statuses()[0].step == 4)  # the last commit may be on its way
        client._lose()
        until(lambda: "could not be saved" in caplog.text)
        with pytest.raises(BusyError, match="that is away cannot be saved"):
            client_of(server)
        filling.unlink()
        losses += steps_of(client, 8)
        assert server.counters.replays == 0
    assert losses == calm[0]


# -- where nobody may mount anything: a limit on the size of files -----------------------------------------------------


def serve_small_files(address, folder):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))
    signal.signal(signal.SIGUSR2, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard)))
    serve(address, folder)


def test_a_server_that_may_not_write_large_files_waits_until_it_may(tmp_path, caplog):
    address = f"127.0.0.1:{free_port()}"
    life = Life(serve_small_files, address, tmp_path / "server")

    class There:
        pass

    There.address = address
    options = {"chunks": 2, "every": 5, "offer": "middle", "parts": None}
    until(lambda: (tmp_path / "server").exists())
    client = _patiently(lambda: client_of(There, **options))
    losses = steps_of(client, 3)
    os.kill(life.process.pid, signal.SIGUSR2)
    stepping = Stepping(client, 5)
    until(lambda: messages(caplog, "waiting, trying again"))
    (said,) = messages(caplog, "waiting, trying again")
    assert "cannot save step 5: a file larger than its disk allows; waiting" in said
    assert Store(tmp_path / "server" / client.session).steps() == [0]
    os.kill(life.process.pid, signal.SIGUSR1)
    stepping.join()
    client.close()
    life.terminate()
    assert len(losses + stepping.losses) == 8
    assert Store(tmp_path / "server" / client.session).steps() == [5, 8]
    assert not list((tmp_path / "server").rglob(".unfinished-*"))


def _patiently(make):
    for _ in range(100):
        try:
            return make()
        except OSError:
            time.sleep(0.1)
    return make()


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path):
    """A folder that not even root may write."""
    place = tmp_path / "read-only"
    place.mkdir()
    (place / "inside").mkdir()
    for words in (["--bind", str(place), str(place)], ["-o", "remount,ro,bind", str(place)]):
        if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
            pytest.skip("nobody may mount anything here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("inside", ["", "inside", "new"])
def test_a_read_only_folder_is_noticed_when_a_server_starts(read_only, inside):
    with pytest.raises(FolderError, match=r"read-only\S* cannot be written: Read-only file system; choose another"):
        running(read_only / inside)


def test_a_folder_below_a_file_is_noticed_when_a_server_or_a_client_starts(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FolderError, match=f"{tmp_path / 'file' / 'below'} cannot be written"):
        running(tmp_path / "file" / "below")
    with running() as server, pytest.raises(FolderError, match="cannot be written"):
        client_of(server, folder=tmp_path / "file" / "below")


def test_a_second_server_on_one_folder_is_refused_with_the_pid_of_the_first(tmp_path):
    life = Life(serve, f"127.0.0.1:{free_port()}", tmp_path / "server")
    until(lambda: (tmp_path / "server" / ".lock").exists() and (tmp_path / "server" / ".lock").read_text())
    with pytest.raises(FolderError, match=rf"another process \(pid {life.process.pid}\) uses .*choose another folder"):
        running(tmp_path / "server")
    life.kill()  # the lock dies with its process
    with running(tmp_path / "server") as server, client_of(server) as client:
        steps_of(client, 1)
        with pytest.raises(FolderError, match=rf"this process \(pid {os.getpid()}\) uses"):
            running(tmp_path / "server")
    assert [path.name for path in (tmp_path / "server").iterdir()] == [client.session]


def test_two_clients_do_not_train_in_one_folder(tmp_path):
    with running() as server:
        with client_of(server, folder=tmp_path / "client") as client:
            with pytest.raises(FolderError, match=r"uses .*client already; choose another folder"):
                client_of(server, folder=tmp_path / "client")
            steps_of(client, 1)
        with client_of(server, folder=tmp_path / "client") as client:
            assert client.committed == 1


def test_a_client_that_is_refused_leaves_no_folder_behind(tmp_path):
    with running() as server, pytest.raises(Exception, match="not offered"):
        client_of(server, folder=tmp_path / "client", offer="midle")
    assert not (tmp_path / "client").exists()


def test_of_many_processes_one_has_a_folder_at_a_time(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["thinpipe.checkpoint.disk"])
    gate, inside, held = context.Barrier(4), context.Value("i", 0), context.Value("i", 0)
    crowd = [context.Process(target=_enter, args=(tmp_path / "one", gate, inside, held)) for _ in range(4)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
        assert process.exitcode == 0
    assert held.value > 10
    assert not (tmp_path / "one" / ".lock").exists()


def _enter(folder, gate, inside, held):
    gate.wait()
    for _ in range(200):
        try:
            lock = disk.FolderLock(folder, "")
        except FolderError as error:
            assert error.is_busy, error
            continue
        with inside.get_lock():
            inside.value += 1
            assert inside.value == 1, "two have it"
        time.sleep(0.0005)
        with inside.get_lock():
            inside.value -= 1
        with held.get_lock():
            held.value += 1
        lock.release()


def test_until_written_passes_on_what_is_not_the_disks_fault(caplog):
    def wrong():
        raise ValueError("no disk is to blame")

    with pytest.raises(ValueError, match="no disk"):
        disk.until_written("step 1", wrong)
    assert not caplog.records
    left = [OSError(28, "No space left on device"), OSError(30, "Read-only file system")]

    def late():
        if left:
            raise left.pop(0)
        return 7

    with caplog.at_level(logging.WARNING):
        assert disk.until_written("step 1", late, who="this client") == 7
    assert [record.getMessage() for record in caplog.records] == [
        f"this client cannot save step 1: {WAITING}",
        "this client cannot save step 1: its disk is read-only; waiting, trying again every 10 s",
        "this client has saved step 1, and goes on",
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DiskError("step 5 could not be saved in /srv/a/b: full", "no space left"), "no space left"),
        (DamagedError("/srv/a/step-00000005 is damaged", "a file is missing"), "a file is missing"),
        (CheckpointError("/srv/a/manifest.json is of format 7"), "manifest.json is of format 7"),
        (FileNotFoundError(2, "Not there", "/home/bob/x.txt"), "FileNotFoundError: [Errno 2] Not there: 'x.txt'"),
        (RuntimeError("wave:4/32 at 10 kbit/s"), "RuntimeError: wave:4/32 at 10 kbit/s"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_folders_of_a_server_are_not_told_to_its_clients(error, told):
    assert reason_for_others(error) == told
