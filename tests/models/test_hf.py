"""transformers models in stages: the same numbers, the same names, and the model again at the end."""

import copy
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from hf_support import CONFIGS, batch, loss_of, make, quiet, transformers
from thinpipe import Pipe, split
from thinpipe.checkpoint import load, save
from thinpipe.errors import BatchError, SplitError
from thinpipe.models.hf import run_uncut, token_loss, token_targets
from thinpipe.models.hf.stage import HIDDEN

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
MINILM = sorted((DATA / "weights").glob("*[mM]ini[lL][mM]*/config.json"))
ROWS = [8, 5, 1]
"""Four micro-batches of two rows, then uneven ones, then one row alone."""


def chained(stages, inputs):
    for stage in stages:
        inputs = stage(inputs)
    return inputs


def grads_of(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("family", "head"),
    [
        *((family, "ForSequenceClassification") for family in CONFIGS if family != "vit"),
        *((family, "ForMaskedLM") for family in ("bert", "roberta", "distilbert")),
        *((family, "ForTokenClassification") for family in ("bert", "roberta", "distilbert", "mpnet", "gpt2")),
        *((family, "Model") for family in ("bert", "roberta", "distilbert", "mpnet", "vit", "gpt2")),
        ("distilbert", "ForQuestionAnswering"),
        ("vit", "ForImageClassification"),
        ("gpt2", "LMHeadModel"),
    ],
)
def test_stages_one_after_the_other_give_the_bits_of_the_model_dropout_included(family, head, attention):
    """The stages draw in the model's own order, so that one seed gives both the same dropout."""
    model = make(family, head, attention=attention)
    inputs, _ = batch(family, 5)
    torch.manual_seed(3)
    expected = run_uncut(model, inputs)
    for stages in (1, 2, 3, 4):
        parts = split(model, stages=stages)
        torch.manual_seed(3)
        torch.testing.assert_close(chained(parts, inputs), expected, rtol=0, atol=0)
        assert {name for part in parts for name in part.state_dict()} == set(model.state_dict())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "vit", "gpt2"])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_pipe_trains_as_the_model_does(family, stages):
    model = quiet(make(family))
    bare, loss = copy.deepcopy(model), loss_of(family)
    pipe = Pipe(split(model, stages=stages), devices=["cpu"] * stages, chunks=4)
    for rows in ROWS:
        inputs, targets = batch(family, rows)
        logits, expected = pipe(inputs), run_uncut(bare, inputs)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
        loss(logits, targets).backward()
        loss(expected, targets).backward()
        # Never set to zero in between: gradients are added to those there are, a tied weight's too.
        torch.testing.assert_close(grads_of(pipe), grads_of(bare), rtol=0, atol=1e-12)


def test_one_micro_batch_draws_what_the_model_draws():
    model = make("bert")
    inputs, targets = batch("bert", 5)
    bare = copy.deepcopy(model)
    for checkpoint in ("never", "always"):
        pipe = Pipe(split(model, stages=3), chunks=1, checkpoint=checkpoint)
        for module, run in ((pipe, pipe), (bare, lambda x: run_uncut(bare, x))):
            module.zero_grad()
            torch.manual_seed(5)
            functional.cross_entropy(run(inputs), targets).backward()
        torch.testing.assert_close(grads_of(pipe), grads_of(bare), rtol=0, atol=1e-12)


def test_evaluation_turns_dropout_off_in_every_stage_and_training_on_again():
    model = make("roberta")
    pipe = Pipe(split(model, stages=2), chunks=2)
    inputs, _ = batch("roberta", 4)
    pipe.eval()
    assert torch.equal(pipe(inputs), pipe(inputs))
    assert not model.roberta.encoder.layer[3].training
    pipe.train()
    assert not torch.equal(pipe(inputs), pipe(inputs))


# -- what crosses a cut ------------------------------------------------------------------------------------------------


def test_the_hidden_states_and_a_small_mask_cross_and_nothing_else():
    inputs, _ = batch("bert", 5)
    crossing = split(make("bert"), stages=2)[0](inputs)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in crossing.items()} == {
        "hidden_states": (torch.float64, (5, 7, 8)),
        "attention_mask": (torch.bool, (5, 7)),
    }
    assert list(split(make("vit"), stages=2)[0](batch("vit", 2)[0])) == ["hidden_states"]


