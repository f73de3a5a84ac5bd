"""How much of an experiment to run: which networks, methods and seeds, how long, and whether quickly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from rbue.errors import InvalidInput, RbueError
from rbue.files import read_json
from rbue.lab.methods import parse, spec_of
from rbue.lab.own_code import named_by
from rbue.lab.paper.budget import Budget, Rule, deciding
from rbue.lab.paper.experiments import Experiment, Grid
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training.recipe import Recipe, recipe_for

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Scale:
    """One size to run everything in.

    Attributes:
        name: ``full`` or ``quick``; results of the two are never mixed.
        data: stands in for every data set of the paper, if given.
        width: factor on the channels of every network.
        recipe: in place of the data set's, if given.
        samples: random passes for each image.
        shift_samples: the same for corrupted images, of which there are 95 times as many.
        severities: of the corruptions.
    """

    name: str
    data: str | None = None
    width: float = 1.0
    recipe: Recipe | None = None
    samples: int = 100
    shift_samples: int = 20
    severities: tuple[int, ...] = SEVERITIES


FULL = Scale("full")
QUICK = Scale(
    "quick",
    data="colour-digits-few",
    width=0.125,
    recipe=Recipe(epochs=3, batch=16, learning_rate=0.1, milestones=(0.6,), padding=0, flip=False),
    samples=2,
    shift_samples=2,
    severities=(1, 5),
)
"""Every experiment end to end in minutes on a CPU. It shows that everything works; its numbers are no evidence."""

_QUICK_BUDGET = (
    Rule("they need more epochs", methods=("snapshot-ensemble:4", "swag", "sgld"), seeds=0),
    Rule("it needs a package of its own", methods=("laplace",), seeds=0),
)


@dataclass(frozen=True)
class Settings:
    """What was asked for on top of an experiment's own grid; None leaves the experiment's choice.

    Attributes:
        quick: whether to run small stand-ins, see :data:`QUICK`.
        models: only these networks.
        methods: only these methods.
        seeds: these repetitions instead of the experiment's.
        epochs: in place of the recipe's.
        samples: in place of the scale's.
        shift: True measures every run under corruptions, False none.
        budget: what the folder of runs aims at, where nothing else was asked for; quick runs have their own.
    """

    quick: bool = False
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    epochs: int | None = None
    samples: int | None = None
    shift: bool | None = None
    budget: Budget = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(spec_of(parse(method)) for method in self.methods))
        for name in ("epochs", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}.")

    @property
    def scale(self) -> Scale:
        """The size to run in."""
        return QUICK if self.quick else FULL

    @property
    def sample_count(self) -> int:
        """Random passes for each image."""
        return self.samples or self.scale.samples

    def samples_of(self, config: RunConfig) -> int:
        """What to ask of one run: an ensemble gives all its members, however few samples are asked for."""
        return max(self.sample_count, config.parsed.limit or 0)

    def shift_samples_of(self, config: RunConfig) -> int:
        """What to ask of one run on corrupted images."""
        return max(self.shift_samples_for(config.data, config.model, config.method), config.parsed.limit or 0)

    def shift_samples_for(self, data: str, model: str, method: str) -> int:
        """Random passes for each corrupted image in one cell."""
        rule = self.rule("shift_samples", data, model, method)
        return min(self.scale.shift_samples if rule is None else rule.shift_samples or 1, self.sample_count)

    def data_of(self, data: str) -> str:
        """The data set that is really used."""
        return self.scale.data or data

    def rule(self, thing: str, data: str, model: str, method: str) -> Rule | None:
        """The rule of the budget that decides a thing, such as ``epochs``, of one cell."""
        return deciding(_QUICK_BUDGET if self.quick else self.budget, thing, (data, model, method))

    def config(self, data: str, model: str, method: str, repetition: int) -> RunConfig:
        """The run of one cell.

        Repetitions of an ensemble share no member: the second of four members begins at seed 4.
        """
        rule = self.rule("epochs", data, model, method)
        return _config(self.scale, data, model, method, repetition, self.epochs or (rule and rule.epochs))

    def repetitions(self, data: str, model: str, method: str) -> tuple[int, ...]:
        """Those of one cell: as asked for, or as the budget has it, or the first; none if it is left out."""
        if self.seeds is not None:
            return self.seeds
        rule = self.rule("seeds", data, model, method)
        return (0,) if rule is None else tuple(range(rule.seeds or 0))

    def repetitions_for(self, experiment: Experiment, model: str, method: str) -> tuple[int, ...]:
        """Those of one cell that an experiment needs; of one that shows one run, the first unless others are typed."""
        assert experiment.grid is not None
        found = self.repetitions(experiment.grid.data, model, method)
        return found[:1] if experiment.shows_one_run and self.seeds is None else found

    def models_of(self, grid: Grid) -> tuple[str, ...]:
        """The networks of a grid that were asked for; where any will do, the first one asked for."""
        if self.models is None:
            return grid.models
        return self.models[:1] if grid.any_network else tuple(one for one in grid.models if one in self.models)

    def configs(self, experiment: Experiment) -> Iterator[RunConfig]:
        """The runs an experiment needs, in the order of its grid."""
        grid = experiment.grid
        if grid is None:
            return
        for model, method in self.cells(grid):
            for repetition in self.repetitions_for(experiment, model, method):
                yield self.config(grid.data, model, method, repetition)

    def cells(self, grid: Grid) -> list[tuple[str, str]]:
        """The networks and methods of a grid that were asked for, whether or not the budget has them."""
        methods = [one for one in grid.methods if self.methods is None or one in self.methods]
        return [(model, method) for model in self.models_of(grid) for method in methods]

    def measures(self, experiment: Experiment) -> frozenset[str]:
        """What to measure on an experiment's runs."""
        asked = set(experiment.measures)
        if self.shift is False:
            asked.discard("shift")
        elif self.shift and experiment.grid is not None:
            asked.add("shift")
        return frozenset(asked)

    @property
    def typed(self) -> str:
        """The options that ask for the same on the command line, but for the networks and ``--quick``.

        >>> Settings(seeds=(2,), epochs=3).typed
        ' --seeds 2, --epochs 3'
        """
        words = []
        if self.methods is not None:
            words.append(f"--methods '{' '.join(self.methods)}'")
        if self.seeds is not None:
            words.append(f"--seeds {','.join(map(str, self.seeds))}{',' if len(self.seeds) == 1 else ''}")
        words += [f"--{name} {value}" for name in ("epochs", "samples") if (value := getattr(self, name)) is not None]
        if self.shift is not None:
            words.append("--shift" if self.shift else "--no-shift")
        return "".join(f" {word}" for word in words)

    def as_json(self) -> dict[str, Any]:
        """To be kept beside the runs, where the budget has a file of its own."""
        return {name: value for name, value in asdict(self).items() if name != "budget"}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Settings:
        """The inverse of :meth:`as_json`."""
        try:
            lists = ("models", "methods", "seeds")
            content = content | {name: tuple(content[name]) for name in lists if content.get(name) is not None}
            with named_by("paper/settings.json"):
                return cls(**content)
        except (AttributeError, TypeError) as error:
            raise RbueError(
                f"paper/settings.json was written by another version of rbue ({error}); remove it."
            ) from error


