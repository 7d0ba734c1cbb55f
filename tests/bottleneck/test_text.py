"""Transformers with linear bottlenecks at their cuts: hidden states become small, masks pass as they are."""

import copy
import pickle

import pytest
import torch

from hf_support import batch, loss_of, make, quiet
from thinpipe import Pipe, split
from thinpipe.bottleneck import Bottleneck, BottleneckError, fit, insert, without_bottlenecks
from thinpipe.models.hf import run_uncut
from thinpipe.remote.client import Client
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server

LAST = {"bert": "pooler", "roberta": "classifier"}


def cut(model, **options):
    return split(model, at=["encoder.layer.1", LAST[model.config.model_type]], **options)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_identities_change_nothing_and_the_mask_passes(family):
    model = quiet(make(family))
    inputs, _ = batch(family, 6)
    expected = run_uncut(model, inputs)
    stages = insert(cut(model), "linear:8/linear:8", example=inputs)
    torch.testing.assert_close(Pipe(stages, chunks=3)(inputs), expected)
    crossed = stages[0](inputs)
    assert crossed["attention_mask"].dtype == torch.bool


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("texts", ["linear:3/linear:2", "linear:5+s4/none", "linear:s4/linear:2"])
def test_gradients_are_those_of_the_stages_on_one_device(family, texts):
    model = quiet(make(family))
    inputs, targets = batch(family, 7)
    stages = insert(cut(model), texts, example=inputs)
    bare, loss_fn = copy.deepcopy(list(stages)), loss_of(family)
    value = inputs
    for stage in bare:
        value = stage(value)
    loss_fn(value, targets).backward()
    theirs = {name: weight.grad for stage in bare for name, weight in stage.named_parameters()}
    pipe = Pipe(stages, chunks=3, checkpoint="always")
    loss_fn(pipe(inputs), targets).backward()
    ours = {name: weight.grad for name, weight in pipe.named_parameters()}
    assert set(ours) == set(theirs) and set(without_bottlenecks(ours)) == {n for n, _ in model.named_parameters()}
    torch.testing.assert_close(ours, {name: theirs[name] for name in ours})


def test_of_a_first_token_alone_the_features_are_made_small():
    model = quiet(make("roberta"))
    inputs, _ = batch("roberta", 5)
    stages = insert(cut(model), {1: "linear:2"}, example=inputs)
    small = stages[1](stages[0](inputs))
    assert small["hidden_states"].shape == (5, 1, 2)
    with pytest.raises(BottleneckError, match="no less than the 1 tokens"):
        insert(cut(model), {1: "linear:s4"}, example=inputs)


def test_texts_of_another_length_pass_over_features_and_not_over_the_sequence():
    model = quiet(make("roberta"))
    inputs, _ = batch("roberta", 5)
    shorter, _ = batch("roberta", 5, length=5)
    stages = insert(cut(model), {0: "linear:3"}, example=inputs)
    assert stages[0](shorter)["hidden_states"].shape == (5, 5, 3)
    stages = insert(cut(make("roberta")), {0: "linear:s3"}, example=inputs)
    with pytest.raises(BottleneckError, match="takes rows of 7 x any, got 5 x 8"):
        stages[0](shorter)


def test_a_fit_keeps_the_logits_closer_than_weights_of_any_data():
    model = quiet(make("bert")).eval()
    inputs, _ = batch("bert", 40)
    expected = run_uncut(model, inputs)

    def error(fitted):
        stages = insert(cut(model), "linear:5/linear:5", example=inputs)
        if fitted:
            assert all(report.explained > 0.8 for report in fit(stages, [inputs]))
        value = inputs
        for stage in stages:
            value = stage(value)
        return (value - expected).square().mean().item()

    assert error(fitted=True) < 0.5 * error(fitted=False)


def test_a_classifier_trains_with_a_server_that_has_only_the_middle():
    model = quiet(make("roberta"))
    hidden, place = model.config.hidden_size, ("hidden_states",)
    options = {"place": place, "dtype": torch.float64, "seed": 3}
    there, back = (Bottleneck("linear:3", (size, hidden), cut=k, **options) for k, size in enumerate((7, 1)))
    inputs, targets = batch("roberta", 6)
    whole = insert(cut(copy.deepcopy(model)), "linear:3/linear:3", example=inputs, seed=3)
    loss_fn, optimizer = loss_of("roberta"), sgd([weight for stage in whole for weight in stage.parameters()])

    def middle():
        return back.on_sender(there.on_receiver(cut(copy.deepcopy(model))[1]))

    ends = cut(copy.deepcopy(model))
    with Server({"middle": Offer(make=middle, optimizer=sgd)}, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd, "chunks": 2}
        with Client(there.on_sender(ends[0]), back.on_receiver(ends[2]), **options) as client:
            for _ in range(3):
                value = inputs
                for stage in whole:
                    value = stage(value)
                expected = loss_fn(value, targets)
                optimizer.zero_grad()
                expected.backward()
                optimizer.step()
                torch.testing.assert_close(client.step(inputs, targets).double(), expected.detach().double())
            # Three numbers for each of seven tokens, a mask of booleans, and three of the gradient of one token.
            assert client.cost.raw_sent == 6 * (7 * 3 * 8 + 7 + 3 * 8)


def test_copies_and_pickles_compute_the_same():
    inputs, _ = batch("roberta", 4)
    pipe = Pipe(insert(cut(quiet(make("roberta"))), "linear:3/linear:2", example=inputs), chunks=2).eval()
    for other in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert torch.equal(other(inputs), pipe(inputs))
