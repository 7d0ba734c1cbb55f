"""What one batch cost, as both halves measured it: seconds by what was done, bytes by direction, and their rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from rich.table import Table

from thinpipe.errors import PacketError

T = TypeVar("T")

_SHORTEST = 1e-12
"""Seconds that no clock can tell from none."""

_MOST = 2**63
"""No number reaches it; sums and quotients of what comes off a wire stay finite."""


@dataclass(frozen=True)
class HalfCost:
    """What one half measured of one batch; what was sent by one was received by the other.

    Args:
        computed: seconds of forward and backward passes, the loss and the optimizer's step.
        stalled: seconds in which it had nothing to do but to wait for the other half.
        encode: seconds of packing what it sends.
        decode: seconds of unpacking what has come.
        sent: bytes that it handed to its socket: packets, their heads, and words such as a step's commit.
        received: bytes that came out of it, counted in the same way.
        raw_sent: bytes of the tensors that it sent, before they were packed.
        raw_received: bytes of the tensors that came, after they were unpacked.
        peak_sent: bytes a second that it sent in the busiest window of 100 ms.
        peak_received: bytes a second that it received in the busiest window of 100 ms.
    """

    computed: float
    stalled: float
    encode: float
    decode: float
    sent: int
    received: int
    raw_sent: int
    raw_received: int
    peak_sent: float
    peak_received: float

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> HalfCost:
        """Reads what ``to_json`` said, off a wire.

        Raises:
            PacketError: it has other fields, or something that is no finite number from 0 on.
        """
        return _read(cls, value)


@dataclass(frozen=True)
class StepCost:
    """What one batch cost.

    Seconds and bytes of this batch alone; those without ``server_`` are the client's. Times may overlap: a half that
    packs one tensor while it computes the next counts both.

    Args:
        step: the number of the step that the batch made.
        rows: examples in the batch.
        seconds: from the batch's beginning to the step's commit, by the client's clock on the wall.
        computed: the client's computation: forward and backward passes, the loss, the optimizer's step.
        server_computed: the server's computation.
        encode: packing what the client sends.
        decode: unpacking what the client received.
        server_encode: packing what the server sends.
        server_decode: unpacking what the server received.
        stalled: the client had nothing to do but to wait for the server.
        server_stalled: the server had nothing to do but to wait for the client.
        sent: bytes that the client handed to its socket: packets, their heads, and words such as a step's commit.
        received: bytes that came out of the client's socket, counted in the same way.
        raw_sent: bytes of the tensors that the client sent, before they were packed.
        raw_received: bytes of the tensors that the client received, after they were unpacked.
        peak_sent: bytes a second that the client sent in the busiest window of 100 ms.
        peak_received: bytes a second that the client received in the busiest window of 100 ms.
        server_peak_sent: as ``peak_sent``, measured by the server.
        server_peak_received: as ``peak_received``, measured by the server.
    """

    step: int
    rows: int
    seconds: float
    computed: float
    server_computed: float
    encode: float
    decode: float
    server_encode: float
    server_decode: float
    stalled: float
    server_stalled: float
    sent: int
    received: int
    raw_sent: int
    raw_received: int
    peak_sent: float
    peak_received: float
    server_peak_sent: float
    server_peak_received: float

    @classmethod
    def of(cls, step: int, rows: int, seconds: float, client: HalfCost, server: HalfCost) -> StepCost:
        """Puts together what both halves measured; bytes are those at the client's socket."""
        return cls(
            step=step,
            rows=rows,
            seconds=seconds,
            computed=client.computed,
            server_computed=server.computed,
            encode=client.encode,
            decode=client.decode,
            server_encode=server.encode,
            server_decode=server.decode,
            stalled=client.stalled,
            server_stalled=server.stalled,
            sent=client.sent,
            received=client.received,
            raw_sent=client.raw_sent,
            raw_received=client.raw_received,
            peak_sent=client.peak_sent,
            peak_received=client.peak_received,
            server_peak_sent=server.peak_sent,
            server_peak_received=server.peak_received,
        )

    @property
    def bandwidth_over_computation(self) -> float:
        """Bytes a second that a link must carry if nobody is to stall: all bytes over both halves' computation.

        0 where nothing was computed. Published tables of split training call something like it the average bandwidth:
        the bytes of one direction over the time of the whole pipeline with nothing on the wire, which
        ``thinpipe reproduce two-machines`` measures.
        """
        return _over(self.sent + self.received, self.computed + self.server_computed)

    @property
    def bandwidth_over_wall(self) -> float:
        """Bytes a second that the link did carry: all bytes over the time on the wall; 0 where none passed."""
        return _over(self.sent + self.received, self.seconds)

    @property
    def ratio(self) -> float:
        """Bytes that travelled, heads and words included, over bytes of the tensors; 1 where there were no tensors."""
        return _over(self.sent + self.received, self.raw_sent + self.raw_received, otherwise=1.0)

    @property
    def peak(self) -> float:
        """The largest of the four peaks, in bytes a second."""
        return max(self.peak_sent, self.peak_received, self.server_peak_sent, self.server_peak_received)

    def to_json(self) -> dict[str, Any]:
        """Says what was measured in plain values; what follows from it is left out."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> StepCost:
        """Reads what ``to_json`` said; what a log says of each stage or rank beside it, ``sides``, is left out.

        Raises:
            PacketError: it has other fields, or something that is no finite number from 0 on.
        """
        if isinstance(value, dict):
            value = {name: number for name, number in value.items() if name != "sides"}
        return _read(cls, value)


def summary(costs: Sequence[StepCost]) -> dict[str, float]:
    """Sums up batches: how many, and by the names of ``StepCost`` the mean of each quantity; of peaks, the largest.

    Bandwidths and the ratio are those of all batches together, total over total: a mean of quotients would let a
    short batch count as much as a long one.

    Raises:
        ValueError: there are none.
    """
    if not costs:
        raise ValueError("there is no batch to sum up; train one step at least")
    found: dict[str, float] = {"batches": len(costs)}
    for name in (each.name for each in fields(StepCost) if each.name != "step"):
        values = [getattr(cost, name) for cost in costs]
        found[name] = max(values) if "peak" in name else sum(values) / len(values)
    both = found["sent"] + found["received"]
    found["bandwidth_over_computation"] = _over(both, found["computed"] + found["server_computed"])
    found["bandwidth_over_wall"] = _over(both, found["seconds"])
    found["ratio"] = _over(both, found["raw_sent"] + found["raw_received"], otherwise=1.0)
    found["peak"] = max(cost.peak for cost in costs)
    return found


def as_table(costs: Sequence[StepCost], *, title: str = "what a batch cost") -> Table:
    """Shows the summary of batches, for people.

    Args:
        costs: the batches, one at least.
        title: above the table.

    Raises:
        ValueError: there are none.
    """
    mean = summary(costs)
    table = Table(f"mean of {len(costs):,}", title=title)
    for head in ("client", "server", "both"):
        table.add_column(head, justify="right")
    for what, name in (
        ("computing", "computed"),
        ("encoding", "encode"),
        ("decoding", "decode"),
        ("waiting", "stalled"),
    ):
        ours, theirs = mean[name], mean[f"server_{name}"]
        table.add_row(what, _time(ours), _time(theirs), _time(ours + theirs))
    for what, name in (("sent", ""), ("of tensors", "raw_")):
        up, down = mean[f"{name}sent"], mean[f"{name}received"]
        table.add_row(what, size_text(up), size_text(down), size_text(up + down))
    for what, name in (("peak sent", "peak_sent"), ("peak received", "peak_received")):
        ours, theirs = mean[name], mean[f"server_{name}"]
        table.add_row(what, _rate(ours), _rate(theirs), _rate(max(ours, theirs)))
    table.add_section()
    table.add_row("time", "", "", _time(mean["seconds"]))
    table.add_row("rows a second", "", "", f"{_over(mean['rows'], mean['seconds']):,.1f}")
    table.add_row("sent, of tensors", "", "", f"{mean['ratio']:.1%}")
    table.add_row("bandwidth over computation", "", "", _rate(mean["bandwidth_over_computation"]))
    table.add_row("bandwidth over time", "", "", _rate(mean["bandwidth_over_wall"]))
    return table


def _over(amount: float, by: float, *, otherwise: float = 0.0) -> float:
    return amount / by if by > _SHORTEST else otherwise


def _read(kind: type[T], value: Any) -> T:
    named = {each.name: each.type for each in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(value, dict) or value.keys() != named.keys():
        raise PacketError(f"{kind.__name__} has the fields {', '.join(named)}; got {value!r:.200}")
    for name, number in value.items():
        # A bool is an int to Python; a NaN fails every comparison.
        right = isinstance(number, int) or (named[name] == "float" and isinstance(number, float))
        if isinstance(number, bool) or not right or not 0 <= number < _MOST:
            raise PacketError(f"{name} of {kind.__name__} is a finite {named[name]} from 0 on; got {number!r:.50}")
    return kind(**{name: float(number) if named[name] == "float" else number for name, number in value.items()})


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def size_text(size: float) -> str:
    """Says a number of bytes, for people."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.99995 * unit:  # else it would be rounded to 1,000.0 of the next smaller one
            return f"{size / unit:,.1f} {name}"
    return f"{size:.0f} B"


def _rate(rate: float) -> str:
    return f"{size_text(rate)}/s"
