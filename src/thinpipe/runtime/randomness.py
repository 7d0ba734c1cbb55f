"""Random numbers in stages: reproducible from a seed, and the same again in a recomputation.

PyTorch has one default generator a device. Who may use it depends on who else does:

* A rank of a ``Pipeline`` shares it with the user's own program, which on every rank must draw the same, whatever
  layers the rank has. Each forward of a micro-batch has numbers of its own, from (seed, step, micro-batch, stage): the
  default generator is seeded for it and set back after it. A ``Client`` and a ``Server`` draw by the same rule.
* A ``Pipe`` is a function of the default generator, as the bare module is: a seed decides what it draws, and so do
  saved states and ``torch.utils.checkpoint`` around it.

  - One stage, or one micro-batch: stages draw from the default generators as the bare module would, and a recomputation
    sets them back to where the forward began.
  - Several, on the CPU's generator: stages in several threads would race for it, so each forward of a micro-batch has a
    generator of its own, seeded from the default one's state, the stage and the micro-batch. Random operators are led
    to it one by one, so that stages still compute in parallel.
  - Several, on one GPU's generator: CUDA's operators take no generator, so the device's is seeded for each forward and
    set back after it, one stage at a time.

  If anything was drawn in a step, the default generator moves on by one draw, so that the next step draws anew.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from thinpipe.errors import RecomputeError

_of_the_process = threading.RLock()
default_generators = ContextVar("default_generators", default=_of_the_process)
"""The default generators belong to the whole process, and so does the lock of those who set them. Whoever holds it for
a whole forward has another one for the threads that work in that forward: a stage may be a ``Pipe``."""


class Randomness(Protocol):
    """What surrounds the forward of a micro-batch, and what surrounds its recomputation."""

    def first(self, i: int, *, repeated: bool) -> Any:
        """Surrounds the forward of micro-batch ``i``, which will be repeated by a recomputation or not."""

    def again(self, i: int) -> Any:
        """Surrounds its recomputation, which draws the same numbers."""


def generator_of(device: torch.device) -> torch.Generator:
    """Finds the default generator of a device."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[device.index or 0]


class Rewound:
    """For a generator that nobody else uses meanwhile: it is set back for the recomputation."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._states: dict[int, Tensor] = {}

    @contextmanager
    def first(self, i: int, *, repeated: bool) -> Iterator[None]:
        before = self._generator.get_state() if repeated else None
        yield
        if before is not None and not torch.equal(before, self._generator.get_state()):
            self._states[i] = before

    @contextmanager
    def again(self, i: int) -> Iterator[None]:
        if i not in self._states:
            yield
            return
        # Stages may recompute at the same time, each setting the generator: only those that draw wait for each other.
        with default_generators.get():
            now = self._generator.get_state()
            self._generator.set_state(self._states[i])
            try:
                yield
            finally:
                self._generator.set_state(now)


class Seeds(Protocol):
    """Where the forwards of one step have their seeds from."""

    drawn: bool

    def seed(self, j: int, i: int) -> int:
        """Makes the seed of stage ``j`` for micro-batch ``i``."""


class StepSeeds:
    """Seeds for the forwards of one step, as a function of the seed and the step alone.

    Args:
        seed: of the pipeline or the session.
        step: its number, or whatever else names it.
    """

    def __init__(self, seed: int | str, step: int | str) -> None:
        self._text = f"{seed}.{step}."
        self.drawn = False

    def seed(self, j: int, i: int) -> int:
        """Makes the seed of stage ``j`` for micro-batch ``i``."""
        return seed_of(f"{self._text}{j}.{i}".encode())


class Entropy:
    """Seeds for the forwards of one step, from a default generator that is read and not moved.

    Args:
        generator: the default generator that the stages would race for.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._state = generator.get_state()
        self._digest = hashlib.blake2b(self._state.numpy().tobytes()).digest()
        self.drawn = False

    def seed(self, j: int, i: int) -> int:
        """Makes the seed of stage ``j`` for micro-batch ``i``."""
        return seed_of(self._digest + f"{j}.{i}".encode())

    def settle(self) -> bool:
        """Moves the default generator on if anything was drawn; tells whether somebody else moved it."""
        moved = not torch.equal(self._state, self._generator.get_state())
        if self.drawn:
            torch.empty((), dtype=torch.int64, device=self._generator.device).random_(generator=self._generator)
        return moved


