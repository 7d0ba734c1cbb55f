"""The rank of a linear bottleneck that becomes smaller while the model is trained, as a function of the steps done.

::

    rate 0.9, step 300, stop 900         steps   0 ...  300 ...  600 ...  900 ...
                                         rank     768     691      622      559
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

DEFAULT_PENALTY = 1e-4


@dataclass(frozen=True, kw_only=True)
class RankDecay:
    """When the rank shrinks, and by how much; both halves follow it by themselves and need not tell each other.

    Args:
        rates: what the rank is multiplied with, one for all sets of the bottleneck or one each, above 0 and below 1.
        step: training steps from one decay to the next.
        stop: the step of the last decay.
        penalty: the weight of the L1 penalty on the rows and columns that the next decay drops, which readies the
            model to do without them; 0 for none (default: 1e-4).
    """

    rates: tuple[float, ...]
    step: int
    stop: int
    penalty: float = DEFAULT_PENALTY

    def __str__(self) -> str:
        rates = "*".join(f"{rate:g}" for rate in self.rates)
        penalty = "" if self.penalty == DEFAULT_PENALTY else f",l1={self.penalty:g}"
        return f"decay={rates}@{self.step}..{self.stop}{penalty}"

    def rank(self, full: int, steps: int, which: int = 0) -> int:
        """Tells the rank of a set after some steps; it never falls below 1.

        Args:
            full: its rank at first.
            steps: training steps done.
            which: the place of the set in the bottleneck (default: the first).
        """
        return self._after(full, min(steps, self.stop) // self.step, which)

    def next_rank(self, full: int, steps: int, which: int = 0) -> int:
        """Tells what the next decay will leave; what there is now, if none will come."""
        decays = min(steps, self.stop) // self.step
        return self._after(full, min(decays + 1, self.stop // self.step), which)

    def _after(self, full: int, decays: int, which: int) -> int:
        rate = self.rates[which if len(self.rates) > 1 else 0]
        # From the full rank each time: rounding down again and again would take more than the rates say.
        return max(1, floor(full * rate**decays + 1e-9))
