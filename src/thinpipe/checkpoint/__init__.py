"""Checkpoints of a ``Pipeline`` or any module: complete or not there, and independent of how the model was cut.

::

    runs/bert/
      latest                          the name of the last complete one
      step-00000120/
        manifest.json                 step, extra, the file of every tensor, the optimizer's plain values
        model/00000.safetensors       the weights of worker 0, under the whole model's names; 00001 ...
        optimizer/00000.safetensors   the optimizer's tensors, by names of weights
        ranks/00000.json              what is of use to rank 0 of the same layout alone: what its codecs remember, and
        ranks/00000.safetensors       the state of its random numbers
      .saving-3f2a/                   one that is being written, or was when a rank was killed; the next save removes it

The tensors pass through ``torch.distributed.checkpoint``, by a storage of our own under its public interface
(``storage.py``). Its storage for file systems writes pickles, which run whatever code is in them when somebody loads a
checkpoint that he was given. This one is safetensors and JSON; dcp's own reader of safetensors can read its folders,
too. dcp's coordination of ranks is left out (``no_dist``) for two reasons: it sends pickles as well, and it waits for
ever for a rank that was killed. Ranks agree by the pipeline's own words instead, which name who failed.
"""

from thinpipe.checkpoint.folder import latest
from thinpipe.checkpoint.loading import Loaded, load
from thinpipe.checkpoint.saving import save

__all__ = ["Loaded", "latest", "load", "save"]