def seed_of(text: bytes) -> int:
    """Makes a seed of any text."""
    # One bit short of 64: manual_seed takes no larger one on every device.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class _Led(TorchDispatchMode):
    """Leads every random operator on the CPU to one generator, in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator
        self.drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        devices = [x.device for x in args if isinstance(x, Tensor)] + [torch.device(kwargs.get("device") or "cpu")]
        if any(device.type != "cpu" for device in devices):
            return func(*args, **kwargs)
        if _inside_torch_checkpoint():
            raise RecomputeError(
                f"{func} draws random numbers inside torch.utils.checkpoint, which sets back PyTorch's own generator "
                "when it recomputes. Stages that compute at the same time draw from generators of their own, so it "
                "would draw other numbers then, and gradients would be wrong. Turn the model's own checkpointing off, "
                "and have thinpipe recompute: checkpoint='always'"
            )
        self.drawn = True
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **kwargs, generator=self._generator)
        # No way to name a generator: lend the operator the default one in our state.
        with default_generators.get():
            default = torch.default_generator
            theirs = default.get_state()
            default.set_state(self._generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self._generator.set_state(default.get_state())
                default.set_state(theirs)


def _inside_torch_checkpoint() -> bool:
    """Tells whether the layer that computes right now will be repeated by ``torch.utils.checkpoint``."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != torch_checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


class OwnCpu:
    """For the CPU's generator, shared by stages in several threads: each forward gets a generator of its own.

    Args:
        entropy: the seeds of this step.
        j: the stage.
        watching: whether to lead operators at all; a stage that never draws need not pay for it.
    """

    def __init__(self, entropy: Seeds, j: int, *, watching: bool) -> None:
        self._entropy = entropy
        self._j = j
        self._watching = watching
        self.drawn = False

    @contextmanager
    def first(self, i: int, *, repeated: bool = True) -> Iterator[None]:
        if not self._watching:
            yield
            return
        with _Led(torch.Generator().manual_seed(self._entropy.seed(self._j, i))) as led:
            yield
        if led.drawn:
            self.drawn = self._entropy.drawn = True

    again = first


class Lent:
    """For a default generator of which others have need as well: seeded for each forward, one at a time, and set back.

    Whatever asks for the default generator gets what the stage draws from: ``torch.utils.checkpoint`` in a stage, and
    stages that are compiled.
    """

    def __init__(self, generator: torch.Generator, entropy: Seeds, j: int) -> None:
        self._generator = generator
        self._entropy = entropy
        self._j = j

    @contextmanager
    def first(self, i: int, *, repeated: bool = True) -> Iterator[None]:
        with default_generators.get():
            inner = default_generators.set(threading.RLock())
            theirs = self._generator.get_state()
            self._generator.manual_seed(self._entropy.seed(self._j, i))
            seeded = self._generator.get_state()
            try:
                yield
                if not torch.equal(seeded, self._generator.get_state()):
                    self._entropy.drawn = True
            finally:
                self._generator.set_state(theirs)
                default_generators.reset(inner)

    again = first


class Both:
    """The CPU's generator and a GPU's, for a stage that may draw from either."""

    def __init__(self, parts: Sequence[Randomness]) -> None:
        self._parts = parts

    @contextmanager
    def first(self, i: int, *, repeated: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.first(i, repeated=repeated))
            yield

    @contextmanager
    def again(self, i: int) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.again(i))
            yield


