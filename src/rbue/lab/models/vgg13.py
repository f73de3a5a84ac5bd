"""VGG-13 with BatchNorm for small images (Simonyan and Zisserman, 2015, https://arxiv.org/abs/1409.1556)."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from rbue.lab.models._building import halved, initialise, pooled, scaled
from rbue.lab.models.registry import register


class Stage(nn.Module):
    """Two 3x3 convolutions, each with BatchNorm and ReLU, then 2x2 max-pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Features at half the height and width."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return halved(x, "max")


@register("vgg13")
class VGG13(nn.Module):
    """Five stages and one linear layer in place of VGG's three: 9,416,010 parameters, 10 ReLU call sites.

    Its five poolings bring 32x32 down to 1x1. Smaller images get there earlier and the remaining poolings are
    left out (the last two for 8x8); larger ones leave a map that is averaged.

    ``width`` is a factor on all channel counts, rounded to multiples of 8.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        sizes = [channels, *(scaled(size, width) for size in (64, 128, 256, 512, 512))]
        self.stages = nn.Sequential(*(Stage(*pair) for pair in pairwise(sizes)))
        self.head = nn.Linear(sizes[-1], classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, channels, H, W)``."""
        return self.head(pooled(self.stages(x)))