def name_of(config: RunConfig) -> str:
    """Where a run lies below the folder of runs: the same on every machine."""
    return RunFolder.of(config, Path()).path.as_posix()


def settings_file(root: Path) -> Path:
    """Where the settings of the last ``rbue paper run`` are noted, for the report."""
    return root / "paper" / "settings.json"


def last_settings(root: Path, asked: Settings) -> Settings:
    """What was asked for, or, if nothing was, the settings of the last ``rbue paper run`` in this folder.

    Which networks and methods that command was limited to is left out: what it did not run is missing. So are its
    repetitions and epochs where the folder has a budget, which states its own.
    """
    path = settings_file(root)
    if asked != Settings() or not path.exists():
        return asked
    last = replace(Settings.from_json(read_json(path)), models=None, methods=None, budget=asked.budget)
    return last if last.quick or not asked.budget else replace(last, seeds=None, epochs=None)


def parse_seeds(text: str) -> tuple[int, ...]:
    """The repetitions that ``3`` (the first three) or ``0,2,5`` name.

    >>> parse_seeds("3"), parse_seeds("0,2,5")
    ((0, 1, 2), (0, 2, 5))
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    single = len(numbers) == 1 and "," not in text
    if not numbers or min(numbers) < (1 if single else 0):
        raise InvalidInput(f"--seeds must be how many (3) or which ones (0,2,5), not {text!r}.")
    return tuple(range(numbers[0])) if single else tuple(dict.fromkeys(numbers))


def spread(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for the deviation of a single value.

    >>> spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@cache  # a page asks for each of its few hundred runs many times, and checking one takes milliseconds
def _config(scale: Scale, data: str, model: str, method: str, repetition: int, epochs: int | None) -> RunConfig:
    recipe = scale.recipe or recipe_for(data)
    return RunConfig(
        data=scale.data or data,
        model=model,
        method=method,
        seed=repetition * parse(method).networks,
        width=scale.width,
        recipe=replace(recipe, epochs=epochs or recipe.epochs),
    )
