"""Samples that are whole networks: members of an ensemble, or a single network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.sampling.passes import class_scores

PASS_PIXELS = {"cpu": 500 << 10, "cuda": 2000 << 10}
"""Pixels of the images in one pass of a whole network: 2,000 of CIFAR's on a GPU, or 40 photographs of 224x224."""


def outputs_of(network: nn.Module, x: Tensor) -> Tensor:
    """The class scores of a batch, in as many passes as its size needs; each has rows of its own, to change at will."""
    rows = max(1, PASS_PIXELS.get(x.device.type, PASS_PIXELS["cpu"]) // math.prod(x.shape[2:]))
    with torch.no_grad():
        return torch.cat([class_scores(network(piece.clone())) for piece in x.split(rows)])


class MemberStream:
    """Sample ``k`` is member ``k``; there are no more samples than members."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = networks

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the outputs of one member at a time."""
        for place, number in enumerate(samples.tolist()):
            if number >= len(self.networks):
                raise InvalidInput(f"there is no sample {number}: the ensemble has {len(self.networks)} members.")
            yield slice(0, len(x)), slice(place, place + 1), outputs_of(self.networks[number], x).unsqueeze(0)
