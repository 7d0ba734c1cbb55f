"""Skip connections: a layer stashes a tensor by name, a later layer pops it, and no layer between carries it.

::

    @skippable(stash=["early"])
    class Begin(nn.Module):
        def forward(self, x):
            yield stash("early", x)
            return self.conv(x)

    @skippable(pop=["early"])
    class End(nn.Module):
        def forward(self, x):
            early = yield pop("early")
            return self.conv(x) + early

The names are declared ahead, so a pipeline knows before it runs which stage sends what to which. Without a pipeline the
same layers work in a plain ``nn.Sequential``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

from torch import Tensor, nn

from thinpipe.errors import SkipError, SkipUseError


@dataclass(frozen=True)
class Namespace:
    """Keeps equal names apart: skips isolated in different namespaces never meet. A copied layer stays in its own."""

    id: uuid.UUID = field(default_factory=uuid.uuid4)


SkipKey: TypeAlias = tuple[Namespace | None, str]
"""A skip's full name; ``None`` is the namespace of those that were not isolated."""


@dataclass(frozen=True)
class stash:  # noqa: N801 - written as a command in a layer's forward
    """Yielded by a layer to stash a tensor under a declared name.

    Args:
        name: one of the names declared as ``stash=``.
        tensor: what the popping layer gets; ``None`` is allowed.
    """

    name: str
    tensor: Tensor | None


@dataclass(frozen=True)
class pop:  # noqa: N801 - written as a command in a layer's forward
    """Yielded by a layer to get what was stashed under a declared name.

    Args:
        name: one of the names declared as ``pop=``.
    """

    name: str


class SkipStore:
    """Holds what was stashed and not popped yet, in one pass over some layers."""

    def __init__(self, stashed: dict[SkipKey, Any] | None = None) -> None:
        self.stashed: dict[SkipKey, Any] = dict(stashed or {})


class _Current(threading.local):
    def __init__(self) -> None:
        self.store = SkipStore()


_current = _Current()


@contextmanager
def skips_in(store: SkipStore) -> Iterator[None]:
    """Makes the layers that run inside, in this thread, stash to and pop from the store."""
    before = _current.store
    _current.store = store
    try:
        yield
    finally:
        _current.store = before


