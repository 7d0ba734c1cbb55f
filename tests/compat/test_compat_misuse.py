"""Misuse raises what it raised in torchgpipe, so that code which catches it need not change."""

import pytest
import torch
from torch import nn

import thinpipe.skip
from thinpipe import ThinpipeError
from thinpipe.torchgpipe import GPipe

CPUS = ["cpu", "cpu", "cpu"]


def layers(count=2):
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(count)))


def returning(value):
    class Returning(nn.Module):
        def forward(self, x):
            return value

    return nn.Sequential(nn.Linear(1, 1), Returning())


def twice_the_same_layer():
    layer = nn.Linear(1, 1)
    return nn.Sequential(layer, nn.Tanh(), layer)


def twice_the_same_parameter():
    module = layers()
    module[1].weight = module[0].weight
    return module


def too_many_for_the_gpus():
    return torch.cuda.device_count() + 1


CONSTRUCTIONS = {
    "no balance": lambda gpipe: gpipe(layers(), devices=CPUS),
    "a balance that is too short": lambda gpipe: gpipe(layers(), [1], devices=CPUS),
    "a balance that is too long": lambda gpipe: gpipe(layers(), [3], devices=CPUS),
    "no balance for some layers": lambda gpipe: gpipe(layers(), [], devices=CPUS),
    "an empty partition": lambda gpipe: gpipe(layers(), [0, 2], devices=CPUS),
    "a negative partition": lambda gpipe: gpipe(layers(), [-1, 3], devices=CPUS),
    "no chunks": lambda gpipe: gpipe(layers(), [2], devices=CPUS, chunks=0),
    "negative chunks": lambda gpipe: gpipe(layers(), [2], devices=CPUS, chunks=-1),
    "an unknown checkpoint mode": lambda gpipe: gpipe(layers(), [2], devices=CPUS, checkpoint="sometimes"),
    "too few devices": lambda gpipe: gpipe(layers(4), [1, 1, 1, 1], devices=CPUS),
    "too few GPUs": lambda gpipe: gpipe(layers(too_many_for_the_gpus()), [1] * too_many_for_the_gpus()),
    "no sequence": lambda gpipe: gpipe(nn.ModuleList([nn.Linear(1, 1)]), [1], devices=CPUS),
    "a layer twice": lambda gpipe: gpipe(twice_the_same_layer(), [2, 1], devices=CPUS),
    "a layer twice in one partition": lambda gpipe: gpipe(twice_the_same_layer(), [3], devices=CPUS),
    "a parameter twice": lambda gpipe: gpipe(twice_the_same_parameter(), [1, 1], devices=CPUS),
    "a parameter twice in one partition": lambda gpipe: gpipe(twice_the_same_parameter(), [2], devices=CPUS),
}

USES = {
    "two inputs": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)(torch.ones(2, 1), torch.ones(2, 1)),
    "a string": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)("hello"),
    "a list": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)([torch.ones(2, 1)]),
    "a string in a tuple": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)((torch.ones(2, 1), "hello")),
    "a string, to no layers": lambda gpipe: gpipe(nn.Sequential(), [])("hello"),
    "a string returned": lambda gpipe: gpipe(returning("hello"), [1, 1], devices=CPUS)(torch.ones(2, 1)),
    "a string returned in a tuple": lambda gpipe: gpipe(returning((torch.ones(1), "hello")), [1, 1], devices=CPUS)(
        torch.ones(2, 1)
    ),
    "a layer by its name": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).a,
    "a layer beyond the last": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)[2],
    "a layer before the first": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS)[-3],
    "cuda()": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).cuda(),
    "cpu()": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).cpu(),
    "to(string)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to("cpu"),
    "to(number)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to(0),
    "to(device)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to(torch.device("cpu")),
    "to(device=)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to(device=torch.device("cpu")),
    "to(device, dtype)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to("cpu", torch.double),
    "to(tensor)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to(torch.ones(1)),
    "to(tensor=)": lambda gpipe: gpipe(layers(), [1, 1], devices=CPUS).to(tensor=torch.ones(1)),
}


def stashing(skip):
    @skip.skippable(stash=["early"])
    class Stashing(nn.Module):
        def forward(self, x):
            yield skip.stash("early", x)
            return x

    return Stashing()


def popping(skip, name="early"):
    @skip.skippable(pop=["early"])
    class Popping(nn.Module):
        def forward(self, x):
            early = yield skip.pop(name)
            return x + early

    return Popping()


def yielding_nonsense(skip):
    @skip.skippable()
    class Yielding(nn.Module):
        def forward(self, x):
            yield "nonsense"
            return x

    return Yielding()


