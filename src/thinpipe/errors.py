"""The errors thinpipe raises on purpose.

Each is also the built-in exception a careful reader would expect (``ValueError``, ``TypeError``, ...), so code written
against torchgpipe or plain PyTorch keeps catching what it caught before.
"""


class ThinpipeError(Exception):
    """The base of every error raised on purpose; catch it to catch them all."""


class ArgumentError(ThinpipeError, ValueError, TypeError):
    """An argument of the wrong kind, or out of its range; the message has its name, its value and what it can be."""


class BalanceError(ThinpipeError, ValueError):
    """A balance that does not fit the module: wrong sum, a part without layers, more parts than layers."""


class DeviceError(ThinpipeError, IndexError):
    """Fewer devices than stages, or a device that does not exist."""


class MoveError(ThinpipeError, TypeError):
    """Somebody tried to move a Pipe to a device; its stages live where ``devices`` put them."""


class SplitError(ThinpipeError, TypeError):
    """A module that cannot be cut into stages as it is."""


class SharedStateError(ThinpipeError, ValueError):
    """One parameter or buffer is used by two stages, which would train it twice or not at all."""


class SkipError(ThinpipeError, TypeError):
    """Declared stashes and pops that do not pair up."""


class SkipUseError(ThinpipeError, RuntimeError):
    """A skippable layer that stashes or pops something else than it declared."""


class BatchError(ThinpipeError, ValueError):
    """Inputs that cannot be split into micro-batches, or outputs that cannot be put together again."""


class RecomputeError(ThinpipeError, RuntimeError):
    """A stage that cannot be recomputed faithfully."""


class WorkerLost(ThinpipeError, RuntimeError):
    """A stage's thread disappeared in the middle of a step."""


class SpecError(ThinpipeError, ValueError):
    """A codec that was asked for by a text that names none; the message points at the offending character."""


class PacketError(ThinpipeError, ValueError):
    """Bytes that are not a packet, or a packet that is not what its receiver expects."""


class CodecError(ThinpipeError, ValueError):
    """A tensor that a codec cannot take."""


class ScheduleError(ThinpipeError, ValueError):
    """A schedule that leaves something undone, or whose workers would wait for ever."""


class TraceError(ThinpipeError, ValueError):
    """A trace that is damaged, or that says what cannot have happened; clocks that were not compared."""


class PeerLost(ThinpipeError, ConnectionError):
    """The connection to another rank broke: its process ended, or the network between the two did."""


class StallError(ThinpipeError, TimeoutError):
    """Another rank is connected but did not take, or finish, a message within the deadline."""


class PeerError(ThinpipeError, RuntimeError):
    """Another rank raised an error, which ended the pipeline; the message has the rank, what it was at and why."""


class DisagreementError(ThinpipeError, ValueError):
    """Two ranks of a pipeline were started with different values, or train on different rows; the message has both."""


class CheckpointError(ThinpipeError, RuntimeError):
    """A checkpoint that could not be written or found, is damaged, or is of another model."""


class DamagedError(CheckpointError):
    """Saved files that are not what was written: cut short, changed, or gone.

    Args:
        text: what is damaged, with its folder.
        reason: the same without its folder, for the other side of a network.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class DiskError(CheckpointError):
    """A state that a disk does not take now, because it is full for instance; it may be tried again.

    Args:
        text: what could not be written, with its folder.
        reason: why, without its folder, for the other side of a network.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class FolderError(CheckpointError):
    """A folder that cannot be written at all, or that another process uses.

    Args:
        text: which, and what to do.
        is_busy: whether another process uses it.
    """

    def __init__(self, text: str, *, is_busy: bool = False) -> None:
        super().__init__(text)
        self.is_busy = is_busy


class RolledBackError(ThinpipeError, RuntimeError):
    """Client and server went back to a step before the batches that this process has; ``committed`` says to which."""


class MissingPackageError(ThinpipeError, ImportError):
    """Packages of thinpipe's extras that are needed and not installed; the message has the command for all of them."""


class KeyFileError(ThinpipeError, ValueError):
    """A key that is none, or a file of keys that is damaged, in the way, or open to others."""


class AuthError(ThinpipeError, PermissionError):
    """A client and a server that do not accept each other's keys."""


class AddressError(ThinpipeError, ValueError):
    """An address that is none, or where this process cannot or must not listen."""


class RefusedError(ThinpipeError, ConnectionError):
    """A server that does not take a client: it does not offer what is asked for, or lost what it had."""


class BusyError(RefusedError):
    """A server that does not take a client now, and may later: it is full, or still busy with the same session."""


class NotFiniteError(ThinpipeError, FloatingPointError):
    """A training whose loss, gradients or weights are NaN or infinite."""


BAD_VALUES = (ArgumentError, AddressError, DeviceError, KeyFileError, SpecError)
"""What a user has to write otherwise; a command ends with status 2 for them, and with 1 for what failed later."""
