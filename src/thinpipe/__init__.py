"""thinpipe: PyTorch models cut into pipeline stages, as transparent as on one device."""

from typing import TYPE_CHECKING, Any

from thinpipe import balance, skip
from thinpipe.codecs import Codec, Packet, codec, compress, decode
from thinpipe.cutting import split
from thinpipe.data.replicas import ReplicaBatches
from thinpipe.errors import ThinpipeError
from thinpipe.runtime.heap import keep_memory
from thinpipe.runtime.joining import join
from thinpipe.runtime.pipe import Pipe
from thinpipe.runtime.pipeline import Pipeline
from thinpipe.stages.microbatch import NoChunk
from thinpipe.stages.parts import Split
from thinpipe.stages.phase import is_checkpointing, is_recomputing

if TYPE_CHECKING:
    from thinpipe.remote.client import Client as Client
    from thinpipe.remote.offer import Offer as Offer
    from thinpipe.remote.server import Server as Server

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Codec",
    "NoChunk",
    "Offer",
    "Packet",
    "Pipe",
    "Pipeline",
    "ReplicaBatches",
    "Server",
    "Split",
    "ThinpipeError",
    "balance",
    "codec",
    "compress",
    "decode",
    "is_checkpointing",
    "is_recomputing",
    "join",
    "keep_memory",
    "skip",
    "split",
]

_WITH_A_NETWORK = {
    "Client": "thinpipe.remote.client",
    "Offer": "thinpipe.remote.offer",
    "Server": "thinpipe.remote.server",
}


def __getattr__(name: str) -> Any:
    """Imports what needs ZeroMQ when it is first asked for: nobody else has to have it."""
    if name not in _WITH_A_NETWORK:
        raise AttributeError(f"module 'thinpipe' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WITH_A_NETWORK[name]), name)
