"""LoRA by peft: the encoder stays as it is, and small matrices beside its attention are trained.

``get_peft_model`` would wrap the whole model, and nobody could cut what it makes. ``inject_adapter_in_model`` puts
peft's layers in the places of the encoder's own and leaves everything around them as it was, so ``thinpipe.split`` cuts
it as before. What is saved has peft's names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from thinpipe.extras import need
from thinpipe.train.recipe import Recipe

_TARGETS = ("query", "value", "q_lin", "v_lin", "q", "v")
"""The projections that get one, as in LoRA's own experiments, as BERT, DistilBERT and MPNet call them."""


def add_lora(model: Any, recipe: Recipe) -> None:
    """Freezes an encoder and puts what is trained instead beside it; the classifier is trained as before.

    Args:
        model: a transformers model with a classifier.
        recipe: says rank and scale, and the seed of the first weights.

    Raises:
        MissingPackageError: peft is not installed.
    """
    need("LoRA (--set lora=0 trains all)", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    prefix = f"{model.base_model_prefix}."
    here = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in _TARGETS if name in here]
    config = LoraConfig(r=recipe.lora, lora_alpha=recipe.lora_alpha, target_modules=targets)
    # peft draws from the generator that the whole process shares; what it draws is drawn again below.
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, model)
    generator = torch.Generator().manual_seed(recipe.seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or not name.startswith(prefix) or ".pooler." in name)
        if "lora_A" in name:
            nn.init.kaiming_uniform_(parameter, a=5**0.5, generator=generator)
