"""Spellings that torch's compiler would not hand to a mode by itself are random in compiled code too."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue

SPELLINGS = {
    "torch.relu_": torch.relu_,
    "torch.clamp_": lambda x: torch.clamp_(x, min=0),
    "torch.threshold_": lambda x: torch.threshold_(x, 0, 0),
    "F.hardtanh_": lambda x: F.hardtanh_(x, 0.0, 6.0),
}


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x * 1)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_compiled_masks_are_the_eager_ones(spelling):
    torch._dynamo.reset()
    x = torch.randn(4, 50)
    network = rbue.convert(Applied(SPELLINGS[spelling]), rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 3)
    eager = network(x)
    assert (eager < 0).any()
    rbue.seed(network, 3)
    assert torch.compile(network, backend="eager", fullgraph=True)(x).equal(eager)
