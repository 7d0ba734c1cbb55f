"""What thinpipe knows about families of transformers models: where their modules are, and no more.

A base model is read in this order, and cut before any layer, or before what comes after the layers::

    before ...   layers 0 1 2 ...   after ...   head

What these modules compute, and how a mask is made of another, is left to the forward of the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Where a family of base models has what; names are relative to the base model.

    Args:
        layers: the places in which versions of transformers have the list of layers.
        before: what a row passes before the layers. The last of them is where a later stage lets in what comes from
            the stage before it.
        after: what it passes after the layers; a model may lack any of them.
        enters_as: the argument that stands for what enters a later stage.
        takes: the arguments of a batch, the most important first.
        rides: those of them that every stage needs, if they are given.
        copied: modules that every layer reads; each stage has a copy, and none of them is trained.
        reads_first: how the names of classes end whose head reads the first token of a row, and no other.
    """

    layers: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    enters_as: str = "inputs_embeds"
    takes: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    rides: tuple[str, ...] = ("attention_mask", "position_ids")
    copied: tuple[str, ...] = ()
    reads_first: tuple[str, ...] = ()


_BERT = Family(
    layers=("encoder.layer",),
    before=("embeddings",),
    after=("pooler",),
    reads_first=("ForSequenceClassification",),
)

FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "distilbert": Family(
        layers=("transformer.layer",),
        before=("embeddings",),
        after=(),
        takes=("input_ids", "attention_mask", "position_ids"),
        reads_first=("ForSequenceClassification",),
    ),
    "mpnet": Family(
        layers=("encoder.layer",),
        before=("embeddings",),
        after=("pooler",),
        takes=("input_ids", "attention_mask", "position_ids"),
        copied=("encoder.relative_attention_bias",),
        reads_first=("ForSequenceClassification",),
    ),
    "vit": Family(
        layers=("layers", "encoder.layer"),
        before=("embeddings",),
        after=("layernorm", "pooler"),
        enters_as="pixel_values",
        takes=("pixel_values",),
        rides=(),
        reads_first=("ForImageClassification",),
    ),
    "gpt2": Family(layers=("h",), before=("wte", "wpe", "drop"), after=("ln_f",)),
}
"""By ``config.model_type``. MiniLM is a ``bert``."""

HEADS: dict[str, tuple[str, ...]] = {
    "Model": (),
    "ForSequenceClassification": (),
    "ForTokenClassification": (),
    "ForQuestionAnswering": (),
    "ForMaskedLM": (),
    "ForCausalLM": (),
    "LMHeadModel": (),
    "ForImageClassification": (),
    "GPT2ForSequenceClassification": ("input_ids",),  # it looks for the last token of each row that is no padding
}
"""How the names of classes end whose forward calls the base model once, and what it needs of the batch beside that."""
