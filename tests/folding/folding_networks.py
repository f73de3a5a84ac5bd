"""Networks with BatchNorms to fold, and how to compare what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rbue
from rbue import models

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
ACTIVATIONS = [rbue.DropReLU(0.6), rbue.RReLU(0.1, 0.5), rbue.Dropout(0.3)]


def lived_in(network: nn.Module) -> nn.Module:
    """The network with BatchNorms as after training: a fresh one does nothing, so folding it wrongly would not show."""
    generator = torch.Generator().manual_seed(3)

    def uniform(x: Tensor, low: float, high: float) -> None:
        x.data.copy_(low + (high - low) * torch.rand(x.shape, generator=generator))

    for module in network.modules():
        if isinstance(module, NORMS):
            for name, low, high in (("running_mean", -0.6, 0.6), ("running_var", 0.4, 2.5)):
                if getattr(module, name) is not None:
                    uniform(getattr(module, name), low, high)
            if module.affine:
                uniform(module.weight, 0.5, 1.6)
                uniform(module.bias, -0.5, 0.5)
    return network


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The same network every time, lived in, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return lived_in(build()).eval()


def created(name: str, width: float = 0.125) -> nn.Module:
    return made(lambda: models.create(name, classes=5, width=width))


def images(count: int = 4, size: int = 16) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, NORMS) for module in network.modules())


def run(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = network(x.clone())
    return out if isinstance(out, Tensor) else out.logits


def assert_near(found: Tensor, expected: Tensor, share: float = 1e-5) -> None:
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    assert float((found - expected).abs().max()) <= share * float(expected.abs().max())


def small() -> nn.Module:
    """Two pairs to fold and two sites whose modules a hook can watch."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def small_images() -> Tensor:
    return images(size=8)


class Pair(nn.Module):
    """A convolution and its BatchNorm; ``forward`` is what a case changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))
