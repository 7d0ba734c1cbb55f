"""The recipes that train text encoders: RTE and CoLA, in Epipe's settings.

::

    condition-1      embeddings, layer 0             | layers 1 ... 10                 | layer 11, head
    condition-2      embeddings, attention of 0      | rest of 0, layers 1 ... 10      | layer 11, head
    condition-3      embeddings, attention of 0      | rest of 0, layers 1 ... 11      | head
    condition-4      embeddings, layer 0             | layers 1 ... 11                 | head
    two-and-two      embeddings, layers 0, 1         | layers 2 ... 9                  | layers 10, 11, head
    even             thirds of the parameters of the layers
                           client                          server                           client

Condition 1 is what Epipe's tables call the first two and the last two layers, embeddings and head being one each.

The head reads the first token of a row. Epipe sent it all of them, in conditions 3 and 4; ``pooled`` is
condition 4 and ``condition-3-pooled`` condition 3 with that token alone: of 128 one, and nothing is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.data.glue import load_glue
from thinpipe.data.tokens import HashTokenizer, LocalTokenizer, Tokenizer, Tokens, tokenize
from thinpipe.extras import need
from thinpipe.models.hf import even_cuts
from thinpipe.models.hf.anatomy import Anatomy
from thinpipe.train.data import Data, Samples
from thinpipe.train.encoder import TINY_VOCABULARY, encoder, longest_text, padding_of, settings_of
from thinpipe.train.files import TINY, encoder_folder
from thinpipe.train.halves import halve_first
from thinpipe.train.lora import add_lora
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.subject import Cut, Subject

_CLASSES = 2
_HALVED = ("condition-2", "condition-3", "condition-3-pooled")
_CUTS = (
    *("condition-1", "condition-2", "condition-3", "condition-3-pooled", "condition-4"),
    *("pooled", "two-and-two", "even"),
)
_EDGE = 8
"""Lengths of batches are multiples of this: few different ones, and even for a GPU."""


def _model(recipe: Recipe) -> nn.Module:
    need(f"the model of {recipe.name}", *_packages(recipe))
    model = encoder(recipe, _CLASSES)
    if recipe.lora:
        add_lora(model, recipe)
    if recipe.cut in _HALVED:
        layers = model.get_submodule(Anatomy.of(model).organs[1].name.rpartition(".")[0])
        halve_first(layers, settings_of(recipe)["model_type"])
    return model


def _packages(recipe: Recipe) -> tuple[str, ...]:
    return ("transformers", "peft") if recipe.lora else ("transformers",)


def _place(recipe: Recipe, model: nn.Module) -> Cut:
    *layers, head = Anatomy.of(model).cuttable
    if recipe.cut == "even":
        middle, last = even_cuts(model, 3)
        return Cut(middle, last)
    # With its first layer in two, an encoder has a layer more, and the rest of the first is the second of them.
    first, behind = {"two-and-two": (2, -2), "condition-1": (1, -1), "condition-2": (1, -1)}.get(recipe.cut, (1, 0))
    if len(layers) + behind <= first:
        raise RecipeError(f"the cut {recipe.cut} leaves nothing for the server of an encoder of {len(layers)} layers")
    all_tokens = recipe.cut in ("condition-3", "condition-4")
    return Cut(layers[first], layers[behind] if behind else head, all_tokens=all_tokens)


def _tokenizer(recipe: Recipe) -> Tokenizer:
    if recipe.model == TINY:
        return HashTokenizer(vocabulary=TINY_VOCABULARY)
    return LocalTokenizer(encoder_folder(recipe))


def _data(recipe: Recipe) -> Data:
    settings = settings_of(recipe)
    room = longest_text(settings)
    if not 8 <= recipe.max_length <= room:
        raise RecipeError(f"texts of {recipe.model} have 8 to {room} tokens, got max_length={recipe.max_length}")
    folder = Path(recipe.data_dir) if recipe.data_dir else None
    texts = load_glue(recipe.dataset, folder, max_damaged=recipe.max_damaged)
    tokenizer = _tokenizer(recipe)
    if tokenizer.vocabulary > int(settings["vocab_size"]):
        raise RecipeError(
            f"the tokenizer of {recipe.model} knows {tokenizer.vocabulary} tokens and its encoder "
            f"{settings['vocab_size']}; they are not of one model"
        )
    if padding_of(settings) not in (None, tokenizer.pad):
        raise RecipeError(
            f"the tokenizer of {recipe.model} pads with token {tokenizer.pad}, and its encoder counts positions but "
            f"for token {padding_of(settings)}; they are not of one model"
        )
    found = tokenize(texts, tokenizer, recipe.max_length)
    # RoBERTa has one type of tokens only, and looks others up where there is nothing.
    typed = int(settings.get("type_vocab_size", 0)) > 1
    return Data.of(
        recipe,
        _samples(found.train, typed=typed),
        _samples(found.test, typed=typed),
        _trimmed if recipe.padding == "batch" else _as_it_is,
        classes=texts.classes,
        notes=texts.notes,
    )


def _samples(tokens: Tokens, *, typed: bool) -> Samples:
    inputs = tokens.inputs()
    return Samples({name: inputs[name] for name in inputs if typed or name != "token_type_ids"}, tokens.labels)


def _as_it_is(inputs: dict[str, Tensor], _: int | None) -> dict[str, Tensor]:
    return inputs


def _trimmed(inputs: dict[str, Tensor], _: int | None) -> dict[str, Tensor]:
    """Cuts off the columns in which no row of a batch has a token."""
    longest = int(inputs["attention_mask"].sum(1).max())
    length = -(-longest // _EDGE) * _EDGE
    return {name: tensor[:, :length].contiguous() for name, tensor in inputs.items()}


def _example(recipe: Recipe) -> dict[str, Tensor]:
    ones = torch.ones(1, recipe.max_length, dtype=torch.int64)
    return {"input_ids": 2 * ones, "attention_mask": ones}


def _subject(about: str, defaults: Recipe) -> Subject:
    return Subject(
        about=about,
        defaults=defaults,
        cuts=_CUTS,
        place=_place,
        model=_model,
        example=_example,
        data=_data,
        uses=frozenset(
            {
                *("model", "dropout", "lora", "lora_alpha"),
                *("dataset", "data_dir", "max_length", "padding", "limit", "max_damaged", "untrained_classes"),
            }
        ),
        datasets=("rte", "cola"),
        packages=_packages,
        matthews=True,
    )


def _defaults(name: str, **said: Any) -> Recipe:
    usual: dict[str, Any] = {
        "name": name,
        "cut": "condition-1",
        "lr_schedule": "polynomial",
        "optimizer": "adamw",
        "model": "roberta-base",
        "dropout": 0.1,
        "dataset": "cola",
        "max_length": 128,
        "precision": "bfloat16",
    }
    return Recipe(**usual | said)


# Of Epipe's 5,340 steps its warm-up of 320 is the same share as fairseq's of 5,336.
_ADAM: dict[str, Any] = {"adam_betas": (0.9, 0.98), "adam_eps": 1e-6, "warmup": 0.06}
# Rows are as long as Epipe had them: what fills them up crosses the cuts, too, and is in the grid of a codec that has
# one for a tensor.
_EPIPE: dict[str, Any] = {
    "batch": 32,
    "chunks": 4,
    "epochs": 20,
    "lr": 2e-5,
    "padding": "full",
    "last_batch": "drop",
}
# AdamW as PyTorch has it, of Epipe's data parallel programs.
_ADAMW_500: dict[str, Any] = {"weight_decay": 0.01, "warmup_steps": 500, "precision": "float32"}

TEXT = (
    _subject(
        "RoBERTa-base, or any encoder, on RTE",
        _defaults("rte", **_EPIPE, dataset="rte", warmup=0.1, precision="float32"),
    ),
    _subject(
        "RoBERTa-base on RTE, as Epipe trains it data parallel",
        _defaults("rte-data-parallel", **_EPIPE | _ADAMW_500 | {"dataset": "rte", "chunks": 1}),
    ),
    _subject(
        "RoBERTa-base on CoLA, in Epipe's own settings",
        _defaults("cola", **_EPIPE, **_ADAM, optimizer="adam", weight_decay=1e-4),
    ),
    _subject(
        "RoBERTa-base on CoLA, as Epipe simulated sort quantization",
        _defaults("cola-simulated", **_EPIPE | _ADAMW_500 | {"cut": "condition-4", "epochs": 40}),
    ),
    _subject(
        "RoBERTa-base on CoLA, in fairseq's settings",
        # What fairseq calls Adam decays weights apart from the gradient, as AdamW does.
        _defaults("cola-fairseq", batch=16, epochs=10, lr=1e-5, weight_decay=0.1, **_ADAM),
    ),
    _subject(
        "RoBERTa-base on CoLA by LoRA, in its authors' settings",
        _defaults("cola-lora", batch=32, epochs=80, lr=4e-4, weight_decay=0.1, warmup=0.06, lora=8),
    ),
)