class Skippable(nn.Module):
    """A layer that may stash and pop; made by the ``skippable`` decorator, not by hand."""

    module_cls: ClassVar[type[nn.Module]]
    stashable_names: ClassVar[frozenset[str]]
    poppable_names: ClassVar[frozenset[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.module_cls(*args, **kwargs)
        self.namespaces: dict[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

    def isolate(self, ns: Namespace, *, only: Iterable[str] | None = None) -> Self:
        """Puts this layer's skips into a namespace, so that other layers may use the same names.

        Args:
            ns: the namespace; the stashing and the popping layer need the same one.
            only: the names to isolate (default: all that this layer declares).
        """
        declared = self.stashable_names | self.poppable_names
        names = declared if only is None else set(only)
        if names - declared:
            raise SkipUseError(
                f"{_quoted(names - declared)} not declared by this layer; it declares {_quoted(declared)}"
            )
        self.namespaces.update(dict.fromkeys(names, ns))
        return self

    def stashable(self) -> list[SkipKey]:
        """Lists the full names this layer stashes."""
        return [(self.namespaces.get(name), name) for name in sorted(self.stashable_names)]

    def poppable(self) -> list[SkipKey]:
        """Lists the full names this layer pops."""
        return [(self.namespaces.get(name), name) for name in sorted(self.poppable_names)]

    def forward(self, input: Any) -> Any:
        """Runs the layer and serves its stashes and pops.

        Raises:
            SkipUseError: the layer stashed or popped something else than it declared.
        """
        store = _current.store.stashed
        waiting = {name: (ns, name) for ns, name in self.poppable()}
        for key in waiting.values():
            if key not in store:
                raise SkipUseError(f"'{key[1]}' has not been stashed; a layer before this one must stash it")
        stashed: dict[str, Tensor | None] = {}
        output = self._serve(self.module(input), store, waiting, stashed)
        if self.stashable_names - stashed.keys():
            raise SkipUseError(f"{_quoted(self.stashable_names - stashed.keys())} must be stashed but have not")
        if waiting:
            raise SkipUseError(f"{_quoted(waiting)} must be popped but have not")
        for ns, name in self.stashable():
            store[ns, name] = stashed[name]
        return output

    def _serve(
        self, result: Any, store: dict[SkipKey, Any], waiting: dict[str, SkipKey], stashed: dict[str, Tensor | None]
    ) -> Any:
        if not isinstance(result, Generator):
            return result
        answer: Any = None
        while True:
            try:
                command = result.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None
            if isinstance(command, stash):
                if command.name not in self.stashable_names:
                    raise SkipUseError(f"'{command.name}' has not been declared as stashable")
                stashed[command.name] = command.tensor
            elif isinstance(command, pop):
                if command.name not in waiting:
                    raise SkipUseError(
                        f"'{command.name}' was popped twice"
                        if command.name in self.poppable_names
                        else f"'{command.name}' has not been declared as poppable"
                    )
                answer = store.pop(waiting.pop(command.name))
            else:
                raise SkipError(f"{command!r} is not a command from @skippable; yield stash(...) or pop(...)")


def skippable(stash: Iterable[str] = (), pop: Iterable[str] = ()) -> Callable[[type[nn.Module]], type[Skippable]]:
    """Decorates a module class whose forward yields ``stash`` and ``pop`` commands.

    Args:
        stash: the names its forward stashes, each exactly once.
        pop: the names its forward pops, each exactly once.
    """
    stashed, popped = frozenset(stash), frozenset(pop)

    def decorate(module_cls: type[nn.Module]) -> type[Skippable]:
        # The decorated class takes the plain one's name; under a name of its own, as an attribute of the decorated one,
        # the plain class can still be found when a layer is unpickled.
        names = {"__module__": module_cls.__module__, "__qualname__": f"{module_cls.__qualname__}.module_cls"}
        body = {
            "module_cls": type(module_cls.__name__, (module_cls,), names),
            "stashable_names": stashed,
            "poppable_names": popped,
            "__doc__": module_cls.__doc__,
            "__module__": module_cls.__module__,
            "__qualname__": module_cls.__qualname__,
        }
        return type(module_cls.__name__, (Skippable,), body)

    return decorate


def verify_skippables(module: nn.Sequential) -> None:
    """Checks that every stash has one pop after it, and every pop one stash before it.

    ::

        Begin, Middle          'early' is stashed and never popped
        Middle, End            'early' is popped and was never stashed
        Begin, Begin, End      'early' is stashed twice: isolate one of them

    Raises:
        SkipError: with a line for each skip that does not pair up.
    """
    stashed: set[SkipKey] = set()
    popped: set[SkipKey] = set()
    faults: list[str] = []
    for place, layer in skippable_layers(module):
        for name in sorted(layer.stashable_names & layer.poppable_names):
            faults.append(f"'{place}' declared '{name}' both as stashable and as poppable")
        for key in layer.stashable():
            if key[1] in layer.poppable_names:
                continue
            if key in stashed:
                faults.append(f"'{place}' redeclared '{key[1]}' as stashable but not isolated by namespace")
            stashed.add(key)
        for key in layer.poppable():
            if key[1] in layer.stashable_names:
                continue
            if key in popped:
                faults.append(f"'{place}' redeclared '{key[1]}' as poppable but not isolated by namespace")
            elif key not in stashed:
                faults.append(f"'{place}' declared '{key[1]}' as poppable but it was not stashed")
            popped.add(key)
    faults += [f"no module declared '{name}' as poppable but stashed" for _, name in stashed - popped]
    if faults:
        raise SkipError("one or more pairs of stash and pop do not match:\n\n" + "\n".join(f"* {x}" for x in faults))


def skippable_layers(module: nn.Module) -> Iterator[tuple[str, Skippable]]:
    """Finds every skippable layer inside a module, at any depth, in the order of the forward."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, Skippable))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
