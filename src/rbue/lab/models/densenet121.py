"""DenseNet-121 for small images (Huang et al., 2017, https://arxiv.org/abs/1608.06993)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue.lab.models._building import halved, initialise, pooled, scaled
from rbue.lab.models.registry import register

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


class Layer(nn.Module):
    """A 1x1 and a 3x3 convolution, each after BatchNorm and ReLU; what they find is added to what came in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """All features of ``x`` and ``growth`` new ones."""
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        return torch.cat([x, y], 1)


class Transition(nn.Module):
    """Half the channels, and half the height and width."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """A 1x1 convolution after BatchNorm and ReLU, then 2x2 average pooling."""
        return halved(self.conv(F.relu(self.norm(x))), "average")


@register("densenet121")
class DenseNet121(nn.Module):
    """Dense blocks of 6, 12, 24 and 16 layers, growth 32: 6,956,298 parameters, 120 ReLU call sites.

    The 3x3 stem has no BatchNorm or ReLU of its own; the first layer begins with both. The transitions stop
    pooling at a map of 1x1, which only images below 8x8 meet.

    ``width`` is a factor on the growth, rounded to a multiple of 4; all other channel counts follow from it.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        growth = scaled(GROWTH, width, multiple=4)
        size = 2 * growth
        self.stem = nn.Conv2d(channels, size, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for number, layers in enumerate(BLOCKS):
            block = nn.Sequential(*(Layer(size + k * growth, growth) for k in range(layers)))
            size += layers * growth
            if number < len(BLOCKS) - 1:
                block.append(Transition(size))
                size //= 2
            self.blocks.append(block)
        self.norm = nn.BatchNorm2d(size)
        self.head = nn.Linear(size, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, channels, H, W)``."""
        return self.head(pooled(F.relu(self.norm(self.blocks(self.stem(x))))))
