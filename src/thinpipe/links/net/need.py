"""ZeroMQ, which only clients and servers need."""

from __future__ import annotations

try:
    import zmq as zmq
    from zmq.utils import z85 as z85
except ImportError as error:
    raise ImportError("clients and servers speak ZeroMQ; run: pip install 'thinpipe[net]'") from error
