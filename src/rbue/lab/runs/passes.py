"""How the samples of a prediction are drawn: how many, from which seed, and what each does to its images first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rbue.errors import InvalidInput, whole_number
from rbue.lab.runs.augmented import canonical
from rbue.lab.runs.folders import RunConfig, result_key
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.predicting import check_draws

_Kind = TypeVar("_Kind", bound="Passes")


@dataclass(frozen=True)
class Passes:
    """How predictions are drawn.

    Attributes:
        samples: random passes for each image; with ``adaptive`` the most it may take. A method with fewer draws all,
            and the members of an ensemble share them.
        seed: of the passes.
        adaptive: when to stop earlier.
        draws: ``"independent"`` or ``"balanced"``, as in :func:`rbue.predict`.
        augment: what each pass does to its images first (:mod:`rbue.lab.runs.augmented`).
    """

    samples: int = 100
    seed: int = 0
    adaptive: Adaptive | None = None
    draws: str = "independent"
    augment: str = ""

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples")
        check_draws(self.draws)
        object.__setattr__(self, "augment", canonical(self.augment))

    @classmethod
    def noted(cls: type[_Kind], result: Mapping[str, Any]) -> _Kind:
        """Those of a measurement."""
        draws, augment = result.get("draws", "independent"), result.get("augment", "")
        return cls(result["samples"], result["seed"], draws=draws, augment=augment)

    @property
    def key(self) -> str:
        """The name of a measurement with them."""
        return result_key(self.samples, self.seed, self.draws, self.augment)

    def limit(self, config: RunConfig) -> int | None:
        """How many samples the method of a run has; None if there is no end to them, as of augmented ones."""
        return None if self.augment else config.parsed.limit

    def count(self, config: RunConfig) -> int:
        """The passes that the method of a run can use of these."""
        return min(self.samples, self.limit(config) or self.samples)

    def follow_from_members(self, config: RunConfig) -> bool:
        """Whether the samples of an ensemble are all that its members, or so many of the plain ones, have to give."""
        limit = self.limit(config)
        return limit is not None and (self.samples >= limit or config.parsed.member.limit == 1)

    def share(self: _Kind, config: RunConfig) -> _Kind:
        """Those of each member of an ensemble, if all make as many."""
        if self.follow_from_members(config):
            return self
        return replace(self, samples=-(-self.samples // config.parsed.networks))

    def of(self: _Kind, config: RunConfig) -> _Kind:
        """The same, drawn as the method of a run can.

        One with so many samples and no more has only its own. Its augmentations may be balanced.
        """
        if self.limit(config) is not None:
            return replace(self, draws="independent")
        if self.draws == "balanced" and config.parsed.limit is None and not config.parsed.balances:
            raise InvalidInput(f"{config.method} has no balanced draws; use independent ones.")
        return self


def best_draws(config: RunConfig) -> str:
    """Balanced ones where the method of a run has them."""
    return "balanced" if config.parsed.balances else "independent"
