"""A small CNN that learns the digits of scikit-learn in seconds on a CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from rbue.lab.models._building import initialise, pooled, scaled
from rbue.lab.models.registry import register


@register("small_cnn")
class SmallCNN(nn.Module):
    """Three 3x3 convolutions of 16, 32 and 64 channels with BatchNorm: 24,346 parameters, 3 ReLU call sites.

    The second and third have stride 2, so that most of the work is done on small maps.

    ``width`` is a factor on all channel counts, rounded to multiples of 8.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        a, b, c = (scaled(size, width) for size in (16, 32, 64))
        self.conv1, self.norm1 = nn.Conv2d(channels, a, 3, 1, 1, bias=False), nn.BatchNorm2d(a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b)
        self.conv3, self.norm3 = nn.Conv2d(b, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c)
        self.head = nn.Linear(c, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, channels, H, W)``."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.head(pooled(x))
