"""A recipe trained with a server: the client of its two ends."""

from __future__ import annotations

from pathlib import Path

from thinpipe.links.net.keys import ClientKeys, read_pair, read_public
from thinpipe.remote.client import GIVE_UP, Client
from thinpipe.remote.terms import CUTS
from thinpipe.train.data import Data
from thinpipe.train.offers import offer_name
from thinpipe.train.parts import example, optimizer, parts
from thinpipe.train.per_cut import per_cut
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings


def connected(recipe: Recipe, settings: Settings, *, data: Data, folder: Path, trace: Path | None = None) -> Client:
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
    return Client(
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
    )
