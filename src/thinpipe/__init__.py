"""thinpipe: PyTorch models cut into pipeline stages, as transparent as on one device."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinpipe import balance as balance
    from thinpipe import skip as skip
    from thinpipe.codecs import Codec as Codec
    from thinpipe.codecs import Packet as Packet
    from thinpipe.codecs import codec as codec
    from thinpipe.codecs import compress as compress
    from thinpipe.codecs import decode as decode
    from thinpipe.cutting import split as split
    from thinpipe.data.replicas import ReplicaBatches as ReplicaBatches
    from thinpipe.errors import ThinpipeError as ThinpipeError
    from thinpipe.remote.client import Client as Client
    from thinpipe.remote.offer import Offer as Offer
    from thinpipe.remote.server import Server as Server
    from thinpipe.runtime.heap import keep_memory as keep_memory
    from thinpipe.runtime.joining import join as join
    from thinpipe.runtime.pipe import Pipe as Pipe
    from thinpipe.runtime.pipeline import Pipeline as Pipeline
    from thinpipe.stages.microbatch import NoChunk as NoChunk
    from thinpipe.stages.parts import Split as Split
    from thinpipe.stages.phase import is_checkpointing as is_checkpointing
    from thinpipe.stages.phase import is_recomputing as is_recomputing

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

_MODULES = {
    "Client": "remote.client",
    "Codec": "codecs",
    "NoChunk": "stages.microbatch",
    "Offer": "remote.offer",
    "Packet": "codecs",
    "Pipe": "runtime.pipe",
    "Pipeline": "runtime.pipeline",
    "ReplicaBatches": "data.replicas",
    "Server": "remote.server",
    "Split": "stages.parts",
    "ThinpipeError": "errors",
    "codec": "codecs",
    "compress": "codecs",
    "decode": "codecs",
    "is_checkpointing": "stages.phase",
    "is_recomputing": "stages.phase",
    "join": "runtime.joining",
    "keep_memory": "runtime.heap",
    "split": "cutting",
}


def __getattr__(name: str) -> Any:
    """Imports a name or a module when it is first asked for: the command line shows its help without torch."""
    import importlib
    from importlib.util import find_spec

    if name in _MODULES:
        found = getattr(importlib.import_module(f"thinpipe.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"thinpipe.{name}") is not None:
        return importlib.import_module(f"thinpipe.{name}")
    raise AttributeError(f"module 'thinpipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists what was not imported yet, too."""
    return sorted({*globals(), *__all__})
