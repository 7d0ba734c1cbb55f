"""Keys: in files, and between ends that do or do not trust each other."""

import os
import re
import stat
from pathlib import Path

import pytest
import torch

from links.net.ends import WAIT, Taken, all_keys, random_bytes, server, threads, until
from thinpipe.errors import AuthError, KeyFileError, PeerLost
from thinpipe.links import Meter
from thinpipe.links.net import ClientKeys, KeyPair, ServerKeys, dial, make_keys, read_pair, read_public


@pytest.fixture(autouse=True)
def _no_secret_is_logged(caplog, tmp_path):
    caplog.set_level("DEBUG", "thinpipe")
    yield
    for path in filter(Path.is_file, tmp_path.rglob("*.key")):
        secret = path.read_text().splitlines()[-1].partition('"')[2].strip('"\n')
        assert len(secret) < 40 or secret not in caplog.text


def test_keys_are_written_for_their_owner_only_and_read_back(tmp_path):
    old = os.umask(0)
    try:
        pair = make_keys(tmp_path / "new", "alice")
    finally:
        os.umask(old)
    secret_file, public_file = tmp_path / "new/alice.key", tmp_path / "new/alice.pub"
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(public_file.stat().st_mode) == 0o644
    assert read_pair(secret_file) == pair
    assert read_public(public_file) == read_public(str(secret_file)) == read_public(pair.public) == pair.public
    assert pair.secret not in public_file.read_text()


def test_a_secret_is_never_printed(tmp_path):
    keys, clients = all_keys(tmp_path, "alice")
    for thing in (keys, keys.own, clients["alice"]):
        assert keys.own.secret not in repr(thing)
        assert clients["alice"].own.secret not in str(thing)
    with pytest.raises(KeyFileError) as told:
        KeyPair(keys.own.public, keys.own.secret + "x")
    assert keys.own.secret not in str(told.value)


def test_keys_are_never_overwritten(tmp_path):
    pair = make_keys(tmp_path, "alice")
    with pytest.raises(KeyFileError, match=r"alice\.pub exists already"):
        make_keys(tmp_path, "alice")
    (tmp_path / "alice.pub").unlink()
    with pytest.raises(KeyFileError, match=r"alice\.key exists already"):
        make_keys(tmp_path, "alice")
    (tmp_path / "bob.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match=r"bob\.key exists already"):
        make_keys(tmp_path, "bob")
    assert read_pair(tmp_path / "alice.key") == pair
    for name in ("", "../up", "a/b", "."):
        with pytest.raises(KeyFileError, match="not a name"):
            make_keys(tmp_path, name)


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    make_keys(tmp_path, "alice")
    for mode in (0o640, 0o604, 0o660):
        (tmp_path / "alice.key").chmod(mode)
        with pytest.raises(KeyFileError, match="chmod 600"):
            read_pair(tmp_path / "alice.key")


def test_damaged_key_files_are_refused(tmp_path):
    pair, other = make_keys(tmp_path, "alice"), make_keys(tmp_path, "bob")
    path = tmp_path / "alice.key"
    for text in ("", "public = 3", f'public = "{pair.public}"', "\0" * 5000, "ä" * 40, pair.public[:39]):
        path.write_bytes(text.encode())
        with pytest.raises(KeyFileError):
            read_pair(path)
    path.write_text(f'public = "{other.public}"\nsecret = "{pair.secret}"\n')
    with pytest.raises(KeyFileError, match="do not belong together"):
        read_pair(path)
    for source in (tmp_path / "nobody.pub", "no key", tmp_path):
        with pytest.raises(KeyFileError, match="cannot read a key"):
            read_public(source)


def test_the_right_keys_open_a_channel_that_knows_its_client(tmp_path):
    keys, clients = all_keys(tmp_path, "alice", "bob")
    with server(keys=keys) as hub:
        for name in ("bob", "alice"):
            client, channel = hub.meet(keys=clients[name])
            assert channel.peer == f"client '{name}'"
            assert channel.key == clients[name].own.public
            assert client.key is None
            client.close()


def test_a_keyed_server_may_listen_to_everybody(tmp_path):
    keys, clients = all_keys(tmp_path, "alice")
    with server("0.0.0.0:0", keys=keys) as hub:
        port = hub.address.rpartition(":")[2]
        hub.address = f"127.0.0.1:{port}"
        hub.meet(keys=clients["alice"])


def test_a_client_that_expects_another_server_is_told(tmp_path, caplog):
    keys, clients = all_keys(tmp_path, "alice")
    other = make_keys(tmp_path, "other")
    with server(keys=keys) as hub:
        with pytest.raises(AuthError, match=f"has not got the key .{{0,2}}{_escaped(other.public)}"):
            dial(hub.address, keys=ClientKeys(clients["alice"].own, other.public))
        until(lambda: "was refused" in caplog.text or "closed during the handshake" in caplog.text)
    assert threads() == []


def test_a_client_that_the_server_does_not_know_is_told(tmp_path, caplog):
    keys, clients = all_keys(tmp_path, "alice")
    mallory = make_keys(tmp_path, "mallory")
    with server(keys=keys) as hub:
        with pytest.raises(AuthError, match=f"does not accept the client's key {_escaped(mallory.public)}"):
            dial(hub.address, keys=ClientKeys(mallory, keys.own.public))
        assert f"with the unknown key {mallory.public[:8]}... was refused" in caplog.text
        assert mallory.public not in caplog.text
        assert hub.accepted.empty()
        hub.meet(keys=clients["alice"])


def test_a_client_without_keys_and_a_server_with_keys_do_not_meet(tmp_path, caplog):
    keys, _ = all_keys(tmp_path, "alice")
    with server(keys=keys) as hub:
        with pytest.raises((AuthError, PeerLost), match="keys"):
            dial(hub.address)
        until(lambda: "was refused" in caplog.text or "closed during the handshake" in caplog.text)


def test_a_client_with_keys_and_a_server_without_do_not_meet(tmp_path, caplog):
    _, clients = all_keys(tmp_path, "alice")
    with server() as hub:
        with pytest.raises(AuthError, match=r"none; start it with keys|no keys at all"):
            dial(hub.address, keys=clients["alice"])
        until(lambda: "was refused" in caplog.text or "closed during the handshake" in caplog.text)


def test_keys_can_be_given_and_withdrawn_while_the_server_runs(tmp_path):
    keys, clients = all_keys(tmp_path, "alice", "bob")
    alice, bob = clients["alice"], clients["bob"]
    with server(keys=ServerKeys(keys.own, {alice.own.public: "alice"})) as hub:
        with pytest.raises(AuthError):
            dial(hub.address, keys=bob)
        first, _ = hub.meet(keys=alice)
        hub.listener.allow({bob.own.public: "robert"})
        with pytest.raises(PeerLost, match="its key was withdrawn"):
            first.hear(WAIT)
        _, channel = hub.meet(keys=bob)
        assert channel.peer == "client 'robert'"
        with pytest.raises(AuthError):
            dial(hub.address, keys=alice)


def test_messages_are_the_same_through_the_encryption(tmp_path):
    keys, clients = all_keys(tmp_path, "alice")
    with server(keys=keys) as hub:
        client, channel = hub.meet(keys=clients["alice"])
        taken, lane = Taken(channel, 1), client.sender(1, Meter())
        for size in (0, 1, 262_144, 5_000_000):
            lane.send([random_bytes(size)])
            assert torch.equal(taken.next(), random_bytes(size))


def _escaped(key):
    return re.escape(key[:8])