SKIPS = {
    "stashed, never popped": lambda skip: nn.Sequential(stashing(skip), nn.Tanh()),
    "popped, never stashed": lambda skip: nn.Sequential(nn.Tanh(), popping(skip)),
    "stashed twice": lambda skip: nn.Sequential(stashing(skip), stashing(skip), popping(skip)),
    "popped twice": lambda skip: nn.Sequential(stashing(skip), popping(skip), popping(skip)),
}

SKIP_USES = {
    "popped under another name": lambda skip: nn.Sequential(stashing(skip), popping(skip, "late")),
    "not a command": lambda skip: nn.Sequential(yielding_nonsense(skip)),
}


def raised_by(misuse, *args):
    with pytest.raises(Exception) as caught:
        misuse(*args)
    return caught.type


@pytest.mark.parametrize("misuse", [*CONSTRUCTIONS, *USES])
def test_misuse_raises_what_it_raised_in_torchgpipe(misuse):
    theirs = pytest.importorskip("torchgpipe").GPipe
    function = {**CONSTRUCTIONS, **USES}[misuse]
    assert issubclass(raised_by(function, GPipe), raised_by(function, theirs))


@pytest.mark.parametrize("misuse", CONSTRUCTIONS)
def test_wrong_arguments_are_a_value_type_or_index_error(misuse):
    with pytest.raises((ValueError, TypeError, IndexError)):
        CONSTRUCTIONS[misuse](GPipe)


@pytest.mark.parametrize("misuse", SKIPS)
def test_skips_that_do_not_pair_up_are_refused_before_anything_runs(misuse):
    for skip in (pytest.importorskip("torchgpipe.skip"), thinpipe.skip):
        with pytest.raises(TypeError, match="do not match"):
            skip.verify_skippables(SKIPS[misuse](skip))
    with pytest.raises(TypeError, match="early"):
        GPipe(SKIPS[misuse](thinpipe.skip), [1, len(SKIPS[misuse](thinpipe.skip)) - 1], devices=CPUS)


@pytest.mark.parametrize("misuse", SKIP_USES)
def test_skips_that_break_their_declaration_raise_what_they_raised_in_torchgpipe(misuse):
    theirs = raised_by(SKIP_USES[misuse](pytest.importorskip("torchgpipe.skip")), torch.ones(1))
    assert issubclass(raised_by(SKIP_USES[misuse](thinpipe.skip), torch.ones(1)), theirs)


@pytest.mark.parametrize("balance", [None, [1], [0, 2]])
def test_a_wrong_balance_recommends_the_helper_that_finds_one(balance):
    with pytest.raises(ValueError, match=r"torchgpipe\.balance"):
        GPipe(layers(), balance, devices=CPUS)


@pytest.mark.parametrize("balance", [None, [], [1], [3], [0, 2], [-1, 3]], ids=str)
def test_a_wrong_balance_is_named_before_devices_that_a_machine_without_gpus_lacks(monkeypatch, balance):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"torchgpipe\.balance"):
        GPipe(layers(), balance)
    with pytest.raises(IndexError, match=r'devices: 0, partitions: 2.*devices=\["cpu", "cpu"\]'):
        GPipe(layers(), [1, 1])


def test_the_messages_say_what_was_wrong():
    with pytest.raises(TypeError, match=r"module must be nn\.Sequential to be partitioned"):
        GPipe(nn.Linear(1, 1), [1])
    with pytest.raises(ValueError, match="module with duplicate children is not supported"):
        GPipe(twice_the_same_layer(), [2, 1], devices=CPUS)
    with pytest.raises(ValueError, match=r"duplicate parameters in distinct children is not supported .*'1\.weight'"):
        GPipe(twice_the_same_parameter(), [1, 1], devices=CPUS)
    with pytest.raises(ThinpipeError, match="balance is required"):
        GPipe(layers())


def test_numbers_that_differ_between_micro_batches_are_no_output_either():
    class Counting(nn.Module):
        count = 0

        def forward(self, x):
            self.count += 1
            return self.count

    with pytest.raises(TypeError, match="must return a tensor or a tuple of tensors, got int"):
        GPipe(nn.Sequential(nn.Linear(1, 1), Counting()), [1, 1], devices=CPUS, chunks=2)(torch.ones(2, 1))


def test_a_refused_module_is_left_as_it_was():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    with pytest.raises(ValueError):
        GPipe(module, [1], devices=CPUS, deferred_batch_norm=True)
    assert type(module[0]) is nn.BatchNorm1d
