"""The paper's three networks against their papers' figures, written out over the weights in their order."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rbue.lab.models import create


class Layers:
    """The layers of a network, handed out one after the other."""

    def __init__(self, network):
        self.left = [layer for layer in network.modules() if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))]

    def conv(self, x, stride=1):
        layer = self.left.pop(0)
        return F.conv2d(x, layer.weight, layer.bias, stride, padding=layer.weight.shape[-1] // 2)

    def norm(self, x):
        layer = self.left.pop(0)
        x = (x - layer.running_mean[:, None, None]) / (layer.running_var[:, None, None] + 1e-5).sqrt()
        return x * layer.weight[:, None, None] + layer.bias[:, None, None]

    def head(self, x):
        return F.linear(x.mean((2, 3)), self.left[0].weight, self.left.pop(0).bias)


def vgg13(x, layers):
    for _ in range(5):
        for _ in range(2):
            x = layers.norm(layers.conv(x)).clamp(min=0)
        x = F.max_pool2d(x, 2)
    return layers.head(x)


def resnet18(x, layers):
    x = layers.norm(layers.conv(x)).clamp(min=0)
    for stage in range(4):
        for block in range(2):
            narrows = stage > 0 and block == 0
            y = layers.norm(layers.conv(x, 2 if narrows else 1)).clamp(min=0)
            y = layers.norm(layers.conv(y))
            skip = layers.norm(layers.conv(x, 2)) if narrows else x
            x = (y + skip).clamp(min=0)
    return layers.head(x)


def densenet121(x, layers):
    x = layers.conv(x)
    for block in (6, 12, 24, 16):
        for _ in range(block):
            y = layers.conv(layers.norm(x).clamp(min=0))
            x = torch.cat([x, layers.conv(layers.norm(y).clamp(min=0))], 1)
        if block != 16:
            x = F.avg_pool2d(layers.conv(layers.norm(x).clamp(min=0)), 2)
    return layers.head(layers.norm(x).clamp(min=0))


@pytest.mark.parametrize("written", [vgg13, resnet18, densenet121], ids=lambda one: one.__name__)
def test_a_network_is_what_its_paper_draws(written):
    torch.manual_seed(0)
    network = create(written.__name__, width=0.125).double().eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    x, layers = torch.randn(2, 3, 32, 32, dtype=torch.float64), Layers(network)
    with torch.no_grad():
        torch.testing.assert_close(network(x), written(x, layers))
    assert not layers.left
