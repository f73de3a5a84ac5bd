"""Small networks in the styles that people write, each with its number of ReLU call sites counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm


class Bottleneck(nn.Module):
    """torchvision's ResNet: one in-place ReLU module, called three times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width // 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class SharedReluResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.layers = nn.Sequential(Bottleneck(8), Bottleneck(8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.relu(self.conv(x))).mean((2, 3)))


class FunctionalCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.conv2 = nn.Conv2d(6, 6, 3)
        self.fc1 = nn.Linear(6, 12)
        self.fc2 = nn.Linear(12, 12)
        self.fc3 = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x)).mean((2, 3))
        x = self.fc1(x).relu()
        x = self.fc2(x).clamp(min=0)
        return self.fc3(x)


class InPlaceStatements(nn.Module):
    """The result is read through the old name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc1 = nn.Linear(6, 12)
        self.fc2 = nn.Linear(12, 12)
        self.fc3 = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x.relu_()
        x = self.fc1(x.mean((2, 3)))
        F.relu(x, inplace=True)
        x = self.fc2(x)
        x.clamp_(min=0)
        return self.fc3(x)


class PreActivationBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return x + out


class PreActivationResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.blocks = nn.ModuleList([PreActivationBlock(), PreActivationBlock()])
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(inputs, 4, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv(self.relu(self.norm(torch.cat(features, 1))))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DenseLayer(3), DenseLayer(7), DenseLayer(11)])
        self.norm = nn.BatchNorm2d(15)
        self.classifier = nn.Linear(15, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        out = F.relu(self.norm(torch.cat(features, 1)), inplace=True)
        return self.classifier(out.mean((2, 3)))


class Branching(nn.Module):
    """One branch depends on an attribute, one on the shape of the input; each has ReLUs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.early = nn.Sequential(nn.Conv2d(6, 6, 1), nn.ReLU())
        self.large = nn.Conv2d(6, 6, 1)
        self.head = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
        self.use_early = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.use_early:
            x = self.early(x)
        x = F.relu(self.large(x)) if x.shape[-1] > 8 else x
        return self.head(x.mean((2, 3)))


class TwoRelus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc2(F.relu(self.fc1(x))))


class SharedBlockLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.block = TwoRelus()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).mean((2, 3))
        for _ in range(3):
            x = x + self.block(x)
        return self.fc(x)


class InvertedResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(6, 12, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, 6, 1, bias=False),
            nn.BatchNorm2d(6),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU6(), InvertedResidual(), InvertedResidual())
        self.classifier = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(4 * x).mean((2, 3)))


class TransformerClassifier(nn.Module):
    """In evaluation mode torch runs such layers as one fused kernel, unless it is kept from it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="relu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed = nn.Linear(3, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.flatten(2).transpose(1, 2))
        return self.fc(self.encoder(tokens).mean(1))


class SpectralNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = spectral_norm(nn.Conv2d(3, 6, 3))
        self.fc1 = spectral_norm(nn.Linear(6, 12))
        self.fc2 = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(F.relu(self.conv(x)).mean((2, 3)))))


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.Threshold(0, 0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 12),
        nn.Hardtanh(0, 6),
        nn.Linear(12, 5),
    )


def graph_module() -> nn.Module:
    return fx.symbolic_trace(nn.Sequential(FunctionalCNN(), nn.ReLU(inplace=True), nn.Linear(5, 5)))


def transformers_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
    return ResNetForImageClassification(config)


def transformers_regnet() -> nn.Module:
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4, num_labels=5)
    return RegNetForImageClassification(config)


@dataclass(frozen=True)
class Style:
    """How to make a network of one style, and how many ReLU call sites a person counts in it."""

    build: Callable[[], nn.Module]
    sites: int

    def make(self) -> nn.Module:
        """The same network every time, in evaluation mode, with weights that reach both sides of each ReLU."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = self.build()
            for parameter in network.parameters():
                parameter.data.mul_(1.5)
        return network.eval()


STYLES: dict[str, Style] = {
    "shared module": Style(SharedReluResNet, 1 + 3 + 3),
    "functional": Style(FunctionalCNN, 4),
    "in-place statements": Style(InPlaceStatements, 3),
    "pre-activation": Style(PreActivationResNet, 2 + 2 + 1),
    "dense concatenation": Style(DenseNet, 3 + 1),
    "branching": Style(Branching, 3),
    "loop over a block": Style(SharedBlockLoop, 3 * 2),
    "ReLU6": Style(MobileNet, 1 + 2 + 2),
    "transformer layer": Style(TransformerClassifier, 2),
    "spectral norm": Style(SpectralNorm, 2),
    "sequential": Style(sequential, 3),
    "graph module": Style(graph_module, 4 + 1),
    "transformers ResNet": Style(transformers_resnet, 1 + 2 * 2),
    "transformers RegNet": Style(transformers_regnet, 1 + 2 * 4),
}


def images(count: int = 4, size: int = 16) -> Tensor:
    """An input that all the styles take, the same every time."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def scores(output: Any) -> Tensor:
    """The tensor in a network's output."""
    return output if isinstance(output, Tensor) else output.logits


def run(network: nn.Module, x: Tensor) -> Tensor:
    """The network's output without gradients; its input is kept from in-place changes."""
    with torch.no_grad():
        return scores(network(x.clone()))


def mlp(seed: int = 0) -> nn.Module:
    """The smallest network of all: two sites, four features in, three out."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def rows(count: int = 6) -> Tensor:
    """An input for :func:`mlp`."""
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(2))