class RankGenerators:
    """What the stages of one rank draw, in the steps of a whole training.

    Args:
        seed: of the pipeline, the same on all ranks.
        replica: which of several pipelines this is; each draws other numbers than the others.
        device: of the rank's stages.

    Attributes:
        seed: of the pipeline.
        steps: how many steps of training there were; an evaluation changes nothing of what they draw.
    """

    def __init__(self, seed: int, *, replica: int, device: torch.device) -> None:
        self.seed, self.steps = seed, 0
        self._replica = replica
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(generator_of(device))
        self._evaluations = 0

    def begin(self, stages: Iterable[int], *, train: bool) -> dict[int, Randomness]:
        """Begins a step: the randomness of each of the stages."""
        name = str(self.steps) if train else f"{self.steps}.evaluation.{self._evaluations}"
        if train:
            self.steps, self._evaluations = self.steps + 1, 0
        else:
            self._evaluations += 1
        seeds = StepSeeds(f"{self.seed}/{self._replica}" if self._replica else self.seed, name)
        lent = {j: [Lent(generator, seeds, j) for generator in self._generators] for j in stages}
        return {j: each[0] if len(each) == 1 else Both(each) for j, each in lent.items()}

    def state_dict(self) -> dict[str, int]:
        """Returns what decides all that is drawn from now on."""
        return {"seed": self.seed, "step": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another was."""
        self.seed, self.steps, self._evaluations = int(state["seed"]), int(state["step"]), 0


class DrawingHabits:
    """Remembers, for the life of a pipe, which stages draw from the CPU's generator.

    Leading operators costs some microseconds each, so a stage that drew nothing in its first step is trusted from then
    on, until the model changes between training and evaluation. Should it draw after all, the trust is withdrawn. A
    stage that has drawn is not trusted, though it may draw in some steps only.
    """

    def __init__(self, n: int) -> None:
        # Of each stage; None as long as nobody knows.
        self._draws: list[bool | None] = [None] * n
        self._training: bool | None = None

    def step(self, devices: Sequence[torch.device], m: int, *, training: bool) -> StepRandomness:
        """Chooses what each stage does about random numbers in one step."""
        if training is not self._training:
            self._training = training
            self._draws = [None] * len(self._draws)
        return StepRandomness(devices, m, self._draws)


class StepRandomness:
    """The randomness of all stages in one step.

    Args:
        devices: the device of each stage.
        m: the number of micro-batches.
        draws: which stages draw, None where nobody knows; updated when the forward is over.
    """

    def __init__(self, devices: Sequence[torch.device], m: int, draws: list[bool | None]) -> None:
        self._draws = draws
        self._entropies: dict[torch.device, Entropy] = {}
        self._own: list[OwnCpu] = []
        self.stages: list[Randomness] = []
        racing = len(devices) > 1 and m > 1
        if racing:
            self._entropies[torch.device("cpu")] = Entropy(torch.default_generator)
        for j, device in enumerate(devices):
            parts: list[Randomness] = []
            if racing:
                own = OwnCpu(self._entropies[torch.device("cpu")], j, watching=draws[j] is not False)
                self._own.append(own)
                parts.append(own)
            else:
                parts.append(Rewound(torch.default_generator))
            if device.type == "cuda":
                parts.append(self._cuda(device, j, racing=racing and devices.count(device) > 1))
            self.stages.append(parts[0] if len(parts) == 1 else Both(parts))

    def _cuda(self, device: torch.device, j: int, *, racing: bool) -> Randomness:
        generator = generator_of(device)
        if not racing:
            return Rewound(generator)
        if device not in self._entropies:
            self._entropies[device] = Entropy(generator)
        return Lent(generator, self._entropies[device], j)

    def settle(self, *, recomputes: bool) -> None:
        """Ends the forward: moves the default generators on, and remembers who draws."""
        moved = [device for device, entropy in self._entropies.items() if entropy.settle()]
        for j, own in enumerate(self._own):
            self._draws[j] = bool(self._draws[j]) or own.drawn
        if torch.device("cpu") in moved and not all(self._draws):
            self._draws[:] = [drew or None for drew in self._draws]
            if recomputes:
                warnings.warn(
                    "random numbers were drawn during a forward in which no stage was known to draw. If it was "
                    "another thread, all is well; if a stage began to, this batch is recomputed with other numbers, "
                    "and from the next step on with the same",
                    RuntimeWarning,
                    stacklevel=2,
                )