def test_without_a_mask_none_crosses_and_a_tensor_alone_is_the_input():
    model = quiet(make("distilbert"))
    ids = batch("distilbert", 4)[0]["input_ids"]
    parts = split(model, stages=2)
    assert list(parts[0](ids)) == ["hidden_states"]
    torch.testing.assert_close(chained(parts, ids), model(ids).logits)


def test_positions_that_are_given_reach_every_stage():
    """GPT-2 finds sequences that were packed into one row by their positions, in the mask of every layer.

    It does so without a cache only, for which training has no use, and which transformers makes unless told not to.
    """
    model = quiet(make("gpt2"))
    ids = batch("gpt2", 3)[0]["input_ids"]
    inputs = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(3, -1)}
    expected = run_uncut(model, inputs)
    torch.testing.assert_close(chained(split(model, stages=3), inputs), expected, rtol=0, atol=0)
    assert torch.equal(expected, model(**inputs, use_cache=False).logits)
    assert not torch.allclose(expected, run_uncut(model, ids))


def test_a_batch_with_labels_or_of_another_kind_is_refused():
    pipe = Pipe(split(make("bert"), stages=2))
    inputs, targets = batch("bert", 4)
    with pytest.raises(BatchError, match="labels are targets, of the loss"):
        pipe({**inputs, "labels": targets})
    with pytest.raises(BatchError, match="takes a dictionary with input_ids"):
        pipe((inputs["input_ids"], inputs["attention_mask"]))


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_model_with_or_without_that_of_the_base_model():
    model = make("bert")
    long = split(model, at=["bert.encoder.layer.1", "bert.pooler"])
    short = split(model, at=["encoder.layer.1", "pooler"])
    assert (
        long.names
        == short.names
        == [
            ["bert.embeddings", "bert.encoder.layer.0"],
            ["bert.encoder.layer.1", "bert.encoder.layer.2", "bert.encoder.layer.3"],
            ["bert.pooler", "dropout", "classifier"],
        ]
    )
    assert long.at == short.at == ("bert.encoder.layer.1", "bert.pooler")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "vit", "gpt2"])
def test_a_stage_may_be_the_embeddings_alone_or_the_head_alone(family):
    model = quiet(make(family))
    inputs, _ = batch(family, 4)
    with pytest.raises(SplitError, match="can be cut at") as refused:
        split(model, at=["nowhere"])
    places = str(refused.value).split("can be cut at ")[1].split(", ")
    parts = split(model, at=[places[0], places[-1]])
    torch.testing.assert_close(chained(parts, inputs), run_uncut(model, inputs), rtol=0, atol=0)


def test_unknown_and_unordered_names_are_answered_with_those_there_are():
    model = make("gpt2")
    with pytest.raises(SplitError, match=r"begin at 'h.4'; .* transformer.h.0, .*, transformer.h.3, transformer.ln_f"):
        split(model, at=["h.1", "h.4"])
    with pytest.raises(SplitError, match="not in the order in which they run"):
        split(model, at=["h.2", "h.1"])
    with pytest.raises(SplitError, match="not in the order"):
        split(model, at=["h.2", "h.2"])


def test_a_pipe_has_the_names_of_the_model_and_loads_its_weights():
    model, other = make("gpt2"), make("gpt2")
    pipe = Pipe(split(model, at=["h.1", "h.3"]), chunks=2)
    assert list(pipe.state_dict()) == list(model.state_dict())
    assert [name for name, _ in pipe.named_parameters()] == [name for name, _ in model.named_parameters()]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.25)
    pipe.load_state_dict(other.state_dict())
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))
    other.load_state_dict(pipe.state_dict())


def test_a_module_is_not_replaced_where_the_stages_would_not_notice():
    pipe = Pipe(split(make("bert"), stages=2))
    with pytest.raises(SplitError, match="replace it in the model"):
        pipe.bert.pooler = torch.nn.Identity()


