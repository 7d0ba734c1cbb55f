"""A warm-up trains bottlenecks in a model that does not move by a bit."""

import copy

import pytest
import torch

from bottleneck.models import TEXTS, batch, cut, example, images, loss_fn
from thinpipe import Pipe
from thinpipe.bottleneck import explained, fit, frozen, insert, warm_up, without_bottlenecks


def ready():
    model = images().train()
    model.get_submodule("relu").eval()
    model.get_parameter("head.bias").requires_grad_(False)
    return model, insert(cut(model), TEXTS, example=example())


@pytest.mark.parametrize("task", [False, True])
def test_the_model_stays_what_it_was_to_the_bit(task):
    """The prototype left BatchNorm in training, so that its statistics drifted while the weights were held."""
    model, stages = ready()
    before = copy.deepcopy(model.state_dict())
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    batches = [batch(8, seed=seed) for seed in range(3)]
    losses = warm_up(stages, batches if task else [x for x, _ in batches], loss_fn=loss_fn if task else None, epochs=4)
    assert len(losses) == 12 and sum(losses[-3:]) < sum(losses[:3])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    # The container is not a stage: nobody told it anything.
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(parameter.grad is None for stage in stages for parameter in stage.parameters())


def test_it_finds_more_than_it_began_with_and_overlapping_kernels_more_than_the_fit():
    _, stages = ready()
    stages = insert(cut(images()), {0: "conv:4k4s2"}, example=example())
    batches = [batch(40, seed=seed)[0] for seed in range(2)]
    (fitted,) = fit(stages, batches)
    warm_up(stages, batches, epochs=40, optimizer=lambda weights: torch.optim.Adam(weights, lr=1e-2))
    assert explained(stages, batches)[0].explained > fitted.explained + 0.01


def test_any_way_of_training_can_hold_the_model_still():
    model, stages = ready()
    before = copy.deepcopy(model.state_dict())
    pipe = Pipe(stages, chunks=2, codec="had:4", grad_codec="had:4")
    x, y = batch(8)
    with frozen(stages):
        optimizer = torch.optim.SGD([weight for weight in pipe.parameters() if weight.requires_grad], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss_fn(pipe(x), y).backward()
            optimizer.step()
    after = pipe.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in without_bottlenecks(after).items())


def test_what_fails_inside_leaves_the_model_free_again():
    model, stages = ready()
    with pytest.raises(ZeroDivisionError), frozen(stages):
        raise ZeroDivisionError
    assert model.get_parameter("first.weight").requires_grad and model.get_submodule("norm").training
