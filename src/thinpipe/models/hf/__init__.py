"""transformers models as stages; ``thinpipe.split`` comes here with them.

::

    families   where each family of models has its modules: a table
    anatomy    a model taken apart by that table
    husk       a module without its children, whose forward runs all the same
    stage      computes one stage: what enters, what crosses, what leaves
    cut        the stages of a model
    loss       losses over tokens that are the same however a batch is cut
"""

from thinpipe.models.hf.cut import cut_hf, even_cuts, run_uncut
from thinpipe.models.hf.families import FAMILIES
from thinpipe.models.hf.loss import token_loss, token_targets

__all__ = ["FAMILIES", "cut_hf", "even_cuts", "run_uncut", "token_loss", "token_targets"]
