"""Deep Ensemble (Lakshminarayanan et al., 2017): networks from different initialisations, averaged.

The members may be trained by any method: ``deep-ensemble:4[mc-droprelu:0.95]`` are four MC-DropReLU networks. Sample
``k`` is sample ``k div N`` of member ``k mod N``: the first ``N`` are one of each, and none depends on how many there
are. Member ``m`` draws with the seed ``seed + m``, so that no two members share their random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.lab.methods.base import Method, parse, register, spec_of
from rbue.lab.methods.members import at_least_two
from rbue.sampling.collect import SampleStream


@register("deep-ensemble", shown=1)
@dataclass(frozen=True)
class DeepEnsemble(Method):
    """``members`` networks, each trained by the method ``of`` with a seed of its own; the first one has the run's."""

    members: int = 4
    of: str = "single"

    def __post_init__(self) -> None:
        at_least_two(self.members)
        if self.member.networks > 1:
            raise InvalidInput(f"the members of an ensemble must be single networks, not {self.of}.")
        object.__setattr__(self, "of", spec_of(self.member))

    @property
    def networks(self) -> int:
        """One network a member."""
        return self.members

    @property
    def member(self) -> Method:
        """The method of each member."""
        return parse(self.of)

    @property
    def trained(self) -> Method:
        """The method that trains each member."""
        return self.member.trained

    @property
    def limit(self) -> int | None:
        """As many as all members have."""
        return None if self.member.limit is None else self.members * self.member.limit

    @property
    def draws_samples(self) -> bool:
        """Whether its members' method does."""
        return self.member.draws_samples

    @property
    def balances(self) -> bool:
        """Whether its members' method does."""
        return self.member.balances

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """Samples of the members in turn."""
        if len(networks) != self.members:
            raise InvalidInput(f"{spec_of(self)} needs {self.members} networks, not {len(networks)}.")
        streams = [
            self.member.stream([network], x, (seed + number) % (1 << 64), draws)
            for number, network in enumerate(networks)
        ]

        def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
            numbers = samples.tolist()
            if self.limit is not None and max(numbers, default=0) >= self.limit:
                raise InvalidInput(f"there is no sample {max(numbers)}: the ensemble has {self.limit}.")
            for member, stream in enumerate(streams):
                places = [place for place, number in enumerate(numbers) if number % self.members == member]
                if not places:
                    continue
                for rows, stack, out in stream(x, samples[places] // self.members, images):
                    for place, one in zip(places[stack], out.split(1), strict=True):
                        yield rows, slice(place, place + 1), one

        return draw
