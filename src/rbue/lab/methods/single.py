"""Single: one plain network, one pass. The baseline every other method is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.lab.methods.base import Method, outputs_of, register
from rbue.sampling.collect import SampleStream


@register("single")
@dataclass(frozen=True)
class Single(Method):
    """A plain network with the softmax as its only uncertainty."""

    limit = 1

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """One sample: the network itself."""

        def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
            if samples.tolist() != [0]:
                raise InvalidInput(f"a plain network has one sample, number 0, not {samples.tolist()}.")
            yield slice(0, len(x)), slice(0, 1), outputs_of(networks[0], x).unsqueeze(0)

        return draw
