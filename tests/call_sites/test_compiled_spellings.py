"""Spellings that torch's compiler would not hand to a mode by itself are random in compiled code too."""

from __future__ import annotations

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
    def forward(self, x):
        return torch.stack([function(x * 1) for function in SPELLINGS.values()], 1)


def test_compiled_masks_are_the_eager_ones():
    """In one graph: compiling takes the time."""
    torch._dynamo.reset()
    x = torch.randn(4, 50)
    network = rbue.convert(Applied(), rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 3)
    eager = network(x)
    rbue.seed(network, 3)
    compiled = torch.compile(network, backend="eager", fullgraph=True)(x)
    for place, name in enumerate(SPELLINGS):
        assert (eager[:, place] < 0).any(), name
        assert compiled[:, place].equal(eager[:, place]), name
