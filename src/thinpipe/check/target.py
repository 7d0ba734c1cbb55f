"""Finds the user's factory, ``package.module:factory`` or ``path/to/file.py:factory``, and calls it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from thinpipe.errors import ThinpipeError
from thinpipe.stages.split import verify_sequential


class UsageError(ThinpipeError, ValueError):
    """A command line, or a factory, from which no check can be made."""


@dataclass(frozen=True)
class Target:
    """What a factory returned.

    Args:
        model: the model.
        inputs: an example batch; ``None`` if the factory returned none.
        loss: what makes a scalar of the outputs; ``None`` if the factory returned none.
    """

    model: nn.Module
    inputs: Any = None
    loss: Callable[[Any], Tensor] | None = None


def load(text: str) -> Target:
    """Imports the factory that the text names, and calls it without arguments.

    Args:
        text: ``package.module:factory`` or ``path/to/file.py:factory``; the current directory is importable.

    Raises:
        UsageError: there is no such factory, or it returns something else than a model, inputs and a loss.
    """
    return _unpacked(_made(factory_of(text), text), text)


def factory_of(text: str) -> Any:
    """Imports what the text names.

    Args:
        text: ``package.module:factory`` or ``path/to/file.py:factory``; the current directory is importable.

    Raises:
        UsageError: there is no such thing.
    """
    place, colon, name = text.rpartition(":")
    if not (place and colon and name):
        raise UsageError(f"{text!r} names no factory; write package.module:factory or path/to/file.py:factory")
    _importable(Path.cwd())
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    return _found(module, name, place)


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; the current directory is {Path.cwd()}")
    _importable(path.resolve().parent)
    name = f"thinpipe_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look a class up by the name of its module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"importing {path} failed: {described(error)}") from error
    return module


def _from_name(name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"importing {name} failed: {described(error)}") from error
        raise UsageError(
            f"there is no module {error.name!r}; install it, or run this in the directory it is in "
            f"(the current directory is {Path.cwd()})"
        ) from error
    except Exception as error:
        raise UsageError(f"importing {name} failed: {described(error)}") from error


def _found(module: ModuleType, name: str, place: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    own = [
        key
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    offer = f"it has {', '.join(sorted(own))}" if own else "it defines no function that could be one"
    raise UsageError(f"{place} has no {name!r}; {offer}")


def _made(found: Any, text: str) -> Any:
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UsageError(f"{text} is a {type(found).__name__}; name a function that returns the model")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UsageError(
            f"{text} cannot be called without arguments: {error}; "
            "write a small function that calls it with the arguments you train with"
        ) from error
    except ValueError:
        pass  # a callable written in C has no signature to ask
    try:
        return found()
    except Exception as error:
        raise UsageError(f"{text} failed: {described(error)}") from error


def _unpacked(made: Any, text: str) -> Target:
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(f"{text} must return model, (model, inputs) or (model, inputs, loss_fn), got ({kinds})")
    if len(parts) == 3 and not callable(parts[2]):
        raise UsageError(f"the loss_fn that {text} returns must be a function of the outputs, got {parts[2]!r}")
    if isinstance(parts[0], nn.Sequential):
        try:
            verify_sequential(parts[0])
        except ThinpipeError as error:
            raise UsageError(f"the model that {text} returns cannot be cut: {error}") from error
    if isinstance(parts[0], nn.Sequential) and not list(parts[0].children()):
        raise UsageError(f"the model that {text} returns has no layers")
    return Target(*parts)


def described(error: BaseException) -> str:
    """Tells an error in a line: its kind, its message, and where in a pipe it was raised."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    return " ".join(f"{type(error).__name__}: {error}{notes}".split())
