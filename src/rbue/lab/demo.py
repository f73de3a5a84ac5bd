"""The library at work on a small network and the digits inside scikit-learn: ``python -m rbue.lab.demo``.

It trains a plain network, shows what random ReLUs cost without and with fine-tuning, and asks the fine-tuned
network about digits it knows and pictures it has never seen.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import rbue

SAMPLES = 50
QS = (0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Digits:
    """8x8 grey digits, scaled to [0, 1]: three quarters to train, one quarter to test."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls) -> Digits:
        """Read the digits that scikit-learn carries and split them, always in the same way."""
        bunch = load_digits()
        x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
        y = torch.tensor(bunch.target)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        test, train = order[: len(x) // 4], order[len(x) // 4 :]
        return cls(x[train], y[train], x[test], y[test])


class Block(nn.Module):
    """Two convolutions and a skip connection, the ReLUs functional as in many people's networks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same height and width."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class SmallResNet(nn.Module):
    """Four residual blocks: 41,514 parameters, eight ReLU call sites, not one ReLU module."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(1, 16), Block(16, 16), Block(16, 32), Block(32, 32)])
        self.head = nn.Linear(32 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images ``(B, 1, 8, 8)``."""
        for number, block in enumerate(self.blocks):
            x = block(x if number != 2 else F.max_pool2d(x, 2))
        return self.head(F.avg_pool2d(x, 2).flatten(1))


def train(network: nn.Module, data: Digits, epochs: int, learning_rate: float) -> None:
    """A plain training loop; nothing in it knows about random ReLUs."""
    network.train()
    optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_x)).split(64):
            loss = F.cross_entropy(network(data.train_x[batch]), data.train_y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()


def plain_probs(network: nn.Module, x: Tensor) -> Tensor:
    """Class probabilities of one ordinary pass."""
    network.eval()
    with torch.no_grad():
        return network(x).softmax(1)


def score(probs: Tensor, labels: Tensor) -> str:
    """Accuracy and ECE in one cell."""
    accuracy, ece = rbue.metrics.accuracy(probs, labels), rbue.metrics.ece(probs, labels)
    return f"{100 * float(accuracy):5.1f} %   {float(ece):.3f}"


def conversion_table(plain: nn.Module, data: Digits) -> tuple[Table, nn.Module]:
    """What random ReLUs cost, without and with fine-tuning; and the fine-tuned network with q = 0.9."""
    table = Table(title=f"Random ReLUs: test accuracy and ECE ({SAMPLES} samples)", title_justify="left")
    for heading in ("activation", "where", "converted only", "after fine-tuning"):
        table.add_column(heading, justify="left" if heading in ("activation", "where") else "right")
    longer = copy.deepcopy(plain)
    train(longer, data, epochs=5, learning_rate=1e-3)
    table.add_row(
        "plain ReLU",
        "",
        score(plain_probs(plain, data.test_x), data.test_y),
        score(plain_probs(longer, data.test_x), data.test_y),
    )
    table.add_section()
    activations = [(f"DropReLU q={q}", rbue.DropReLU(q)) for q in QS] + [("RReLU", rbue.RReLU())]
    kept = plain
    for name, activation in activations:
        for where in ("all", "last"):
            network = rbue.convert(copy.deepcopy(plain), activation, where=where, example=data.test_x[:1])
            before = rbue.predict(network, data.test_x, samples=SAMPLES)
            train(network, data, epochs=5, learning_rate=1e-3)
            after = rbue.predict(network, data.test_x, samples=SAMPLES)
            table.add_row(name, where, score(before.probs, data.test_y), score(after.probs, data.test_y))
            if activation == rbue.DropReLU(0.9) and where == "all":
                kept = network
        table.add_section()
    return table, kept


def certainty_table(plain: nn.Module, network: nn.Module, data: Digits) -> Table:
    """How sure the network is of digits, of digits on their side, and of noise."""
    noise = torch.rand(data.test_x.shape, generator=torch.Generator().manual_seed(1))
    inputs = {"test digits": data.test_x, "turned by 90°": data.test_x.rot90(1, (2, 3)), "noise": noise}
    table = Table(title="Does it know what it does not know? (DropReLU q=0.9, all sites)", title_justify="left")
    for heading in ("input", "plain confidence", "confidence", "entropy", "mutual information"):
        table.add_column(heading, justify="left" if heading == "input" else "right")
    for name, x in inputs.items():
        confidence = plain_probs(plain, x).amax(1)
        prediction = rbue.predict(network, x, samples=SAMPLES)
        values = (confidence, prediction.confidence, prediction.entropy, prediction.mutual_information)
        table.add_row(name, *(f"{float(value.mean()):.3f}" for value in values))
    return table


def main() -> None:
    """Run the demonstration and print it."""
    console = Console()
    torch.manual_seed(0)
    data = Digits.load()
    plain = SmallResNet()
    with console.status("training a plain network on digits ..."):
        train(plain, data, epochs=15, learning_rate=3e-3)
    console.print(f"Plain network: accuracy and ECE {score(plain_probs(plain, data.test_x), data.test_y)}\n")
    console.print("Its ReLU call sites, found by running it once:")
    console.print(f"{rbue.sites(plain, data.test_x[:1])}\n", highlight=False)
    with console.status("converting, sampling, fine-tuning ..."):
        conversions, network = conversion_table(plain, data)
    console.print(conversions)
    console.print("Train or fine-tune a network with its random ReLUs: the first column shows what it costs not to.\n")
    console.print(certainty_table(plain, network, data))


if __name__ == "__main__":
    main()
