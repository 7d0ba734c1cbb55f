"""``Split``: a model in parts, which is a list of stages, and the model again when they are trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from torch import Tensor, nn

from thinpipe.errors import SplitError
from thinpipe.stages.part import names_apart, settle


class Split(Sequence[nn.Module]):
    """The stages of a model, each with its part of the model's own modules, under the model's own names.

    Nothing is copied: to train the stages is to train the model.

    Args:
        model: the whole model.
        stages: its parts, in order.
        at: the names of the modules that begin a stage, but for the first one.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], at: Sequence[str]) -> None:
        self._model = model
        self._stages = list(stages)
        self.at = tuple(at)
        self.names = names_apart(self._stages)
        """For each stage, the names of the modules that it has."""
        self._verify_complete()

    def _verify_complete(self) -> None:
        """Checks that the stages have what the model has; a weight that no stage has would never be trained."""
        whole = dict(_state(self._model))
        parts = dict(entry for stage in self._stages for entry in _state(stage))
        strange = [name for name in parts if name not in whole]
        if strange:
            raise SplitError(
                f"a stage has '{strange[0]}', which is not a name of the model: a module with weights of its own is "
                "called more than once; give every call a module of its own"
            )
        lost = [name for name in whole if name not in parts]
        if lost:
            raise SplitError(
                f"no stage has '{lost[0]}': the model does not use it for its output; remove it, or set it to None"
            )

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> list[nn.Module]: ...
    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        return self._stages[index]

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._stages)

    def __repr__(self) -> str:
        spans = [_span(names) for names in self.names]
        return f"Split({type(self._model).__name__}: {' | '.join(spans)})"

    def sequential(self) -> nn.Sequential:
        """Chains the stages; it computes what the model computes, of what enters the first stage."""
        sequence = nn.Sequential()
        # Not through `add_module`, which refuses dots. The names are for people: they are in messages about a stage.
        spans = [_span(names) for names in self.names]
        unique = spans if len(set(spans)) == len(spans) else [f"{j}: {span}" for j, span in enumerate(spans)]
        sequence._modules.update(zip(unique, self._stages, strict=True))
        sequence.training = any(stage.training for stage in self._stages)
        return sequence

    def to_model(self, states: Iterable[Mapping[str, Tensor]] = ()) -> nn.Module:
        """Returns the whole model, the object that was split, as it is trained by now.

        Args:
            states: the ``state_dict`` of every rank, where ranks have trained a part each (default: this process has
                trained all parts).

        Raises:
            SplitError: the states do not have all of the model, or have something else.
        """
        merged: dict[str, Any] = {}
        given = list(states)
        for state in given:
            merged.update(state)
        if given:
            wanted = self._model.state_dict()
            lost, strange = (_listed(a, b) for a, b in ((wanted, merged), (merged, wanted)))
            if lost or strange:
                raise SplitError(
                    f"the states of all ranks together lack {lost or 'nothing'} and have {strange or 'nothing'} that "
                    "the model has not; pass the state_dict() of every rank's Pipeline"
                )
            self._model.load_state_dict(merged)
        for module in reversed(list(self._model.modules())):
            settle(module)
        return self._model


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    kept = module.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in module.named_buffers(remove_duplicate=False) if name in kept)


def _span(names: Sequence[str]) -> str:
    if not names:
        return "no modules"
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _listed(some: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    missing = [f"'{name}'" for name in some if name not in others]
    return ", ".join(missing if len(missing) <= 3 else [*missing[:2], f"{len(missing) - 2} more"])
