"""A method makes random what its short text says, and nothing else."""

import pytest
import torch
from torch import nn

from rbue.activations import Dropout, DropReLU, RReLU
from rbue.call_sites import convert, seed
from rbue.lab.methods import parse

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def drawn(converted):
    seed(converted, 3)
    return converted(X)


@pytest.mark.parametrize(
    ("spec", "activation", "where"),
    [
        ("mc-droprelu:0.7", DropReLU(0.7), "all"),
        ("mc-droprelu:0.7,last", DropReLU(0.7), "last"),
        ("mc-rrelu", RReLU(1 / 8, 1 / 3), "all"),
        ("mc-rrelu:0.1,0.6,first", RReLU(0.1, 0.6), "first"),
        ("mc-dropout:0.2", Dropout(0.2), "last"),
        ("mc-dropout:0.2,all", Dropout(0.2), "all"),
    ],
)
def test_what_is_random_and_where(spec, activation, where):
    found = drawn(parse(spec).prepare(network(), X[:1]))
    assert found.equal(drawn(convert(network(), activation, where=where, example=X[:1])))
    assert not found.equal(network()(X))
