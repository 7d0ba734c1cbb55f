"""thinpipe: PyTorch models cut into pipeline stages, as transparent as on one device."""

from thinpipe import balance, skip
from thinpipe.codecs import Codec, Packet, codec, compress, decode
from thinpipe.cutting import split
from thinpipe.data.replicas import ReplicaBatches
from thinpipe.errors import ThinpipeError
from thinpipe.runtime.joining import join
from thinpipe.runtime.pipe import Pipe
from thinpipe.runtime.pipeline import Pipeline
from thinpipe.stages.microbatch import NoChunk
from thinpipe.stages.parts import Split
from thinpipe.stages.phase import is_checkpointing, is_recomputing

__version__ = "0.1.0"

__all__ = [
    "Codec",
    "NoChunk",
    "Packet",
    "Pipe",
    "Pipeline",
    "ReplicaBatches",
    "Split",
    "ThinpipeError",
    "balance",
    "codec",
    "compress",
    "decode",
    "is_checkpointing",
    "is_recomputing",
    "join",
    "skip",
    "split",
]
