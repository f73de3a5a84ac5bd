"""How many random passes, of which seed: what tells two measurements of one run on one set apart."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.errors import InvalidInput
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import usable_samples
from rbue.sampling.adaptive import Adaptive


@dataclass(frozen=True)
class Setting:
    """How predictions are drawn.

    Attributes:
        samples: random passes for each image; with ``adaptive`` the most it may take.
        seed: of the passes.
        adaptive: when to stop earlier.
    """

    samples: int = 100
    seed: int = 0
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInput(f"samples must be at least 1, but is {self.samples}.")

    def count(self, config: RunConfig) -> int:
        """The passes this method can use of those asked for."""
        return usable_samples(config, self.samples)

    def facts(self, config: RunConfig) -> dict[str, int | str | None]:
        """What was asked for, as written in a row; rows that agree in it belong together.

        Both are None for a method that gave every sample it has, since nothing random is left then: it need not be
        measured again for another number or seed. An adaptive setting is a text,
        ``adaptive:MOST,TOLERANCE,CONFIDENCE,FIRST``.

        >>> Setting(100, seed=3).facts(RunConfig(method="mc-droprelu"))
        {'samples_asked': 100, 'seed': 3}
        >>> Setting(100, seed=3).facts(RunConfig(method="single"))
        {'samples_asked': None, 'seed': None}
        """
        limit, rule = config.parsed.limit, self.adaptive
        if limit is not None:
            return {"samples_asked": None if self.samples >= limit else self.samples, "seed": None}
        if rule is None:
            return {"samples_asked": self.samples, "seed": self.seed}
        text = f"adaptive:{self.samples},{rule.tolerance:g},{rule.confidence:g},{rule.first}"
        return {"samples_asked": text, "seed": self.seed}
