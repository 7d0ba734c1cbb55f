"""Checks arguments where they come in: what is accepted is what was meant, and what is not is named with its value.

Python takes ``True`` for 1, 2.9 for 2 in ``int()``, any text for true, and a text for a list of its characters. Each of
these would train something else than was asked for, or fail later and elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinpipe.errors import ArgumentError, DeviceError, ThinpipeError
from thinpipe.suggest import nearest

if TYPE_CHECKING:
    import torch


def whole(
    name: str, value: Any, *, least: int = 1, most: int | None = None, error: type[ThinpipeError] = ArgumentError
) -> int:
    """Checks a whole number; NumPy's and PyTorch's are welcome, truth values are not.

    Args:
        name: of the argument.
        value: what was given.
        least: the smallest that is allowed. Default: 1.
        most: the largest that is allowed. Default: any.
        error: raised if it is none. Default: ``ArgumentError``.
    """
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            number = operator.index(value)
            if least <= number and (most is None or number <= most):
                return number
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise error(f"{name} must be a whole number {span}, got {value!r:.100}")


def number(name: str, value: Any, *, above: float | None = None, least: float = 0.0, endless: bool = False) -> float:
    """Checks a number, such as of seconds.

    Args:
        name: of the argument.
        value: what was given.
        above: the number that it must exceed. Default: ``least`` decides.
        least: the smallest that is allowed. Default: 0.
        endless: whether it may be infinite. Default: no.
    """
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        found = math.nan if isinstance(value, bool | str | bytes) else float(value)
        if (found > above if above is not None else found >= least) and (endless or math.isfinite(found)):
            return found
    span = f"above {above:g}" if above is not None else f"of at least {least:g}"
    raise ArgumentError(f"{name} must be a {'' if endless else 'finite '}number {span}, got {value!r:.100}")


def seconds(name: str, value: Any, *, endless: bool = False) -> float:
    """Checks a time that something may take; see ``number``."""
    return number(name, value, above=0.0, endless=endless)


def flag(name: str, value: Any) -> bool:
    """Checks a truth value: a text such as ``"no"`` would be taken for true."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False, got {value!r:.100}")
    return value


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Checks that a text is one of those that are known."""
    names = list(known)
    if value in names:
        return str(value)
    near = nearest(value, names) if isinstance(value, str) else None
    more = "" if near is None else f"; did you mean {near!r}?"
    raise ArgumentError(f"{name} must be one of {', '.join(map(repr, names))}, got {value!r:.100}{more}")


def text(name: str, value: Any) -> str:
    """Checks a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ArgumentError(f"{name} must be a text that is not empty, got {value!r:.100}")
    return value


def function(name: str, value: Any, *, takes: str) -> None:
    """Checks that something can be called.

    Args:
        name: of the argument.
        value: what was given.
        takes: an example for the message, as ``lambda weights: torch.optim.SGD(weights, lr=0.1)``.
    """
    if not callable(value):
        raise ArgumentError(f"{name} must be a function, as {takes}, got {value!r:.100}")


def folder(name: str, value: Any) -> Path:
    """Checks the path of a folder, which need not be there yet."""
    path = _path(name, value)
    if path.exists() and not path.is_dir():
        raise ArgumentError(f"{name} must be a folder, and {str(path)!r} is a file; name another one")
    return path


def file(name: str, value: Any) -> Path:
    """Checks the path of a file to be written, which need not be there yet."""
    path = _path(name, value)
    if path.is_dir():
        raise ArgumentError(f"{name} must be a file, and {str(path)!r} is a folder; name a file in it")
    return path


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise ArgumentError(f"{name} must be a path, got {value!r:.100}")
    return Path(value)


def whole_numbers(name: str, value: Any, *, least: int = 1, error: type[ThinpipeError] = ArgumentError) -> list[int]:
    """Checks a list of whole numbers; see ``whole``."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise error(f"{name} must be a list of whole numbers, as [2, 2], got {value!r:.100}")
    return [whole(f"each of {name}", each, least=least, error=error) for each in value]


def device(name: str, value: Any) -> torch.device:
    """Checks the name of a device.

    Raises:
        DeviceError: there is no such device.
    """
    import torch  # commands check their words without it

    if not isinstance(value, bool):
        with contextlib.suppress(RuntimeError, TypeError, ValueError, AttributeError):
            return torch.device(value)
    raise DeviceError(f"{name} must be a device such as 'cpu' or 'cuda:0', got {value!r:.100}")
