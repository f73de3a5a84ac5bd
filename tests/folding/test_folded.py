"""Which pairs are folded, in what precision, and to what weights."""

from __future__ import annotations

import pytest
import torch
from folding_networks import assert_near, created, images, lived_in, made, norms, run
from torch import Tensor, nn

import rbue


@pytest.mark.parametrize(
    ("name", "before", "left"),
    # DenseNet's second BatchNorm of each of its 58 layers follows a convolution; the others follow a concatenation.
    [("resnet18", 20, 0), ("vgg13", 10, 0), ("densenet121", 120, 62), ("small_cnn", 3, 0)],
)
def test_models_keep_their_outputs_with_fewer_batchnorms(name: str, before: int, left: int) -> None:
    network, x = created(name), images()
    assert norms(network) == before
    folded = rbue.fold_batchnorm(network, images(2))
    assert norms(folded) == left
    assert sum(type(module) is nn.Identity for module in folded.modules()) == before - left
    assert_near(run(folded, x), run(network, x))


def test_outputs_agree_with_double_precision_too() -> None:
    network, x = created("resnet18").double(), images().double()
    assert_near(run(rbue.fold_batchnorm(network, x), x), run(network, x), 1e-12)


PAIRS = {
    "Linear": (nn.Linear(6, 8), nn.BatchNorm1d(8), (3, 6)),
    "Linear without bias": (nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), (3, 6)),
    "Conv1d": (nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), (3, 6, 5)),
    "Conv2d without bias": (nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), (3, 6, 5, 5)),
    "Conv2d with groups": (nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8), (3, 6, 5, 5)),
    "Conv2d with stride and padding": (
        nn.Conv2d(6, 8, 3, 2, 1, dilation=2, padding_mode="reflect"),
        nn.BatchNorm2d(8),
        (3, 6, 5, 5),
    ),
    "Conv3d": (nn.Conv3d(6, 8, 2), nn.BatchNorm3d(8), (3, 6, 3, 3, 3)),
    "large eps": (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, eps=0.5), (3, 6, 5, 5)),
    "no affine parameters": (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, affine=False), (3, 6, 5, 5)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_folded_weights_follow_the_formula(name: str) -> None:
    layer, norm, shape = PAIRS[name]
    network, x = lived_in(nn.Sequential(layer, norm)).eval(), torch.randn(shape)
    folded = rbue.fold_batchnorm(network, x)
    gamma, beta = (norm.weight, norm.bias) if norm.affine else (torch.ones(8), torch.zeros(8))
    scale = gamma.double() / (norm.running_var.double() + norm.eps).sqrt()
    bias = torch.zeros(8) if layer.bias is None else layer.bias
    weight = (layer.weight.double().transpose(0, -1) * scale).transpose(0, -1)
    assert_near(folded[0].weight, weight, 1e-6)
    assert_near(folded[0].bias, (bias - norm.running_mean).double() * scale + beta, 1e-6)
    assert type(folded[1]) is nn.Identity
    assert_near(run(folded, x), run(network, x))


def test_looking_at_the_shape_of_an_output_does_not_keep_it_from_folding() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            batch, _, height, _ = y.shape
            assert y.dim() == y.ndim == 4
            assert y.size(0) == batch
            assert y.dtype == x.dtype
            return self.norm(input=y).reshape(batch, -1) / height

    network = made(Looks)
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert_near(run(folded, images()), run(network, images()))


def test_batchnorm_with_two_names_goes_under_both() -> None:
    class TwoNames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.parts = nn.ModuleList([self.conv, self.norm])

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = part(x)
            return x

    network = made(TwoNames)
    folded = rbue.fold_batchnorm(network, images())
    assert type(folded.norm) is type(folded.parts[1]) is nn.Identity
    assert folded.conv is folded.parts[0]
    assert_near(run(folded, images()), run(network, images()))


def test_graph_module() -> None:
    network = torch.fx.symbolic_trace(created("resnet18"))
    rbue.convert(network, rbue.DropReLU(0.6), example=images())
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert norms(network) == 20
    expected = rbue.predict(network, images(), samples=3, seed=4, return_samples=True).samples
    assert_near(rbue.predict(folded, images(), samples=3, seed=4, return_samples=True).samples, expected)


def test_transformers_resnet() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    network = made(lambda: transformers.ResNetForImageClassification(config))
    assert norms(network) > 4
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert_near(run(folded, images()), run(network, images()))
    rbue.convert(network, rbue.DropReLU(0.6), example=images())
    expected = rbue.predict(network, images(), samples=3, return_samples=True).samples
    found = rbue.predict(rbue.fold_batchnorm(network, images()), images(), samples=3, return_samples=True).samples
    assert_near(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_rounded_once(dtype: torch.dtype) -> None:
    network = made(lambda: nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32))).to(dtype)
    layer, norm = network
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    folded = rbue.fold_batchnorm(network, x)
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = layer.weight.double() * scale[:, None]
    bias = (layer.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    assert folded[0].weight.dtype == folded[0].bias.dtype == dtype
    assert torch.equal(folded[0].weight, weight.to(dtype))
    assert torch.equal(folded[0].bias, bias.to(dtype))
    in_half = layer.weight * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]
    assert not torch.equal(in_half, weight.to(dtype))  # so that rounding on the way would show


def test_bfloat16_network_with_convolutions() -> None:
    network, x = created("small_cnn").bfloat16(), images(2, 8).bfloat16()
    folded = rbue.fold_batchnorm(network, x)
    assert norms(folded) == 0
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    assert_near(run(folded, x), run(network, x), 0.05)


def test_float32_batchnorm_after_a_half_precision_layer() -> None:
    network = made(lambda: nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.BatchNorm1d(8)))
    x = torch.randn(5, 6).bfloat16()
    folded = rbue.fold_batchnorm(network, x)
    assert run(folded, x).dtype == run(network, x).dtype == torch.bfloat16
    assert_near(run(folded, x), run(network, x), 0.03)


def test_autocast_is_allowed_its_rounding_where_the_output_does_not_show_it() -> None:
    class Wide(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).float()

    network, x = Wide(created("resnet18")), images()
    with torch.autocast("cpu", torch.bfloat16):
        folded = rbue.fold_batchnorm(network, x)
        gap = (run(folded, x) - run(network, x)).abs().max() / run(network, x).abs().max()
    assert gap > 1e-3
    assert {p.dtype for p in folded.parameters()} == {torch.float32}
    assert_near(run(folded, x), run(network, x))


def test_channels_last_is_kept() -> None:
    network = created("resnet18").to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    folded = rbue.fold_batchnorm(network, x)
    strides = {name: p.stride() for name, p in folded.named_parameters()}
    assert all(strides[name] == p.stride() for name, p in network.named_parameters() if name in strides)
    weight = folded.stages[0][0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert_near(run(folded, x), run(network, x))
