"""Whole networks on batches of any size."""

import pytest
import torch
from torch import nn

from rbue.lab.methods import members
from rbue.lab.methods.members import outputs_of


class Recording(nn.Module):
    """Keeps the sizes of its batches, and works in place."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return x.mul_(2).flatten(1)[:, :3]


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((7, 3, 4, 4), [3, 3, 1]), ((3, 3, 4, 4), [3]), ((2, 3, 100, 100), [1, 1]), ((7, 5), [7])],
)
def test_the_rows_of_a_pass_depend_on_the_pixels(monkeypatch, shape, sizes):
    monkeypatch.setitem(members.PASS_PIXELS, "cpu", 48)
    network, x = Recording(), torch.randn(shape)
    before = x.clone()
    assert outputs_of(network, x).equal(2 * before.flatten(1)[:, :3])
    assert network.sizes == sizes
    assert x.equal(before)
