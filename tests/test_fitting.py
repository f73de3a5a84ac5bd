"""What is found out about a network before it is trained."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue import data
from rbue.errors import InvalidInput
from rbue.fitting import check_fits, draws_from_torch


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


class Returning(nn.Module):
    """Class scores of digits, in some form."""

    def __init__(self, form, classes=10):
        super().__init__()
        self.form, self.layer = form, nn.Linear(64, classes)

    def forward(self, x):
        return self.form(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: {"logits": y, "features": y[:1]},
        lambda y: SimpleNamespace(logits=y),
        lambda y: {"out": y},
    ],
    ids=["tensor", "dict", "object", "out"],
)
def test_scores_may_come_in_an_object(form):
    images = data.load("digits", "test")
    check_fits(Returning(form), "net", (1, 8, 8), images)
    with pytest.raises(InvalidInput, match=r"net returned an output of shape \(2, 9\) for two images .* \(2, 10\)"):
        check_fits(Returning(form, classes=9), "net", (1, 8, 8), images)


@pytest.mark.parametrize(("form", "kind"), [(lambda y: (y, y), "tuple"), (lambda y: None, "NoneType")])
def test_an_output_without_scores_is_refused(form, kind):
    with pytest.raises(InvalidInput, match=f"an output of type {kind} .* or an object or dict with such 'logits'"):
        check_fits(Returning(form), "net", (1, 8, 8), data.load("digits", "test"))
