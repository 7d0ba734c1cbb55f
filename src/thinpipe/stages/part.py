"""A stage made of some of a model's modules, which keep the names that they have in the whole model.

::

    model            part 0           part 1             grafted([part 0, part 1])
      bert             bert             bert               bert
        embeddings       embeddings                          embeddings
        encoder          encoder          encoder            encoder
          0, 1             0                1                  0, 1
      classifier                        classifier         classifier

So a part's ``state_dict`` is a part of the model's, and several parts of one rank are the model again, as far as the
rank has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from torch import Tensor, nn

from thinpipe.errors import SplitError


class Part(nn.Module):
    """A stage of a model that is no sequence.

    Args:
        body: the stage's modules, in a tree with the model's names.
        run: makes of what enters the stage what leaves it.
    """

    _run: Callable[[Any], Any]

    def __init__(self, body: nn.Module, run: Callable[[Any], Any]) -> None:
        super().__init__()
        # The body's own dictionaries, not copies: whoever puts something else in a place, as a worker does with
        # parameters, does so for both.
        self._modules, self._parameters, self._buffers = body._modules, body._parameters, body._buffers
        self._non_persistent_buffers_set = body._non_persistent_buffers_set
        self.training = body.training
        self._run = run

    def forward(self, value: Any) -> Any:
        """Computes the stage."""
        return self._run(value)


class Branch(nn.Module):
    """Holds what several parts have under one name; it computes nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            raise SplitError(
                f"'{name}' cannot be replaced here, since the stages would go on using the old one; replace it in the "
                "model, and split that again"
            )
        super().__setattr__(name, value)


class Copies(Branch):
    """Copies of one frozen module, of which several parts have one each: shows the first, and loads and moves them all.

    Args:
        copies: the modules.
    """

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        self._copies = tuple(copies)
        self._parameters, self._buffers = copies[0]._parameters, copies[0]._buffers
        self._non_persistent_buffers_set = copies[0]._non_persistent_buffers_set
        self.training = copies[0].training

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Tells all of them whether they are in training."""
        for each in self._copies:
            each.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002 - likewise
        for each in self._copies:
            each._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self._copies[0]._load_from_state_dict(*args)
        self.make_equal()

    def make_equal(self) -> None:
        """Gives all of them what the first one has."""
        for each in self._copies[1:]:
            each.load_state_dict(self._copies[0].state_dict())


def grafted(trees: Sequence[nn.Module]) -> nn.Module:
    """Joins trees of modules to one that has everything under the name it has in any of them."""
    if _are_copies(trees):
        return Copies(trees)
    branch = Branch()
    for name in dict.fromkeys(name for tree in trees for name in tree._modules):
        found = _different(tree._modules.get(name) for tree in trees)
        branch._modules[name] = found[0] if len(found) == 1 else grafted(found)
    for tree in trees:
        branch._parameters.update(tree._parameters)
        branch._buffers.update(tree._buffers)
        branch._non_persistent_buffers_set |= tree._non_persistent_buffers_set
    branch.training = any(tree.training for tree in trees)
    return branch


def _are_copies(trees: Iterable[nn.Module]) -> bool:
    """Tells whether trees have different parameters under one name; a shared parameter is the same in all of them."""
    found: dict[str, nn.Parameter | None] = {}
    return any(
        found.setdefault(name, parameter) is not parameter
        for tree in trees
        for name, parameter in tree._parameters.items()
    )


def _different(modules: Iterable[nn.Module | None]) -> list[nn.Module]:
    return list({id(module): module for module in modules if module is not None}.values())


def settle(container: nn.Module) -> None:
    """Gives a container whose children were told to train, or not to, behind its back the mode they have."""
    modes = [child.training for child in container.children()]
    if modes:
        container.training = any(modes)


def names_apart(trees: Sequence[nn.Module], prefix: str = "") -> list[list[str]]:
    """Lists the names of the modules that each of some trees has, as far up as no other tree has one of that name."""
    names: list[list[str]] = [[] for _ in trees]
    for name in dict.fromkeys(name for tree in trees for name in tree._modules):
        owners = [j for j, tree in enumerate(trees) if tree._modules.get(name) is not None]
        children = [trees[j]._modules[name] for j in owners]
        if len(_different(children)) == 1:
            found = [[f"{prefix}{name}"] for _ in owners]
        else:
            found = names_apart([child for child in children if child is not None], f"{prefix}{name}.")
        for j, more in zip(owners, found, strict=True):
            names[j] += more
    return names
