"""ResNet-18 for small images (He et al., 2016, https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from rbue.lab.models._building import initialise, pooled, scaled
from rbue.lab.models.registry import register


class Block(nn.Module):
    """Two 3x3 convolutions around a skip connection, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Features at ``1 / stride`` of the height and width."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


@register("resnet18")
class ResNet18(nn.Module):
    """Four stages of two blocks: 11,173,962 parameters, 17 ReLU call sites.

    The last three stages begin with stride 2; a map of 1x1 stays 1x1 under it, so small images need no exception.

    ``width`` is a factor on all channel counts, rounded to multiples of 8.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        sizes = [scaled(size, width) for size in (64, 128, 256, 512)]
        self.stem, self.norm = nn.Conv2d(channels, sizes[0], 3, 1, 1, bias=False), nn.BatchNorm2d(sizes[0])
        self.stages, inputs = nn.Sequential(), sizes[0]
        for outputs in sizes:
            stride = 1 if len(self.stages) == 0 else 2
            self.stages.append(nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1)))
            inputs = outputs
        self.head = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, channels, H, W)``."""
        return self.head(pooled(self.stages(F.relu(self.norm(self.stem(x))))))
