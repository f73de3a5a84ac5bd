"""Parameters and multiply-adds, against closed forms and an independent count with hooks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.lab.models import create, list_models, multiply_adds, parameters


def counted_by_hooks(network, shape):
    """Convolutions and linear layers only, from the shapes that pass."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        weights = module.weight.numel() // module.weight.shape[0]
        total += output.numel() * weights

    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    network.eval()(torch.empty(1, *shape, device="meta"))
    return total


def test_closed_form():
    a, b, c, head = 32 * 32 * 16 * 27, 16 * 16 * 32 * 144, 8 * 8 * 64 * 288, 640
    assert multiply_adds(create("small_cnn"), (3, 32, 32)) == a + b + c + head


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("side", [8, 64])
def test_agrees_with_hooks(name, side):
    with torch.device("meta"):
        network = create(name, classes=100)
    assert multiply_adds(network, (3, side, side)) == counted_by_hooks(network, (3, side, side))


def test_known_sizes():
    with torch.device("meta"):
        known = {name: multiply_adds(create(name), (3, 32, 32)) / 1e9 for name in list_models()}
    assert known["resnet18"] == pytest.approx(0.556, abs=0.001)
    assert known["vgg13"] == pytest.approx(0.228, abs=0.001)
    assert known["densenet121"] == pytest.approx(0.888, abs=0.001)


def test_functional_calls_grouped_and_transposed_convolutions_count():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, 4))
            self.up = nn.ConvTranspose2d(4, 6, 2, 2)
            self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=3)

        def forward(self, x):
            return F.linear(self.grouped(self.up(x)).mean((2, 3))[:, :4], self.weight)

    assert multiply_adds(Odd(), (4, 5, 5)) == 5 * 5 * 4 * 6 * 4 + 10 * 10 * 6 * 2 * 9 + 20


def test_the_network_is_not_touched():
    network = create("small_cnn").double().train()
    rbue.convert(network, rbue.DropReLU(0.5), example=torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    network.norm1.eval()
    before = {key: value.clone() for key, value in [*network.state_dict().items(), *network.named_buffers()]}
    plain = multiply_adds(create("small_cnn"), (3, 8, 8))
    assert multiply_adds(network, (3, 8, 8)) == plain
    after = dict([*network.state_dict().items(), *network.named_buffers()])
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert (network.training, network.norm1.training, network.norm2.training) == (True, False, True)


def test_a_shared_parameter_counts_once():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    assert parameters(network) == 16 + 4 + 4
    assert parameters(nn.Identity()) == 0
    assert multiply_adds(nn.Identity(), (3,)) == 0


@pytest.mark.parametrize("shape", [(), (3, 0, 8), (3, -1, 8), (3, 8.0, 8)])
def test_impossible_shapes(shape):
    with pytest.raises(rbue.InvalidInput, match="input_shape is"):
        multiply_adds(nn.Identity(), shape)
