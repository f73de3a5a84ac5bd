"""The two networks the CPU goals are stated for: ResNet-18 with the CIFAR stem, and a 16-32-64 CNN."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A basic residual block with one shared in-place ReLU module, as torchvision writes it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and the skip connection."""
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.skip(x)
        return self.relu(y)


class ResNet18(nn.Module):
    """11,173,962 parameters, 17 ReLU call sites."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        sizes += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(Block(*size) for size in sizes))
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, 3, H, W)``."""
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class SmallCNN(nn.Module):
    """Three convolutions of 16, 32 and 64 channels, functional ReLUs."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.conv3, self.head = nn.Conv2d(32, 64, 3, 2, 1), nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, 3, H, W)``."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.head(F.relu(self.conv3(x)).mean((2, 3)))