def test_copies_and_pickles_of_a_pipe_compute_the_same():
    pipe = Pipe(split(make("gpt2"), stages=2), chunks=2).eval()
    inputs, _ = batch("gpt2", 4)
    for other in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        torch.testing.assert_close(other(inputs), pipe(inputs))
        assert other.lm_head.weight is other.transformer.wte.weight is not pipe.lm_head.weight


def test_what_all_layers_read_is_copied_into_every_stage_and_loaded_into_all_of_them(tmp_path):
    model, other = quiet(make("mpnet")), quiet(make("mpnet"))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    parts, inputs = split(model, stages=3), batch("mpnet", 4)[0]
    pipe, expected = Pipe(parts, chunks=2), run_uncut(other, inputs)
    biases = [part.state_dict()["mpnet.encoder.relative_attention_bias.weight"] for part in parts]
    assert len({bias.data_ptr() for bias in biases}) == 3, "each stage may be on a device of its own"
    assert not [name for names in parts.names for name in names if "bias" in name], "copies belong to no stage alone"
    pipe.load_state_dict(other.state_dict())
    torch.testing.assert_close(pipe(inputs), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(run_uncut(parts.to_model(), inputs), expected, rtol=0, atol=1e-12)
    save(tmp_path, pipe, step=1)
    for each in (pipe, copy.deepcopy(pipe)):
        each.load_state_dict(make("mpnet").state_dict())
        load(tmp_path, each)
        torch.testing.assert_close(each(inputs), expected, rtol=0, atol=1e-12)
    pipe.float().eval()
    assert {tensor.dtype for part in parts for tensor in part.state_dict().values()} == {torch.float32}
    pipe(inputs)
    assert not any(module.training for part in parts for module in part.children() for module in module.modules())


def test_what_all_layers_read_is_not_cut_while_it_is_trained():
    model = make("mpnet").requires_grad_(True)
    with pytest.raises(SplitError, match=r"freeze it: model\.mpnet\.encoder\.relative_attention_bias\.requires_grad_"):
        split(model, stages=2)
    assert len(split(model, stages=1)) == 1
    model.mpnet.encoder.relative_attention_bias.requires_grad_(False)
    assert len(split(model, stages=2)) == 2


# -- the whole model again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "vit", "gpt2"])
def test_a_trained_model_is_saved_and_loaded_by_transformers(family, tmp_path):
    model = make(family, dtype=torch.float32)
    parts = split(model, stages=2)
    pipe = Pipe(parts, chunks=2)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    inputs, targets = batch(family, 4, dtype=torch.float32)
    loss_of(family)(pipe(inputs), targets).backward()
    optimizer.step()
    expected = pipe.eval()(inputs)
    whole = parts.to_model()
    assert whole is model and not whole.training
    whole.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(run_uncut(loaded, inputs), expected)


def test_the_states_of_ranks_make_the_whole_model():
    model, trained = make("gpt2"), make("gpt2")
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(2)
    ranks = [dict(part.state_dict()) for part in split(trained, stages=3)]
    parts = split(model, stages=3)
    with pytest.raises(SplitError, match=r"lack 'transformer.wte.weight', .* more and have nothing"):
        parts.to_model(ranks[1:])
    assert parts.to_model(ranks) is model
    torch.testing.assert_close(dict(model.state_dict()), dict(trained.state_dict()))
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.skipif(not MINILM, reason="no pretrained MiniLM is here; set THINPIPE_DATA")
def test_a_pretrained_minilm_gives_its_own_logits():
    model = transformers.BertForSequenceClassification.from_pretrained(MINILM[0].parent).eval()
    inputs = {"input_ids": torch.randint(1000, 2000, (4, 9)), "attention_mask": torch.ones(4, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 5:] = 0
    with torch.no_grad():
        torch.testing.assert_close(Pipe(split(model, stages=3), chunks=2)(inputs), run_uncut(model, inputs))


# -- losses over tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_loss_over_tokens_is_that_of_transformers_however_the_batch_is_cut(chunks):
    """A mean over each micro-batch's labels would weigh a row with few of them more than one with many."""
    model = quiet(make("gpt2", dtype=torch.float32))
    inputs, _ = batch("gpt2", 6)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    whole = model(**inputs, labels=labels)
    targets = token_targets(labels, causal=True)
    losses = [
        token_loss(logits, {"labels": ids, "share": share}) * len(ids) / 6
        for logits, ids, share in zip(
            whole.logits.tensor_split(chunks),
            targets["labels"].tensor_split(chunks),
            targets["share"].tensor_split(chunks),
            strict=True,
        )
    ]
    torch.testing.assert_close(sum(losses), whole.loss)


def test_labels_that_are_not_shifted_are_those_of_masked_words():
    model = quiet(make("bert", "ForMaskedLM", dtype=torch.float32))
    inputs, _ = batch("bert", 4)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, 1], labels[0, 2] = 5, 7
    whole = model(**inputs, labels=labels)
    torch.testing.assert_close(token_loss(whole.logits, token_targets(labels)), whole.loss)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_family_or_a_head_without_an_adapter_is_refused():
    config = transformers.ElectraConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(SplitError, match=r"family 'electra'.* bert, roberta.* example=batch"):
        split(transformers.ElectraModel(config), stages=2)
    with pytest.raises(SplitError, match="no adapter for BertForMultipleChoice"):
        split(make("bert", "ForMultipleChoice"), stages=2)
    with pytest.raises(SplitError, match="no adapter for GPT2DoubleHeadsModel"):
        split(make("gpt2", "DoubleHeadsModel"), stages=2)


def test_a_forward_that_no_stage_would_call_is_refused():
    class Mine(transformers.BertForSequenceClassification):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    with pytest.raises(SplitError, match="a forward of its own"):
        split(Mine(make("bert").config), stages=2)
    hooked = make("bert")
    hooked.bert.register_forward_hook(lambda *_: None)
    with pytest.raises(SplitError, match="'bert' has hooks"):
        split(hooked, stages=2)


def test_a_module_that_no_stage_would_have_is_refused():
    model = make("bert")
    model.bert.extra = torch.nn.Linear(2, 2)
    with pytest.raises(SplitError, match=r"what 'bert.extra' is for"):
        split(model, stages=2)


def test_a_model_that_recomputes_by_itself_is_refused():
    model = make("gpt2")
    model.gradient_checkpointing_enable()
    with pytest.raises(SplitError, match=r"gradient_checkpointing_disable\(\)"):
        split(model, stages=2)
    model.gradient_checkpointing_disable()
    split(model, stages=2)


def test_a_version_that_is_too_old_is_refused_with_what_to_install(monkeypatch):
    model = make("bert")
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(SplitError, match=r'pip install --upgrade "thinpipe\[hf\]"'):
        split(model, stages=2)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "vit"])
