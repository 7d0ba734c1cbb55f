"""Links: what moves the tensors of a cut from one worker to the next."""

from thinpipe.links.lane import hang_up
from thinpipe.links.local import Closed, LocalLink
from thinpipe.links.meter import Meter, Reading
from thinpipe.links.receiving import ReceiveLane
from thinpipe.links.sending import SendLane
from thinpipe.links.throttle import Throttle, parse_rate

__all__ = [
    "Closed",
    "LocalLink",
    "Meter",
    "Reading",
    "ReceiveLane",
    "SendLane",
    "Throttle",
    "hang_up",
    "parse_rate",
]
