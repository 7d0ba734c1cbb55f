"""Text encoders with a classifier: a folder of Hugging Face's, or a tiny one of random weights.

A folder has what ``save_pretrained`` or ``hf download`` leaves there: ``config.json``, the tokenizer's files, and
``*.safetensors`` with weights; without weights the encoder begins with random ones. Files of weights that are pickles
are not read: they run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.extras import need
from thinpipe.models.hf import FAMILIES
from thinpipe.train.files import TINY, encoder_folder
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.weights import built

TINY_VOCABULARY = 512

_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families that count positions from the padding's number on, which is 1: the first is at 2."""
_TINY_CONFIG = {
    "model_type": "roberta",
    "vocab_size": TINY_VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 260,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def encoder(recipe: Recipe, classes: int) -> nn.Module:
    """Builds the encoder that a recipe names, with a classifier on it.

    What all layers of an encoder read, the position bias of MPNet, is frozen: a cut gives every stage a copy of it, and
    a recipe trains the same weights however it is cut.

    Args:
        recipe: its ``model`` is the folder, or ``tiny``; its ``seed`` draws what no file has.
        classes: of the classifier, which always begins with random weights.

    Raises:
        RecipeError: there is no such folder, or it has another kind of model.
        ImportError: transformers is not installed.
    """
    config = _config(recipe, classes)
    auto = _transformers().AutoModelForSequenceClassification
    model: nn.Module = built(lambda: auto.from_config(config), recipe.seed, spread=config.initializer_range)
    if recipe.model != TINY:
        _load(model, encoder_folder(recipe))
    for name in FAMILIES[config.model_type].copied:
        model.get_submodule(f"{model.base_model_prefix}.{name}").requires_grad_(requires_grad=False)
    return model.train()


def longest_text(settings: Mapping[str, Any]) -> int:
    """Tells how many tokens a text may have.

    Args:
        settings: of the encoder, as ``settings_of`` reads them.
    """
    positions = int(settings.get("max_position_embeddings", 512))
    return positions - 2 if settings["model_type"] in _BEHIND_PADDING else positions


def padding_of(settings: Mapping[str, Any]) -> int | None:
    """Tells which token the positions of an encoder pass over; None if its positions do not depend on tokens.

    Args:
        settings: of the encoder, as ``settings_of`` reads them.
    """
    if settings["model_type"] == "mpnet":
        return 1  # whatever its settings say
    return int(settings.get("pad_token_id", 1)) if settings["model_type"] in _BEHIND_PADDING else None


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Reads the settings of a recipe's encoder, as they are in its ``config.json``.

    Raises:
        RecipeError: there is no such folder, or it has another kind of model.
    """
    if recipe.model == TINY:
        return dict(_TINY_CONFIG)
    path = encoder_folder(recipe) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        family = found["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{path} cannot be read: {error!r:.200}") from error
    if family not in _FAMILIES:
        raise RecipeError(
            f"{path} is of a {family!r:.40}, which is no encoder that is known; use {', '.join(_FAMILIES)}"
        )
    return dict(found)


def _config(recipe: Recipe, classes: int) -> Any:
    said = {key: value for key, value in settings_of(recipe).items() if key not in _OURS}
    dropped = dict.fromkeys(_DROPOUTS["distilbert" if said["model_type"] == "distilbert" else "bert"], recipe.dropout)
    return _transformers().AutoConfig.for_model(**said | dropped, num_labels=classes)


_DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
    "distilbert": ("dropout", "attention_dropout", "seq_classif_dropout"),
}
_OURS = ("num_labels", "id2label", "label2id", "architectures", "torch_dtype", "dtype", "transformers_version")
"""What a file says of the task that it was trained for, or of how it was stored."""


def _transformers() -> Any:
    need("recipes of texts", "transformers")
    import transformers

    return transformers


_OTHERS = ("pytorch_model*.bin", "*.onnx", "*.h5", "*.msgpack", "*.gguf")
"""Files of weights that are not read; an encoder must not begin with random weights because of them."""


def weight_files(folder: Path) -> list[Path]:
    """Lists a folder's files of weights.

    Raises:
        RecipeError: it has some, but only pickles, or for other programs.
    """
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    others = [file for pattern in _OTHERS for file in sorted(folder.rglob(pattern))]
    if others:
        why = "a pickle, which could run anything" if others[0].suffix == ".bin" else "not what PyTorch trains"
        raise RecipeError(
            f"{others[0]} is {why}; get the folder's model.safetensors, or save the model again with save_pretrained"
        )
    return []


_BIAS = "encoder.relative_attention_bias.weight"
_BY_BIAS = {"b60badedd7f56cc5": "all-mpnet-base-v2"}
"""Encoders whose config.json names another, by a digest of their position bias in float16, which a file may have."""


def called(folder: Path, settings: Mapping[str, Any]) -> str:
    """Finds out what an encoder is called; a folder may be called anything.

    Args:
        folder: that it lies in.
        settings: those in its ``config.json``; many a one says what its model was called.
    """
    for file in weight_files(folder) if settings["model_type"] == "mpnet" else []:
        need("weights in files", "safetensors")
        from safetensors import safe_open

        with safe_open(file, "pt") as opened:
            if _BIAS in opened.keys():  # noqa: SIM118 - it is no dictionary
                bias = opened.get_tensor(_BIAS).to(torch.float16)
                name = _BY_BIAS.get(hashlib.sha256(bias.numpy().tobytes()).hexdigest()[:16])
                if name is not None:
                    return name
    return str(settings.get("_name_or_path") or folder.resolve()).rstrip("/").rpartition("/")[2]


def _load(model: Any, folder: Path) -> None:
    """Gives a model the weights of a folder, but for the classifier's."""
    state = dict(_renamed(model.base_model_prefix, _tensors(weight_files(folder))))
    if not state:
        return
    base = {name for name in model.state_dict() if name.startswith(f"{model.base_model_prefix}.")}
    # Many a base model was saved without the layer after its last one; that is the classifier's part, and new.
    lost = sorted(name for name in base - state.keys() if ".pooler." not in name)
    if lost:
        raise RecipeError(
            f"{folder} has no weights for {lost[0]}, and {len(lost)} tensors lack; is it another model's?"
        )
    try:
        model.load_state_dict({name: state[name] for name in base & state.keys()}, strict=False)
    except RuntimeError as error:
        raise RecipeError(f"the weights of {folder} do not fit its config.json: {error}") from error


def _tensors(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        need("weights in files", "safetensors")
        from safetensors.torch import load_file

        try:
            yield from load_file(file).items()
        except Exception as error:
            raise RecipeError(f"{file} cannot be read: {error}") from error


def _renamed(prefix: str, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Gives tensors the names that they have in a classifier of this version."""
    for name, tensor in tensors:
        # The first versions of BERT called a norm's parameters gamma and beta; a bare base model has no prefix.
        ours = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        bare = not ours.startswith(f"{prefix}.")
        yield (f"{prefix}.{ours}" if bare else ours), tensor.to(torch.float32)
