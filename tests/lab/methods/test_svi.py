"""SVI: its loss, which is cross-entropy plus the divergence, weighted and warmed up; and layers it has no effect on."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from rbue.errors import RbueWarning
from rbue.lab.methods import TrainingProgress, parse
from rbue.lab.methods.gaussian_layers import gaussian_layers

IMAGES = 50


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("fraction", "grown"), [(0.0, 0.0), (0.1, 0.25), (0.4, 1.0), (1.0, 1.0)])
def test_the_divergence_from_the_prior_grows_in_and_then_stays(fraction, grown, tied):
    torch.manual_seed(0)
    method = parse(f"svi:0.7,0.4,0.05,{tied}")
    network = method.prepare(nn.Sequential(nn.Linear(6, 3)), torch.zeros(1, 6))
    layer, x, y = network[0], torch.randn(8, 6), torch.arange(8) % 3
    prior = Normal(layer.weight if tied else torch.zeros(()), math.sqrt(2 / 6))
    divergence = kl_divergence(Normal(layer.weight, layer.std), prior).sum()

    torch.manual_seed(1)  # for the noise of the pre-activations
    loss, _ = method.loss(network, x, y, TrainingProgress(torch.tensor(fraction), IMAGES))
    torch.manual_seed(1)
    expected = F.cross_entropy(network(x), y) + 0.7 * grown * divergence / IMAGES
    torch.testing.assert_close(loss, expected)


def test_without_a_warm_up_the_divergence_counts_from_the_start():
    method, at_once = parse("svi:1.0,0.5"), parse("svi:1.0,0")
    network = method.prepare(nn.Sequential(nn.Linear(6, 3)), torch.zeros(1, 6))
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    found = []
    for one, fraction in ((at_once, 0.0), (method, 1.0)):
        torch.manual_seed(1)
        found.append(one.loss(network, x, y, TrainingProgress(torch.tensor(fraction), IMAGES))[0])
    torch.testing.assert_close(found[0], found[1])


class Cosine(nn.Module):
    """Reads the weight of ``classes`` past the layer, and calls the ``forward`` of ``features`` itself."""

    def __init__(self):
        super().__init__()
        self.features, self.norm, self.classes = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False)
        self.register_buffer("calls", torch.zeros(()))

    def __call__(self, x):
        return super().__call__(x.flatten(1))

    def forward(self, x):
        self.calls += 1
        x = F.dropout(self.norm(self.features.forward(x)), 0.5)
        return F.linear(F.normalize(x), F.normalize(self.classes.weight))


@pytest.mark.parametrize("wrap", [lambda network: network, nn.DataParallel], ids=["plain", "DataParallel"])
def test_layers_whose_draws_have_no_effect_are_named_and_the_network_stays_as_it_is(wrap):
    network = Cosine()
    before, generator = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    with pytest.warns(
        RbueWarning, match=r"the random weights of classes have no effect, .*let it call the layer"
    ) as given:
        parse("svi").prepare(wrap(network), torch.zeros(2, 2, 3))
    assert len(given) == 1
    assert torch.get_rng_state().equal(generator)
    assert all(network.state_dict()[name].equal(value) for name, value in before.items())
    assert all(module.training and "forward" not in vars(module) for module in network.modules())


@pytest.mark.parametrize("example", [None, torch.zeros(2, 5)], ids=["no example", "one that does not fit"])
def test_without_a_pass_nothing_is_said_of_the_layers(example):
    network = parse("svi").prepare(Cosine(), example)
    assert [path for path, _ in gaussian_layers(network)] == ["features", "classes"]
    assert not any("forward" in vars(module) for module in network.modules())
