"""What of the paper is asked for: experiments, kinds of steps, networks, methods, repetitions and their length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbue.errors import InvalidInput
from rbue.lab.cli.compare import split_methods

if TYPE_CHECKING:
    from rbue.lab.paper.experiments import Experiment
    from rbue.lab.paper.settings import Settings

KINDS = "train, clean, shift, draw"
_of_extent = partial(typer.Option, rich_help_panel="How much of it")

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="IDS", help="Experiments, or patterns such as 'table*'.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Every experiment.")]
Methods = Annotated[str | None, _of_extent("--methods", help="Only these methods, separated by commas or spaces.")]
Shift = Annotated[
    bool | None,
    _of_extent("--shift/--no-shift", help="Corruptions for every run, or for none; else where the paper has them."),
]
Only = Annotated[
    str | None, typer.Option("--only", help=f"Only these ids or patterns, or these steps: {KINDS}. With commas.")
]


@dataclass(frozen=True)
class Extent:
    """How much of the paper is run or judged; each field is an option of the command line."""

    quick: Annotated[
        bool, _of_extent("--quick", help="Small stand-ins for all of it, minutes on a CPU; no evidence.")
    ] = False
    models: Annotated[
        str | None, _of_extent(help="Only these networks, separated by commas; for corruptions the first of them.")
    ] = None
    seeds: Annotated[str | None, _of_extent(help="How many repetitions (3), or which (0,2,5).")] = None
    epochs: Annotated[int | None, _of_extent(min=1, help="In place of the recipe's.")] = None
    samples: Annotated[int | None, _of_extent(min=1, help="Random passes for each image (100).")] = None

    def settings(self, runs: Path, methods: str | None = None, shift: bool | None = None) -> Settings:
        """These, with the budget of a folder of runs."""
        from rbue.lab.paper.budget import read_budget
        from rbue.lab.paper.settings import Settings, parse_seeds

        return Settings(
            quick=self.quick,
            models=None if self.models is None else _known_models(self.models),
            methods=None if methods is None else tuple(split_methods(methods)),
            seeds=None if self.seeds is None else parse_seeds(self.seeds),
            epochs=self.epochs,
            samples=self.samples,
            shift=shift,
            budget=read_budget(runs),
        )


def selected(ids: list[str] | None, only: str | None) -> tuple[tuple[Experiment, ...], frozenset[str]]:
    """The experiments and the kinds of steps that ids and ``--only`` leave."""
    from rbue.lab.paper.experiments import chosen
    from rbue.lab.paper.runner import KINDS

    words = [word.strip() for word in (only or "").split(",") if word.strip()]
    words = ["clean" if word == "diversity" else word for word in words]  # the two are measured in one go
    kinds = frozenset(word for word in words if word in KINDS)
    names = [word for word in words if word not in KINDS]
    experiments = chosen(ids or ())
    if names:
        allowed = chosen(names)
        experiments = tuple(one for one in experiments if one in allowed)
    if not experiments:
        raise InvalidInput(f"--only {only} leaves nothing of what was named; `rbue paper list` shows the ids.")
    return experiments, kinds or frozenset(KINDS)


def check_methods(experiments: tuple[Experiment, ...], settings: Settings) -> None:
    """Refuse a method that none of the experiments has, rather than quietly running nothing."""
    there = [method for one in experiments if one.grid for method in one.grid.methods]
    for method in settings.methods or ():
        if method not in there:
            raise InvalidInput(f"none of these experiments has {method}; they have {', '.join(dict.fromkeys(there))}.")


def _known_models(text: str) -> tuple[str, ...]:
    from rbue.lab.paper.experiments import MODELS

    names = tuple(text.replace(",", " ").split())
    if not names:
        raise InvalidInput(f"--models names no network; it takes {', '.join(MODELS)}.")
    for name in names:
        if name not in MODELS:
            raise InvalidInput(f"the paper has no network {name!r}; --models takes {', '.join(MODELS)}.")
    return names
