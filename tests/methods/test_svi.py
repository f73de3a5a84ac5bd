"""The loss of SVI: cross-entropy plus the divergence, weighted and warmed up."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from rbue.methods import TrainingProgress, parse

IMAGES = 50


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("fraction", "grown"), [(0.0, 0.0), (0.1, 0.25), (0.4, 1.0), (1.0, 1.0)])
def test_the_divergence_from_the_prior_grows_in_and_then_stays(fraction, grown, tied):
    torch.manual_seed(0)
    method = parse(f"svi:0.7,0.4,0.05,{tied}")
    network = method.prepare(nn.Sequential(nn.Linear(6, 3)), torch.zeros(1, 6))
    layer, x, y = network[0], torch.randn(8, 6), torch.arange(8) % 3
    prior = Normal(layer.weight if tied else torch.zeros(()), math.sqrt(2 / 6))
    divergence = kl_divergence(Normal(layer.weight, layer.deviation), prior).sum()

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
