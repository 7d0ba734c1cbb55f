"""Packages that thinpipe does without until something needs them, and the extras that install them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from thinpipe.errors import MissingPackageError


@dataclass(frozen=True)
class _Package:
    """A package.

    Args:
        name: on the index.
        extras: of thinpipe, each of which installs it.
    """

    name: str
    extras: tuple[str, ...]


_PACKAGES = {
    "PIL": _Package("Pillow", ("data",)),
    "peft": _Package("peft", ("lora",)),
    "prometheus_client": _Package("prometheus-client", ("net",)),
    "safetensors": _Package("safetensors", ("data", "net")),
    "sklearn": _Package("scikit-learn", ("data",)),
    "tensorboard": _Package("tensorboard", ("board",)),
    "transformers": _Package("transformers", ("hf", "lora")),
    "zmq": _Package("pyzmq", ("net",)),
    "zstandard": _Package("zstandard", ("zstd",)),
}
"""By the names that are imported."""


def need(what: str, *modules: str) -> None:
    """Makes sure that packages are installed, all that something needs at once.

    Args:
        what: needs them, as ``thinpipe demo``.
        modules: the names that are imported, as ``zmq``.

    Raises:
        MissingPackageError: some are not; the message has all of them, and the command that installs them.
    """
    missing = [_PACKAGES[module] for module in dict.fromkeys(modules) if find_spec(module) is None]
    if not missing:
        return
    # What only one extra has comes first: another package may be in that one, too.
    extras: list[str] = []
    for package in sorted(missing, key=lambda each: len(each.extras)):
        if not set(package.extras) & set(extras):
            extras.append(package.extras[0])
    names = [package.name for package in missing]
    listed = f"{', '.join(names[:-1])} and {names[-1]} are" if names[1:] else f"{names[0]} is"
    raise MissingPackageError(
        f"{listed} not installed, needed for {what}; run: pip install 'thinpipe[{','.join(extras)}]'"
    )
