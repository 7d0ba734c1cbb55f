"""ZeroMQ, which only clients and servers need."""

from __future__ import annotations

from thinpipe.extras import need

need("clients and servers", "zmq")

import zmq as zmq  # noqa: E402
from zmq.utils import z85 as z85  # noqa: E402
