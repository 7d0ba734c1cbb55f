"""The models: published sizes, torchvision's names, and the same training in a pipe as on one device."""

import copy
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from support import CHECKPOINT_MODES, InMicroBatches, assert_trains_like_one_device
from thinpipe import Pipe
from thinpipe.models import amoebanetd, mobilenet_v2, mobilenet_v2_cifar, resnet18, resnet101, unet, vgg13
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
    [
        (resnet101, 44_549_160),
        (resnet18, 11_689_512),
        (mobilenet_v2, 3_504_872),
        (mobilenet_v2_cifar, 2_296_922),
        (vgg13, 133_047_848),
    ],
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
        (mobilenet_v2_cifar(num_classes=7), (2, 3, 32, 32), (2, 7)),
    ],
    ids=["unet", "unet-odd", "amoebanet", "resnet18", "mobilenet", "mobilenet-cifar"],
)
def test_outputs_have_the_shape_that_is_expected(model, shape, expected):
    assert model(torch.rand(shape)).shape == expected


class NestedUNet(nn.Module):
    """A U-Net as torchgpipe's benchmark has it, written with the skips as variables: nothing works in place."""

    def __init__(self, B, C):
        super().__init__()
        self.down = nn.ModuleList(self.cell(B, 3 if k == 0 else C * 2 ** (k - 1), C * 2**k) for k in range(5))
        self.bottom = nn.Sequential(*self.cell(B - 1, C * 16, C * 32), *self.cell(1, C * 32, C * 16))
        self.up = nn.ModuleList(self.cell(B, C * 2 ** (k + 1), C * 2**k // 2) for k in range(5))
        self.segment = nn.Conv2d(C // 2, 1, 1, bias=False)

    @staticmethod
    def cell(B, channels_in, channels):
        layers = []
        for _ in range(B):
            layers += [nn.Conv2d(channels_in, channels, 3, padding=1, bias=False), nn.Dropout2d(0.1)]
            layers += [nn.InstanceNorm2d(channels), nn.LeakyReLU(0.01)]
            channels_in = channels
        return nn.Sequential(*layers)

    def forward(self, x):
        skips = []
        for cell in self.down:
            skips.append(cell(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for cell, skip in reversed(list(zip(self.up, skips, strict=True))):
            x = cell(torch.cat([nn.functional.interpolate(x, scale_factor=2), skip], dim=1))
        return self.segment(x)


def saved_bytes(model, x):
    """Counts the bytes that a forward pass keeps for the backward pass, besides the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # which stays, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(("B", "C"), [(2, 4), (3, 8)])
def test_a_unet_keeps_as_many_activations_as_the_published_one_and_in_place_a_fifth_less_at_least(B, C):
    x = torch.rand(2, 3, 64, 64)
    published = saved_bytes(NestedUNet(B, C), x)
    assert saved_bytes(unet(B, C), x) == published
    assert 0.7 * published < saved_bytes(unet(B, C, in_place=True), x) < 0.8 * published


def test_a_unet_in_place_computes_the_same_output_and_gradients():
    x, results = torch.rand(2, 3, 64, 64), []
    for in_place in (False, True):
        torch.manual_seed(0)
        model = unet(2, 4, in_place=in_place)
        output = model(x)
        output.square().mean().backward()
        results.append([output.detach(), *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results, rtol=0, atol=0)


SMALL = {
    "unet": (lambda: unet(2, 4), (3, 3, 64, 64)),
    "unet-in-place": (lambda: unet(2, 4, in_place=True), (3, 3, 64, 64)),
    "amoebanet": (lambda: amoebanetd(3, 16, num_classes=4), (5, 3, 64, 64)),
    "resnet18": (lambda: resnet18(num_classes=4), (5, 3, 32, 32)),
    "mobilenet": (lambda: mobilenet_v2(num_classes=4, dropout=0), (5, 3, 64, 64)),
    "mobilenet-cifar": (lambda: mobilenet_v2_cifar(num_classes=4), (5, 3, 32, 32)),
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


def mobilenet_of_document_003(weights, x):
    """Computes what that network does in training, block by block, with the weights of a sequence of small layers."""

    def conv(name, x, **how):
        return functional.conv2d(x, weights[f"{name}.weight"], **how)

    def norm(name, x):
        return functional.batch_norm(
            x, None, None, weights[f"{name}.weight"], weights[f"{name}.bias"], training=True, eps=1e-5
        )

    x = norm("bn1", conv("conv1", x, padding=1))  # and no ReLU: the cut is here
    for k in range(17):
        name, stride = f"layers_{k}", 2 if k in (3, 6, 13) else 1
        y = norm(f"{name}_bn1", conv(f"{name}_conv1", x)).relu()
        y = norm(f"{name}_bn2", conv(f"{name}_conv2", y, stride=stride, padding=1, groups=y.shape[1])).relu()
        y = norm(f"{name}_bn3", conv(f"{name}_conv3", y))
        if k in (0, 1, 10, 16):
            y = y + norm(f"{name}_shortcut.module.shortcut.1", conv(f"{name}_shortcut.module.shortcut.0", x))
        elif stride == 1:
            y = y + x
        x = y
    x = functional.avg_pool2d(norm("bn2", conv("conv2", x)).relu(), 4).flatten(1)
    return functional.linear(x, weights["linear.weight"], weights["linear.bias"])


def test_the_network_from_scratch_is_that_of_document_003():
    torch.manual_seed(0)
    model = mobilenet_v2_cifar().double()
    weights, images = dict(model.named_parameters()), torch.rand(4, 3, 32, 32, dtype=torch.float64)
    found, expected = model(images), mobilenet_of_document_003(weights, images)
    assert found.shape == (4, 10)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(each.square().sum(), list(weights.values())) for each in (found, expected)]
    torch.testing.assert_close(*grads)


def test_weights_under_the_names_of_pytorch_cifar_are_accepted():
    ours = mobilenet_v2_cifar()
    theirs = {
        re.sub(r"^layers_(\d+)_(?:shortcut\.module\.)?", r"layers.\1.", key): torch.rand_like(value.float())
        for key, value in ours.state_dict().items()
    }
    assert {"conv2.weight", "layers.3.bn2.running_var", "layers.10.shortcut.0.weight"} < theirs.keys()
    ours.load_state_dict(theirs)
    assert torch.equal(ours.layers_10_shortcut.module.shortcut[0].weight, theirs["layers.10.shortcut.0.weight"])


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
