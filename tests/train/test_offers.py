"""The names under which recipes are lent: a client says what the middle depends on, and the server builds just that."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinpipe.remote.offer import Offer
from thinpipe.train import RECIPES, RecipeError, parts, resolved
from thinpipe.train.offers import MIDDLE, Offers, offer_name, read_offer
from thinpipe.train.user_offer import user_offers
from train.small import WEIGHTS, small


def mine():
    """A factory, as a server's owner writes it."""
    return Offer(make=lambda: nn.Linear(3, 3), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def nothing():
    """A factory that does not return what it should."""
    return nn.Linear(3, 3)


@given(
    lr=st.floats(0, 1e6),
    seed=st.integers(0, 2**62),
    cut=st.sampled_from(["pooled", "unpooled"]),
    batch=st.integers(1, 100),
)
def test_a_server_reads_of_a_name_what_the_client_trains(lr, seed, cut, batch):
    recipe = resolved("digits", {"lr": lr, "seed": seed, "cut": cut, "batch": batch})
    read = read_offer(offer_name(recipe))
    assert all(getattr(read, field) == getattr(recipe, field) for field in ("name", *MIDDLE))


def test_a_recipe_as_it_is_has_its_own_name_and_what_is_the_clients_alone_is_not_told():
    assert offer_name(resolved("digits")) == "digits"
    assert offer_name(resolved("digits", {"batch": 3, "epochs": 1, "chunks": 2})) == "digits"
    assert offer_name(resolved("digits", {"lr": 0.05, "cut": "unpooled"})) == "digits?cut=unpooled&lr=0.05"


def test_a_server_that_pools_is_told_how():
    for pool in ("mean", "corner"):
        recipe = resolved("cifar10-finetune", {"cut": "pooled", "pool": pool, "weights": "none"})
        assert read_offer(offer_name(recipe)).pool == pool


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("imagenet", "nothing is offered as 'imagenet'; there are digits"),
        ("cola?model=/etc", "model is named by the digest of its files, as digest:0a1b2c3d, got '/etc'"),
        ("cifar10-finetune?weights=/etc/passwd", "weights is named by the digest of its files"),
        (
            "cifar10-finetune?weights=digest:12",
            "the client begins with weights of digest '12', which this server has not",
        ),
        ("rte?model=digest:12", "the client begins with an encoder of digest '12', which this server has not"),
        ("cifar10-finetune?data_dir=/etc", "does not concern the server"),
        ("digits?", "write name"),
        ("digits?lr", "write name"),
        ("digits?lr=fast", "lr is a number, got 'fast'"),
        ("digits?lr=nan", "lr is a number from 0"),
        ("digits?lr=1&lr=2", "says a field twice"),
        ("digits?batch=9", "does not concern the server"),
        ("digits?pixels=1000000", "pixels is a number from 0 to 1024"),
        ("two-machines?pixels=1024", "have 32 to 512 pixels"),
        ("digits?seed=" + "9" * 1000, "too much"),
    ],
)
def test_a_name_that_means_nothing_is_explained_and_not_in_the_mapping(name, words, files):
    offers = Offers()
    assert name not in offers and offers.get(name) is None
    with pytest.raises(KeyError) as caught:
        offers[name]
    assert words in str(caught.value)


@given(st.text(max_size=60))
def test_no_name_does_anything_but_name_or_be_refused(text):
    assert text not in Offers() or text in RECIPES


def test_the_mapping_lists_plain_names_and_finds_those_with_values():
    offers = Offers(["digits"])
    assert list(offers) == ["digits"] and len(offers) == 1
    assert "digits?seed=3" in offers and "two-machines" not in offers


def test_files_are_named_by_what_is_in_them_wherever_they_are(files, tmp_path, monkeypatch):
    name = offer_name(small("cifar10-finetune", seed=3))
    assert str(files) not in name and WEIGHTS not in name
    elsewhere = tmp_path / "renamed.safetensors"
    shutil.copy(files / "weights" / WEIGHTS, elsewhere)
    expected = parts(small("cifar10-finetune", seed=3)).middle.state_dict()
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(KeyError, match=r"put the same file into .*nothing/weights .*THINPIPE_DATA.* It has none"):
        Offers()[name]
    assert read_offer(name, [elsewhere]).weights == str(elsewhere)
    torch.testing.assert_close(Offers(files=[elsewhere])[name].make().state_dict(), expected, rtol=0, atol=0)


def test_a_recipe_whose_files_are_not_here_is_not_offered(tmp_path, monkeypatch):
    monkeypatch.setenv("THINPIPE_DATA", str(tmp_path))
    offers = Offers()
    assert "cifar10-finetune" in list(offers) and "cifar10-finetune" not in offers and "cola" not in offers
    assert "cifar10-finetune?weights=none" in offers and "cola?model=tiny" in offers
    with pytest.raises(KeyError, match="there is no encoder 'roberta-base'"):
        offers["cola"]


def test_a_server_need_not_know_how_many_classes_its_clients_data_has(files):
    recipe = small("imagefolder", data_dir=str(files / "own"), seed=4)
    made = Offers()[offer_name(recipe)].make()
    torch.testing.assert_close(made.state_dict(), parts(recipe).middle.state_dict(), rtol=0, atol=0)


def test_every_session_gets_the_clients_middle_in_a_module_of_its_own():
    offer = Offers()["digits?seed=3"]
    one, other = offer.make(), offer.make()
    expected = parts(resolved("digits", {"seed": 3})).middle.state_dict()
    torch.testing.assert_close(one.state_dict(), expected, rtol=0, atol=0)
    torch.testing.assert_close(other.state_dict(), expected, rtol=0, atol=0)
    assert next(one.parameters()) is not next(other.parameters())
    assert offer.example.shape == (1, 16, 8, 8)
    assert offer.optimizer(one.parameters()).param_groups[0]["lr"] == 0.1


def test_an_owners_factory_is_found_by_its_place(monkeypatch):
    monkeypatch.syspath_prepend("tests/train")
    offers = Offers(["digits"], user_offers(["mine=test_offers:mine"]))
    assert list(offers) == ["digits", "mine"] and isinstance(offers["mine"].make(), nn.Linear)
    assert isinstance(user_offers([f"mine={__file__}:mine"])["mine"]().make(), nn.Linear)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine", "write name=package.module:factory"),
        ("mine=nowhere", "write name=package.module:factory"),
        ("mine=nowhere:mine", "there is no module 'nowhere'"),
        ("mine=nowhere.py:mine", "there is no file nowhere.py"),
        ("mine=test_offers:absent", "absent"),
        ("mine=test_offers:nothing", "must return a thinpipe Offer, got Linear"),
    ],
)
def test_a_factory_that_cannot_be_used_is_explained(text, words, monkeypatch):
    monkeypatch.syspath_prepend("tests/train")
    with pytest.raises(RecipeError, match=words):
        user_offers([text])


def test_an_owners_offer_does_not_hide_a_recipe():
    with pytest.raises(RecipeError, match="choose another"):
        Offers(None, {"digits": mine})
    with pytest.raises(RecipeError, match="no recipe is called"):
        Offers(["digit"])