def test_a_head_alone_gets_the_one_token_that_it_reads_and_nothing_is_lost(family):
    model = quiet(make(family))
    inputs, targets = batch(family, 6)
    with pytest.raises(SplitError) as refused:
        split(model, at=["nowhere"])
    places = str(refused.value).split("can be cut at ")[1].split(", ")
    found = {}
    for all_tokens in (False, True):
        parts = split(model, at=[places[0], places[-1]], all_tokens=all_tokens)
        crossing = parts[1](parts[0](inputs))
        logits = parts[2](crossing)
        model.zero_grad()
        loss_of(family)(logits, targets).backward()
        grads = {name: grad.clone() for name, grad in grads_of(model).items() if grad is not None}
        found[all_tokens] = crossing, logits, grads
    (one, logits, grads), (every, expected, bare) = found[False], found[True]
    assert set(one) == {HIDDEN} and one[HIDDEN].shape == (6, 1, every[HIDDEN].shape[2])
    assert every[HIDDEN].shape[1] > 1
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(grads, bare, rtol=0, atol=1e-12)


def test_a_head_that_reads_all_tokens_gets_them_all():
    for family, head in (("bert", "ForTokenClassification"), ("roberta", "ForMaskedLM"), ("gpt2", None)):
        model = quiet(make(family, head) if head else make(family))
        inputs, _ = batch(family, 3)
        with pytest.raises(SplitError) as refused:
            split(model, at=["nowhere"])
        places = str(refused.value).split("can be cut at ")[1].split(", ")
        parts = split(model, at=[places[-1]])
        assert parts[0](inputs)[HIDDEN].shape[1] > 1
