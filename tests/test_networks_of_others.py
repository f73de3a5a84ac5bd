"""Networks that others wrote: converted, trained with a plain loop, saved, and the same in a new process."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rbue

transformers = pytest.importorskip("transformers")

CLASSES = 3


class UNet(nn.Module):
    """Two levels down and up again, with BatchNorm and skips."""

    def __init__(self) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True))

        self.down, self.lowest, self.up = block(3, 8), block(8, 16), block(16, 8)
        self.enlarge = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        x = self.enlarge(self.lowest(F.max_pool2d(skip, 2)))
        return self.head(self.up(torch.cat([skip, x], 1)))


class GaussianMLP(nn.Module):
    """A mean and a variance, as two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.head(F.relu(self.second(torch.relu(self.first(x))))).unbind(1)
        return mean, F.softplus(raw) + 1e-3


@dataclass(frozen=True)
class Case:
    """One network.

    Attributes:
        build: makes it.
        inputs: makes what its users have for it, and what it is trained with.
        loss: that of its outputs.
        activation: what is random.
        outputs: what :func:`rbue.predict` is told of it.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, Tensor]]
    loss: Callable[[Any, Tensor], Tensor]
    activation: Any
    outputs: str = "logits"


TEXT = {"vocab_size": 50, "max_position_embeddings": 16, "num_labels": CLASSES}
IMAGE = {"image_size": 16, "num_labels": CLASSES}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **TEXT
    )
    return transformers.BertForSequenceClassification(config)


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **TEXT)
    return transformers.DistilBertForSequenceClassification(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, patch_size=4, **IMAGE
    )
    return transformers.ViTForImageClassification(config)


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, **IMAGE)
    return transformers.ConvNextForImageClassification(config)


def segformer() -> nn.Module:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2], sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.SegformerForSemanticSegmentation(config)


def text() -> tuple[Any, Tensor]:
    ids, mask = torch.randint(1, 50, (6, 9)), torch.ones(6, 9, dtype=torch.int64)
    mask[1::2, 5:] = 0
    return transformers.BatchEncoding({"input_ids": ids * mask, "attention_mask": mask}), torch.arange(6) % CLASSES


def picture() -> tuple[Any, Tensor]:
    return transformers.BatchFeature({"pixel_values": torch.randn(6, 3, 16, 16)}), torch.arange(6) % CLASSES


def of_logits(out: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(out.logits, y)


CASES = {
    "BERT": Case(bert, text, of_logits, rbue.DropActivation(0.9)),
    "DistilBERT": Case(distilbert, text, of_logits, rbue.DropActivation(0.9)),
    "ViT": Case(vit, picture, of_logits, rbue.DropActivation(0.9)),
    "ConvNeXt": Case(convnext, picture, of_logits, rbue.DropActivation(0.9)),
    "SegFormer": Case(  # its labels are a map, a quarter of the image each way
        segformer,
        lambda: (transformers.BatchFeature({"pixel_values": torch.randn(4, 3, 32, 32)}), torch.arange(4) % CLASSES),
        lambda out, y: F.cross_entropy(out.logits, y[:, None, None].expand(-1, 8, 8)),
        rbue.DropActivation(0.9),
    ),
    "U-Net": Case(
        UNet,
        lambda: (torch.randn(4, 3, 16, 16), torch.randint(CLASSES, (4, 16, 16))),
        F.cross_entropy,
        rbue.DropReLU(0.9),
    ),
    "regression": Case(
        GaussianMLP,
        lambda: (torch.randn(8, 4), torch.randn(8)),
        lambda out, y: F.gaussian_nll_loss(out[0], y, out[1]),
        rbue.DropReLU(0.9),
        "gaussian",
    ),
}


def built(name: str) -> nn.Module:
    """A fresh network, whose weights are others in each process."""
    return CASES[name].build()


def batch(name: str) -> tuple[Any, Tensor]:
    """The same inputs and targets in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return CASES[name].inputs()


def called(network: nn.Module, x: Any) -> Any:
    return network(x) if isinstance(x, Tensor) else network(**x)


def answers(network: nn.Module, x: Any) -> list[Tensor]:
    """The tensors that it returns."""
    out = called(network, x)
    return list(out) if isinstance(out, tuple) else [getattr(out, "logits", out)]


def tensors_of(prediction: Any) -> dict[str, Tensor]:
    """Every number of a prediction, the samples among them."""
    found = {one.name: getattr(prediction, one.name) for one in fields(prediction)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def predicted(name: str, network: nn.Module) -> dict[str, Tensor]:
    x, _ = batch(name)
    return tensors_of(rbue.predict(network, x, samples=10, outputs=CASES[name].outputs, return_samples=True))


def trained(name: str) -> nn.Module:
    """Converted and trained for two steps as any network is."""
    torch.manual_seed(0)
    case, (x, y) = CASES[name], batch(name)
    network = rbue.convert(case.build(), case.activation, example=x).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        case.loss(called(network, x), y).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    return {name: trained(name) for name in CASES}


CHILD = """
import sys, torch, rbue
sys.path.insert(0, sys.argv[1])
import test_networks_of_others as those
found = {}
for name in those.CASES:
    network = rbue.load(f"{sys.argv[2]}/{name}.safetensors", those.built(name))
    found[name] = those.predicted(name, network)
torch.save(found, f"{sys.argv[2]}/found")
"""


@pytest.fixture(scope="module")
def elsewhere(networks: dict[str, nn.Module], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What a new process predicts with the saved networks; importing takes longer than the rest, so there is one."""
    folder = tmp_path_factory.mktemp("networks")
    for name, network in networks.items():
        rbue.save(network, folder / f"{name}.safetensors")
    subprocess.run([sys.executable, "-c", CHILD, str(Path(__file__).parent), str(folder)], check=True)
    return torch.load(folder / "found")


@pytest.mark.slow  # the other process imports all of transformers
@pytest.mark.parametrize("name", CASES)
def test_a_new_process_predicts_the_same_bits(name, networks, elsewhere):
    here = predicted(name, networks[name])
    assert here["samples"].std(0).max() > 0
    assert here.keys() == elsewhere[name].keys()
    for part, value in here.items():
        assert torch.equal(value, elsewhere[name][part]), part


@pytest.mark.parametrize("name", CASES)
def test_reverting_gives_back_the_plain_network_bit_for_bit(name):
    torch.manual_seed(0)
    case, (x, _) = CASES[name], batch(name)
    network = case.build().eval()
    state, before = copy.deepcopy(network.state_dict()), answers(network, x)
    rbue.convert(network, case.activation, example=x)
    predicted(name, network)
    after = answers(rbue.revert(network), x)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert network.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", CASES)
def test_training_moves_the_weights_and_predicting_does_not(name, networks):
    network = networks[name]
    torch.manual_seed(0)
    fresh = CASES[name].build()
    moved = [not torch.equal(one, other) for one, other in zip(network.parameters(), fresh.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    before = copy.deepcopy(network.state_dict())
    predicted(name, network)
    assert network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
