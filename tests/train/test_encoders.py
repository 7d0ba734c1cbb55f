"""Encoders in folders of Hugging Face's: their weights, their tokenizers, and what is wrong with a folder."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn import functional

from thinpipe.remote.server import Server
from thinpipe.reproduce.training.ask import encoder_stand_in
from thinpipe.train import RecipeError, data, parts
from thinpipe.train.connected import connected
from thinpipe.train.offers import Offers, offer_name, read_offer
from thinpipe.train.parts import stages_of, whole
from thinpipe.train.settings import Settings
from train.small import small
from train.test_small_data import run

TEXT = "the cat sat on a mat while one dog barked at it"
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", '"', *TEXT.split()]
SIZES = {"vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 32}
MAKE = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **BERT)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES, **BERT)),
    "bare": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, **BERT), add_pooling_layer=False),
    "mpnet": lambda: transformers.MPNetForMaskedLM(transformers.MPNetConfig(**{**SIZES, "pad_token_id": 1}, **BERT)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(**SIZES, dim=16, n_layers=5, n_heads=2, hidden_dim=32)
    ),
}


def save(family, folder, *, pads_with_1=None):
    """Writes an encoder and its tokenizer, as ``save_pretrained`` does."""
    pads_with_1 = family == "mpnet" if pads_with_1 is None else pads_with_1
    torch.manual_seed(11)
    MAKE[family]().save_pretrained(folder)
    # MPNet's positions pass over token 1, whatever its settings say.
    numbers = {word: number for number, word in enumerate(WORDS)} | ({"[PAD]": 1, "[CLS]": 0} if pads_with_1 else {})
    words = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", 2)],
    )
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    types = ["token_type_ids"] if family in ("bert", "bare") else []
    names = ["input_ids", *types, "attention_mask"]
    kind = transformers.PreTrainedTokenizerFast
    kind(tokenizer_object=words, **named, model_input_names=names).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", MAKE)
def test_an_encoder_begins_with_the_weights_of_its_folder(family, tmp_path):
    folder = save(family, tmp_path / family)
    found = whole(small("cola", model=str(folder), seed=3)).state_dict()
    given = load_file(folder / "model.safetensors")
    prefix = "bert." if family == "bare" else ""
    shared = {f"{prefix}{key}" for key in given} & found.keys()
    assert len(shared) > 5 * 12
    for key in shared:
        assert torch.equal(found[key], given[key.removeprefix(prefix)])
    other = whole(small("cola", model=str(folder), seed=4)).state_dict()
    assert {key for key in found if not torch.equal(found[key], other[key])} <= found.keys() - shared


@pytest.mark.parametrize("family", MAKE)
def test_any_encoder_of_a_folder_is_trained_on_pairs_of_texts(family, files, tmp_path):
    recipe = small("rte", model=str(save(family, tmp_path / family)))
    inputs, _ = data(recipe).batch(0)
    assert set(inputs) >= {"input_ids", "attention_mask"} and inputs["input_ids"].max() < 40
    assert ("token_type_ids" in inputs) == (family in ("bert", "bare"))
    steps, tests = run(recipe, tmp_path / "run")
    assert len(steps) == 6 and tests[-1].rows == 10


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_a_server_finds_the_same_encoder_by_what_is_in_its_folder(family, files, tmp_path):
    ours, theirs = save(family, tmp_path / "ours"), save(family, tmp_path / "theirs")
    recipe = small("cola", model=str(ours), dropout=0, lr=1e-3)
    assert str(tmp_path) not in offer_name(recipe)
    assert read_offer(offer_name(recipe), [theirs]).model == str(theirs)
    alone, _ = run(recipe, tmp_path / "alone")
    with Server(Offers(files=[theirs]), listen="127.0.0.1:0") as server:
        client = connected(recipe, Settings(connect=server.address), data=data(recipe), folder=tmp_path / "client")
        steps, _ = run(recipe, tmp_path / "split", client)
        client.close()
    assert [line.loss for line in steps] == pytest.approx([line.loss for line in alone], rel=1e-4)


def test_old_names_of_norms_are_understood(tmp_path):
    folder = save("bert", tmp_path / "old")
    given = load_file(folder / "model.safetensors")
    renamed = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in given.items()
    }
    expected = whole(small("cola", model=str(folder))).state_dict()
    save_file(renamed, folder / "model.safetensors")
    torch.testing.assert_close(whole(small("cola", model=str(folder))).state_dict(), expected, rtol=0, atol=0)


def test_a_folder_without_weights_begins_with_random_ones(tmp_path):
    folder = save("bert", tmp_path / "bare")
    (folder / "model.safetensors").unlink()
    assert sum(p.numel() for p in parts(small("cola", model=str(folder))).middle.parameters()) > 0
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"")
    with pytest.raises(RecipeError, match=r"model\.onnx is not what PyTorch trains; get the folder's"):
        whole(small("cola", model=str(folder)))
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(RecipeError, match="is a pickle, which could run anything"):
        whole(small("cola", model=str(folder)))
    with pytest.raises(RecipeError, match=r"has no config\.json; did you mean --set model=.*bare"):
        whole(small("cola", model=str(tmp_path)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "is of a 'gpt2', which is no encoder that is known"),
        ({"hidden_size": 32}, "do not fit its config.json"),
        ({"num_hidden_layers": 7}, "has no weights for bert.encoder.layer.5"),
        ({"vocab_size": 9}, "do not fit its config.json"),
    ],
)
def test_a_folder_that_contradicts_itself_is_explained(change, words, tmp_path):
    folder = save("bert", tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(RecipeError, match=words):
        whole(small("cola", model=str(folder)))


def test_an_encoder_that_is_too_short_for_a_cut_is_explained(tmp_path):
    folder = save("distilbert", tmp_path / "short")
    with pytest.raises(RecipeError, match="use the cut condition-1 or condition-4"):
        parts(small("cola", model=str(folder), cut="condition-2"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layers": 2}))
    with pytest.raises(RecipeError, match="leaves nothing for the server of an encoder of 2 layers"):
        parts(small("cola", model=str(folder), cut="condition-1"))


DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
MPNET = DATA / "models" / "all-mpnet-base-v2"
CUTS = ("condition-1", "condition-2", "condition-3", "condition-3-pooled", "condition-4", "pooled", "two-and-two")


def test_mpnet_has_the_same_gradients_wherever_it_is_cut(tmp_path):
    folder, found = save("mpnet", tmp_path / "mpnet"), {}
    inputs = {"input_ids": torch.randint(3, 16, (4, 9)), "attention_mask": torch.ones(4, 9, dtype=torch.int64)}
    inputs["attention_mask"][1, 6:] = 0
    inputs["input_ids"][1, 6:] = 1
    for cut in (None, *CUTS):
        recipe = small("cola", model=str(folder), dropout=0, **({} if cut is None else {"cut": cut}))
        model = whole(recipe)
        stages = [model] if cut is None else stages_of(recipe)
        output = model(**inputs).logits if cut is None else inputs
        for stage in () if cut is None else stages:
            output = stage(output)
        functional.cross_entropy(output, torch.tensor([0, 1, 1, 0])).backward()
        grads = {name: p.grad for stage in stages for name, p in stage.named_parameters() if p.grad is not None}
        found[cut] = {name.replace("_rest", ""): grad for name, grad in grads.items()} | {"output": output.detach()}
        assert not [name for name in grads if "relative_attention_bias" in name], "it is frozen, uncut as well"
    for cut in CUTS:
        torch.testing.assert_close(found[cut], found[None])


def test_an_encoder_whose_positions_pass_over_another_token_than_its_tokenizer_pads_with_is_refused(files, tmp_path):
    folder = save("mpnet", tmp_path / "mixed", pads_with_1=False)
    with pytest.raises(RecipeError, match="pads with token 0, and its encoder counts positions but for token 1"):
        data(small("cola", model=str(folder)))
    with pytest.raises(RecipeError, match="have 8 to 62 tokens, got max_length=63"):
        data(small("cola", model=str(folder), max_length=63))


def test_lora_is_put_beside_the_attention_of_mpnet(tmp_path):
    pytest.importorskip("peft")
    model = whole(small("cola-lora", model=str(save("mpnet", tmp_path / "mpnet"))))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    beside = {name for name in trained if "lora_" in name}
    assert len(beside) == 5 * 2 * 2 and {name.split(".lora_")[0][-7:] for name in beside} == {".attn.q", ".attn.v"}
    assert all(name.startswith("classifier.") for name in trained - beside)


@pytest.mark.skipif(
    not (MPNET / "config.json").is_file(), reason="no pretrained all-mpnet-base-v2 is here; set THINPIPE_DATA"
)
def test_the_pretrained_mpnet_has_its_own_outputs_when_it_is_cut():
    recipe = small("rte", model=str(MPNET), dropout=0)
    assert encoder_stand_in(recipe).startswith("stand-in: all-mpnet-base-v2, an MPNet, not RoBERTa-base; trained on")
    model, (first, middle, last) = whole(recipe).eval(), stages_of(recipe)
    inputs = {"input_ids": torch.randint(1000, 2000, (2, 24)), "attention_mask": torch.ones(2, 24, dtype=torch.int64)}
    inputs["attention_mask"][1, 15:] = 0
    inputs["input_ids"][1, 15:] = 1
    with torch.no_grad():
        output = last.eval()(middle.eval()(first.eval()(inputs)))
        torch.testing.assert_close(output, model(**inputs).logits)
    given = load_file(MPNET / "model.safetensors")["encoder.relative_attention_bias.weight"]
    for stage in (first, middle, last):
        assert torch.equal(stage.state_dict()["mpnet.encoder.relative_attention_bias.weight"], given)
