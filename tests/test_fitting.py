"""What is found out about a network before it is trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.fitting import draws_from_torch


class Functional(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.layer, self.p = nn.Linear(6, 2), p

    def forward(self, x):
        return self.layer(F.dropout(x, self.p, self.training))


def random_relus():
    return rbue.convert(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), rbue.DropReLU(0.5))


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), False),
        (random_relus, False),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), True),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 2)), True),
        (lambda: Functional(0.5), True),
        (lambda: Functional(0.0), False),
        (lambda: nn.Linear(7, 2), True),
    ],
    ids=["plain", "random ReLUs", "dropout", "rrelu", "functional", "functional off", "cannot be watched"],
)
def test_networks_that_draw_from_torch_are_seen_and_stay_as_they_are(make, draws):
    network, x = make().eval(), torch.randn(2, 6)  # it is asked how it trains, whatever its mode
    before, generator = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    assert draws_from_torch(network, x) is draws
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
