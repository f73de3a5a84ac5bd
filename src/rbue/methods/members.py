"""Samples that are whole networks: members of an ensemble, or a single network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.sampling.passes import class_scores


class MemberStream:
    """Sample ``k`` is member ``k``; there are no more samples than members."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = networks

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the outputs of one member at a time; each gets rows of its own, which it may change."""
        for place, number in enumerate(samples.tolist()):
            if number >= len(self.networks):
                raise InvalidInput(f"there is no sample {number}: the ensemble has {len(self.networks)} members.")
            with torch.no_grad():
                out = class_scores(self.networks[number](x.clone()))
            yield slice(0, len(x)), slice(place, place + 1), out.unsqueeze(0)
