"""Keys: who a client or a server is, and whom it trusts.

Each end has a pair of CURVE keys, as 40 characters of Z85 each. The public one may be shown to anybody; the other end
has to know it beforehand. The secret one stays in a file that only its owner can read::

    alice.key    public = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"      mode 0600, for alice
                 secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
    alice.pub    rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7                  mode 0644, for the server
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thinpipe.errors import KeyFileError
from thinpipe.links.net.need import zmq

_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}"
_LINE = re.compile(rf'\s*(public|secret)\s*=\s*"({_Z85})"\s*')
_MOST = 4096  # a file of keys is a few lines; whatever else somebody points at is not read as a whole


@dataclass(frozen=True)
class KeyPair:
    """The keys of one end.

    Args:
        public: may be known to anybody.
        secret: may be known to nobody else; it is not shown when the pair is printed.
    """

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, key in (("public", self.public), ("secret", self.secret)):
            if not _is_key(key):
                raise KeyFileError(f"the {name} key is not one; a key is 40 characters of Z85, got {len(key)}")


@dataclass(frozen=True)
class ServerKeys:
    """What a server needs to know.

    Args:
        own: its own keys.
        clients: the public keys of the clients that may connect, each with the client's name.
    """

    own: KeyPair
    clients: Mapping[str, str]


@dataclass(frozen=True)
class ClientKeys:
    """What a client needs to know.

    Args:
        own: its own keys.
        server: the server's public key; a server that has not got the secret one is not talked to.
    """

    own: KeyPair
    server: str


def make_keys(folder: str | os.PathLike[str], name: str) -> KeyPair:
    """Makes new keys, in the files ``name.key`` (secret and public) and ``name.pub`` of a folder.

    Raises:
        KeyFileError: one of the files exists, and may be somebody's only key; or the name is not that of a file.
    """
    if not name.strip() or Path(name).name != name:
        raise KeyFileError(f"{name!r} is not a name for keys; use a plain one, such as 'alice'")
    Path(folder).mkdir(parents=True, exist_ok=True)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    secret_file, public_file = Path(folder, f"{name}.key"), Path(folder, f"{name}.pub")
    if public_file.exists():
        raise _in_the_way(public_file)
    _write(secret_file, f'public = "{public}"\nsecret = "{secret}"\n', 0o600)
    _write(public_file, f"{public}\n", 0o644)
    return KeyPair(public, secret)


def read_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Reads the keys of this end from its ``.key`` file.

    Raises:
        KeyFileError: the file is not there or not one of keys, or others than its owner can read it.
    """
    lines = map(_LINE.fullmatch, _text(path).splitlines())
    found = {match[1]: match[2] for match in lines if match is not None}
    if set(found) != {"public", "secret"}:
        raise KeyFileError(f"{path} has no pair of keys in it; make one with: thinpipe keygen NAME")
    if os.name == "posix" and (mode := Path(path).stat().st_mode & 0o077):
        raise KeyFileError(
            f"{path} holds a secret key and is open to others (mode {mode:03o} beyond its owner's); "
            f"run: chmod 600 {path}, or make new keys if somebody may have read them"
        )
    pair = KeyPair(**found)
    if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
        raise KeyFileError(f"the two keys in {path} do not belong together; make new ones")
    return pair


def read_public(source: str | os.PathLike[str]) -> str:
    """Reads a public key from a ``.pub`` or ``.key`` file, or from a text that is the key itself.

    Raises:
        KeyFileError: it is neither.
    """
    if isinstance(source, str) and _is_key(source.strip()):
        return source.strip()
    text = _text(source)
    if _is_key(text.strip()):
        return text.strip()
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) and match[1] == "public":
            return match[2]
    raise KeyFileError(f"{source} has no public key in it; a key is 40 characters of Z85")


def _is_key(text: str) -> bool:
    return re.fullmatch(_Z85, text) is not None


def _text(path: str | os.PathLike[str]) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(_MOST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise KeyFileError(f"cannot read a key from {path}: {reason}") from error


def _write(path: Path, text: str, mode: int) -> None:
    try:
        # The file is never there with another mode, and never another's: a link or file in its place is refused.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise _in_the_way(path) from error
    with os.fdopen(handle, "w", encoding="ascii") as file:
        if os.name == "posix":
            os.fchmod(file.fileno(), mode)  # the caller's umask may have taken away what the public file should have
        file.write(text)


def _in_the_way(path: Path) -> KeyFileError:
    return KeyFileError(f"{path} exists already and is not overwritten; use another name, or move it away")
