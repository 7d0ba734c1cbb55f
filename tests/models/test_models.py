"""The models: published sizes, torchvision's names, and the same training in a pipe as on one device."""

import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, InMicroBatches, assert_trains_like_one_device
from thinpipe import Pipe
from thinpipe.models import amoebanetd, mobilenet_v2, resnet18, resnet101, unet, vgg13
from thinpipe.stages.microbatch import row_counts
from thinpipe.stages.skip import Skippable, verify_skippables

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
WEIGHTS = DATA / "weights" / "mobilenet_v2_torchvision_v1.safetensors"


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("B", "C", "layers", "parameters"),
    [
        (6, 72, 285, 362_157_516),
        (11, 128, 505, 2_213_834_176),
        (24, 128, 1077, 4_993_859_008),
        (24, 160, 1077, 7_802_903_600),
        (48, 160, 2133, 15_822_206_000),
        (5, 64, 241, 232_687_328),
    ],
)
def test_every_published_unet_has_its_published_size(B, C, layers, parameters):
    with torch.device("meta"):
        model = unet(B, C)
    assert (len(model), size(model)) == (layers, parameters)
    verify_skippables(model)


@pytest.mark.parametrize(
    ("L", "D", "parameters"),
    [
        (18, 208, 81_505_540),
        (18, 416, 319_024_120),
        (18, 544, 542_734_840),
        (36, 544, 1_055_832_376),
        (72, 512, 1_844_858_344),
        (18, 256, 122_470_120),
    ],
)
@pytest.mark.parametrize("published_pooling", [False, True])
def test_every_published_amoebanet_has_its_published_size(L, D, parameters, published_pooling):
    with torch.device("meta"):
        model = amoebanetd(L, D, published_pooling=published_pooling)
    assert (len(model), size(model)) == (L + 6, parameters)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [(resnet101, 44_549_160), (resnet18, 11_689_512), (mobilenet_v2, 3_504_872), (vgg13, 133_047_848)],
)
def test_every_classifier_has_its_published_size(make, parameters):
    with torch.device("meta"):
        model = make()
    assert size(model) == parameters


def test_resnet101_has_370_layers_of_which_66_are_skippable():
    with torch.device("meta"):
        model = resnet101()
    assert len(model) == 370
    assert sum(isinstance(layer, Skippable) for layer in model) == 66


def test_the_pooling_of_amoebanet_is_a_maximum_unless_the_published_one_is_wanted():
    assert isinstance(amoebanetd(3, 16)[1].operations[1], nn.MaxPool2d)
    assert isinstance(amoebanetd(3, 16, published_pooling=True)[1].operations[1], nn.AvgPool2d)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (unet(2, 4), (2, 3, 64, 64), (2, 1, 64, 64)),
        (unet(1, 4, input_channels=1, output_channels=5), (1, 1, 70, 66), (1, 5, 70, 66)),
        (amoebanetd(3, 16, num_classes=7), (2, 3, 64, 64), (2, 7)),
        (resnet18(num_classes=7), (2, 3, 64, 64), (2, 7)),
        (mobilenet_v2(num_classes=7), (2, 3, 64, 64), (2, 7)),
    ],
    ids=["unet", "unet-odd", "amoebanet", "resnet18", "mobilenet"],
)
def test_outputs_have_the_shape_that_is_expected(model, shape, expected):
    assert model(torch.rand(shape)).shape == expected


SMALL = {
    "unet": (lambda: unet(2, 4), (3, 3, 64, 64)),
    "amoebanet": (lambda: amoebanetd(3, 16, num_classes=4), (5, 3, 64, 64)),
    "resnet18": (lambda: resnet18(num_classes=4), (5, 3, 32, 32)),
    "mobilenet": (lambda: mobilenet_v2(num_classes=4, dropout=0), (5, 3, 64, 64)),
}


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("name", SMALL)
def test_models_train_in_a_pipe_as_on_one_device(name, checkpoint):
    make, shape = SMALL[name]
    model = make().double()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout2d):
            layer.p = 0.0
    third = len(model) // 3
    assert_trains_like_one_device(
        model,
        torch.rand(shape, dtype=torch.float64),
        [third, third, len(model) - 2 * third],
        chunks=2,
        checkpoint=checkpoint,
        reference=lambda bare: InMicroBatches(bare, row_counts(shape[0], 2)),
        tolerance={"rtol": 1e-6, "atol": 1e-8},
    )


def torchvision_resnet18(num_classes):
    """Makes a state dict under the names torchvision gives, independently of ours."""
    state = {}

    def norm(name, channels):
        for key in ("weight", "bias", "running_mean", "running_var"):
            state[f"{name}.{key}"] = torch.rand(channels)
        state[f"{name}.num_batches_tracked"] = torch.tensor(3)

    state["conv1.weight"] = torch.rand(64, 3, 7, 7)
    norm("bn1", 64)
    channels = 64
    for group in range(4):
        width = 64 * 2**group
        for block in range(2):
            name = f"layer{group + 1}.{block}"
            state[f"{name}.conv1.weight"] = torch.rand(width, channels, 3, 3)
            norm(f"{name}.bn1", width)
            state[f"{name}.conv2.weight"] = torch.rand(width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if group and not block:
                state[f"{name}.downsample.0.weight"] = torch.rand(width, channels, 1, 1)
                norm(f"{name}.downsample.1", width)
            channels = width
    state["fc.weight"], state["fc.bias"] = torch.rand(num_classes, 512), torch.rand(num_classes)
    return state


def test_torchvisions_names_are_accepted_bare_and_in_a_pipe():
    theirs = torchvision_resnet18(10)
    bare = resnet18(num_classes=10)
    bare.load_state_dict(theirs)
    pipe = Pipe(resnet18(num_classes=10), [30, len(bare) - 30], devices=["cpu"] * 2)
    pipe.load_state_dict(theirs)
    torch.testing.assert_close(pipe.state_dict(), bare.state_dict())
    assert torch.equal(bare.layer2_0_downsample.module.shortcut[0].weight, theirs["layer2.0.downsample.0.weight"])
    outer = nn.ModuleDict({"body": resnet18(num_classes=10)})
    outer.load_state_dict({f"body.{key}": value for key, value in theirs.items()})
    resnet18(num_classes=10).load_state_dict(bare.state_dict())


def test_a_name_that_fits_nothing_is_still_refused():
    with pytest.raises(RuntimeError, match=r"Unexpected key.*layer9\.0\.conv1\.weight"):
        resnet18().load_state_dict({**resnet18().state_dict(), "layer9.0.conv1.weight": torch.rand(1)})


def test_models_can_be_copied_and_pickled():
    model = mobilenet_v2(num_classes=3)
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    torch.testing.assert_close(again.state_dict(), model.state_dict())


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the ImageNet weights are not here; set THINPIPE_DATA")
def test_pretrained_mobilenet_weights_load_and_mean_something():
    from safetensors.torch import load_file

    model = mobilenet_v2()
    model.load_state_dict(load_file(WEIGHTS))
    scores = model.eval()(torch.zeros(1, 3, 224, 224)).softmax(1)
    assert scores.max() > 0.01, "random weights would spread evenly over a thousand classes"


@pytest.mark.parametrize(
    "wrong", [lambda: unet(0, 8), lambda: unet(1, 1), lambda: amoebanetd(4, 16), lambda: amoebanetd(3, 8)]
)
def test_sizes_that_make_no_network_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        wrong()
