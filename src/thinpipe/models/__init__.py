"""Models as sequences of small layers, that can be cut anywhere and balance well."""

from thinpipe.models.amoebanet import amoebanetd
from thinpipe.models.mobilenet import mobilenet_v2, mobilenet_v2_cifar
from thinpipe.models.resnet import resnet18, resnet101
from thinpipe.models.unet import unet
from thinpipe.models.vgg import vgg13

__all__ = ["amoebanetd", "mobilenet_v2", "mobilenet_v2_cifar", "resnet18", "resnet101", "unet", "vgg13"]
