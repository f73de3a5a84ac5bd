"""One experiment on its way to the page: what was gathered, where it was measured, and how to say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbue.paper.definitions import Experiment
from rbue.paper.gathering import ExperimentData, GatheredRow
from rbue.paper.measured import Measured
from rbue.paper.settings import QUICK
from rbue.report.of_runs.reading import recipe_words
from rbue.runs import RunConfig, RunFolder


def anchor_of(config: RunConfig) -> str:
    """What names a run in the page."""
    return f"run-{config.id}"


def name_of(config: RunConfig) -> str:
    """Where a run lies below the folder of runs: the same on every machine."""
    return RunFolder.of(config, Path()).path.as_posix()


@dataclass(frozen=True)
class Shown:
    """An experiment's data and the runs it comes from."""

    gathered: ExperimentData
    measured: Measured

    @property
    def experiment(self) -> Experiment:
        """What is shown."""
        return self.gathered.experiment

    @property
    def quick(self) -> bool:
        """Whether the numbers are no evidence."""
        return self.gathered.scale == QUICK.name

    @property
    def models(self) -> list[str]:
        """The networks in it."""
        return list(dict.fromkeys(row.model for row in self.gathered.rows))

    def rows(self, model: str) -> list[GatheredRow]:
        """The rows of one network."""
        return [row for row in self.gathered.rows if row.model == model]

    def configs(self, model: str, method: str) -> list[RunConfig]:
        """The runs of one row, one a repetition."""
        grid = self.experiment.grid
        return [] if grid is None else self.measured.configs(grid.data, model, method)

    def results(self, model: str, method: str) -> list[dict[str, Any]]:
        """The clean results of those of them that have been measured."""
        found = (self.measured.result(config) for config in self.configs(model, method))
        return [result for result in found if result is not None]

    def link(self, model: str, method: str) -> str:
        """The address of where a row's numbers come from; empty if it has none."""
        measured = [config for config in self.configs(model, method) if self.measured.result(config) is not None]
        return f"#{anchor_of(measured[0])}" if measured else ""

    def words(self, models: list[str] | None = None) -> str:
        """What is run for it: networks, data, recipe, samples, seeds, quick or not."""
        configs = [
            config
            for row in self.gathered.rows
            if models is None or row.model in models
            for config in self.configs(row.model, row.method)
        ]
        if not configs:
            return ""
        parts = [f"{' and '.join(dict.fromkeys(one.model for one in configs))} on {self._data()}"]
        parts.append(recipe_words(configs[0]))
        parts.append(self._samples(configs))
        parts.append(self._repetitions())
        if self.quick:
            parts.append("a quick run, no evidence")
        return "; ".join(parts) + "."

    def _data(self) -> str:
        assert self.experiment.grid is not None
        wanted, used = self.experiment.grid.data, str(self.gathered.data)
        counts = (dict(result.get("data") or {}).get("count") for result in self._all_results())
        count = next((count for count in counts if count), None)
        text = used if used == wanted else f"{used} in place of {wanted}"
        return f"{text} ({count:,} test images)" if count else text

    def _all_results(self) -> list[dict[str, Any]]:
        return [result for row in self.gathered.rows for result in self.results(row.model, row.method)]

    def _samples(self, configs: list[RunConfig]) -> str:
        count = self.measured.settings.sample_count
        text = f"{count} sample{'s' if count != 1 else ''} for each image"
        members = sorted({config.parsed.networks for config in configs} - {1})
        return f"{text}, {' or '.join(map(str, members))} members of an ensemble" if members else text

    def _repetitions(self) -> str:
        seeds = self.measured.settings.seeds or (0,)
        if len(seeds) == 1:
            return f"seed {seeds[0]}"
        return f"{len(seeds)} repetitions ({', '.join(map(str, seeds))}), mean ± standard deviation"
