"""A recipe trained with a server: the client of its two ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from thinpipe.errors import NotFiniteError
from thinpipe.links.net.keys import ClientKeys, read_pair, read_public
from thinpipe.remote.client import GIVE_UP, Client
from thinpipe.remote.terms import CUTS
from thinpipe.train.data import Data
from thinpipe.train.offers import offer_name
from thinpipe.train.parts import example, optimizer, parts
from thinpipe.train.per_cut import per_cut
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings
from thinpipe.train.updates import verify_loss, verify_weights


class Connected(Client):
    """The client of a recipe; a loss, gradients or weights that are not finite end its training at a good step."""

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss; see ``Client.step``.

        Raises:
            NotFiniteError: the loss or the gradients are not finite; both sides go back to the last step they saved.
        """
        with self._rolled_back():
            return super().step(inputs, targets, lr=lr, clip=clip)

    def save(self) -> None:
        """Has both sides save now.

        Raises:
            NotFiniteError: weights of this side are not finite; both sides go back to the last step they saved.
        """
        if self._check is not None:
            with self._rolled_back():
                verify_weights(self)
        super().save()

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        try:
            yield
        except NotFiniteError:
            self.roll_back()
            raise


def verify_step(loss: Tensor, norm: float | None) -> None:
    """Checks a step before it is kept.

    Raises:
        NotFiniteError: its loss or the norm of its gradients is not finite.
    """
    verify_loss(loss)
    if norm is not None and not math.isfinite(norm):
        raise NotFiniteError(f"the norm of all gradients is {norm}")


def connected(recipe: Recipe, settings: Settings, *, data: Data, folder: Path, trace: Path | None = None) -> Connected:
    """Connects to a server that lends the recipe's middle.

    Args:
        recipe: what to train.
        settings: where the server is, and how to talk to it.
        data: its samples, which are asked for again where a step has to be repeated.
        folder: where the client's states are saved; with one that has some, it goes on from the last.
        trace: the file that gets a trace of both sides (default: none).

    Raises:
        ThinpipeError: there is no server, or it refuses.
    """
    assert settings.connect is not None
    own = parts(recipe)
    keys = None
    if settings.key is not None and settings.server is not None:
        keys = ClientKeys(read_pair(settings.key), read_public(settings.server))
    return Connected(
        own.first,
        own.last,
        connect=settings.connect,
        offer=offer_name(recipe),
        loss_fn=own.loss_fn,
        optimizer=optimizer(recipe),
        chunks=recipe.chunks,
        codec=per_cut(settings.codec, CUTS),
        grad_codec=per_cut(settings.grad_codec, CUTS),
        schedule=settings.order,
        keys=keys,
        folder=folder,
        every=settings.steps_between,
        seed=recipe.seed,
        device=settings.device,
        bandwidth=settings.rate(),
        example=example(recipe),
        batches=data.batch,
        give_up=GIVE_UP if settings.give_up is None else settings.give_up,
        trace=trace,
        check=verify_step if recipe.on_nan == "stop" else None,
    )
