"""One experiment on its way to the page: what was gathered, where it was measured, and how to say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbue.lab.paper.definitions import Experiment
from rbue.lab.paper.gathering import ExperimentData, GatheredRow
from rbue.lab.paper.measured import Measured
from rbue.lab.paper.settings import QUICK
from rbue.lab.paper.trained import how_trained
from rbue.lab.report.run_records import recipe_words
from rbue.lab.runs.folders import RunConfig, RunFolder


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

    @property
    def is_measured(self) -> bool:
        """Whether any of its runs has been measured, clean or under corruptions."""
        return bool(self._measured())

    def settings_words(self) -> str:
        """What was run for it: networks, data, recipe, samples, seeds; as long as nothing was, what is to be run."""
        configs = self._measured() or self._all_configs()
        if not configs:
            return ""
        networks = _listed(dict.fromkeys(one.model for one in configs))
        parts = (recipe_words(configs[0]), self._samples(configs), self._repetitions(configs))
        return f"{networks} on {self._data()}; {'; '.join(parts)}."

    def caption(self, sentence: str, model: str | None = None, corrupted: bool = False) -> str:
        """A sentence with what was run, short enough to stand below every figure."""
        if not self.gathered.rows:
            return sentence
        measured, settings = self._measured(model), self.measured.settings
        networks = model or _listed(dict.fromkeys(one.model for one in measured) or self.models)
        parts = [f"{networks} on {self._data(count=False)}"]
        if measured:
            count = settings.shift_sample_count if corrupted else settings.sample_count
            parts += [f"{count} sample{'s' if count != 1 else ''}", self._repetitions(measured)]
            parts += ["quick run, no evidence"] if self.quick else []
        else:
            parts.append("not measured yet")
        return f"{sentence} ({', '.join(parts)}.)".strip()

    def times_note(self, model: str) -> str:
        """What the training times of one network mean; empty if nothing is known of its trainings."""
        trained = how_trained(self._measured(model), self.measured.root)
        return "" if trained is None else trained.note()

    def _all_configs(self, model: str | None = None) -> list[RunConfig]:
        rows = [row for row in self.gathered.rows if model in (None, row.model)]
        return [config for row in rows for config in self.configs(row.model, row.method)]

    def _measured(self, model: str | None = None) -> list[RunConfig]:
        """The runs of all networks, or of one, that have been measured."""
        return [config for config in self._all_configs(model) if self._has_numbers(config)]

    def _has_numbers(self, config: RunConfig) -> bool:
        if self.measured.result(config) is not None:
            return True
        return bool(self.gathered.corrupted) and bool(self.measured.corrupted_rows(config))

    def _data(self, count: bool = True) -> str:
        assert self.experiment.grid is not None
        wanted, used = self.experiment.grid.data, str(self.gathered.data)
        text = used if used == wanted else f"{used} in place of {wanted}"
        counts = (dict(result.get("data") or {}).get("count") for result in self._all_results())
        images = next((number for number in counts if number), None) if count else None
        return f"{text} ({images:,} test images)" if images else text

    def _all_results(self) -> list[dict[str, Any]]:
        return [result for row in self.gathered.rows for result in self.results(row.model, row.method)]

    def _samples(self, configs: list[RunConfig]) -> str:
        count = self.measured.settings.sample_count
        text = f"{count} sample{'s' if count != 1 else ''} for each image"
        if self.gathered.corrupted:
            text += f" ({self.measured.settings.shift_sample_count} for each corrupted one)"
        members = sorted({config.parsed.networks for config in configs} - {1})
        return f"{text}, {' or '.join(map(str, members))} members of an ensemble" if members else text

    def _repetitions(self, configs: list[RunConfig]) -> str:
        counts = set(Counter((config.model, config.method) for config in configs).values())
        if counts == {1}:
            asked = self.measured.settings.seeds or (0,)
            return f"seed {asked[0]}" if len(asked) == 1 else "one run a method"
        fewest, most = min(counts), max(counts)
        return f"mean of {most if fewest == most else f'{fewest} to {most}'} repetitions"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
