"""How fast the bare model is, whole, compiled and on one device: what all trainings side by side are compared with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from thinpipe.bench.record import Record
from thinpipe.bench.train_rate import BENCH
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.queue.order import Training
from thinpipe.reproduce.queue.place import Place
from thinpipe.train.files import NONE, encoder_folder

_STEPS, _EPOCHS = 60, 4
_PLAIN = (str, int, float)
_TOLD = 800
"""Letters of what a failure said that are passed on."""


class BareError(ThinpipeError, RuntimeError):
    """A measurement that failed, or took too long."""


def bare_rate(place: Place, item: Training, *, seconds: float) -> float:
    """Measures the samples a second of a row's model by itself, in batches as a whole.

    It is ``thinpipe bench train`` of the row one-device, on the samples of some batches: the median of its epochs but
    the first, in which the model is compiled. On a CPU it is not compiled.

    Args:
        place: where data are, and on which device it runs.
        item: the row.
        seconds: that it may take.

    Raises:
        BareError: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        words = _words(place, item, Path(folder))
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise BareError(f"it took more than {seconds:.0f} s") from error
        files = sorted((Path(folder) / BENCH).glob("*.json"))
        if done.returncode or not files:
            raise BareError(f"it failed with status {done.returncode}: {done.stderr.strip()[-_TOLD:]}")
        rate = Record.load(files[0]).results["samples_per_second_steady"]
    if rate is None:
        raise BareError("it has no steady rate")
    return rate


def _words(place: Place, item: Training, folder: Path) -> list[str]:
    """Writes the command line of the measurement."""
    job, how = place.job(item), place.how
    recipe = job.recipe
    changes = item.row.work.tiny if how.tiny else item.row.work.changes
    fields = {name: getattr(recipe, name) for name, value in changes.items() if isinstance(value, _PLAIN)}
    fields |= {"epochs": _EPOCHS, "chunks": 1, "batch": recipe.batch}
    fields |= {} if how.tiny else {"limit": _STEPS * recipe.batch}
    fields |= {"bottleneck": NONE} if item.row.learned is not None else {}
    if job.is_text and how.encoder is not None:
        fields["model"] = str(encoder_folder(recipe))
    words = [sys.executable, "-m", "thinpipe", "bench", BENCH, "--rows", "one-device", "--device", how.device]
    words += ["--recipe", recipe.name, "--output", str(folder)]
    words += ["--data-dir", recipe.data_dir] if recipe.data_dir else []
    for name in ("epochs", "chunks"):
        words += [f"--{name}", str(fields.pop(name))]
    for name, value in fields.items():
        words += ["--set", f"{name}={value}"]
    return [*words, *(["--compile"] if how.device.startswith("cuda") else [])]
