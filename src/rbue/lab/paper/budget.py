"""What a folder of runs aims at where all of the paper would take too long, and why.

``paper/budget.json`` in the folder holds a list of rules. Each names cells of the paper's tables, says how long their
networks are trained, how often, or that they are left out, and gives the reason. Where two rules speak of one thing the
later one counts. Every command that reads the folder keeps to them, and every table says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rbue.errors import RbueError, did_you_mean, shown
from rbue.files import read_json
from rbue.lab.methods import parse, spec_of
from rbue.lab.own_code import named_by
from rbue.lab.paper.experiments import EXPERIMENTS

_GRIDS = [one.grid for one in EXPERIMENTS if one.grid is not None]
_LISTS = {
    "data": {grid.data for grid in _GRIDS},
    "models": {name for grid in _GRIDS for name in grid.models},
    "methods": {name for grid in _GRIDS for name in grid.methods},
}
"""What cells are named by, and what the experiments have of it."""

_COUNTS = {"epochs": 1, "seeds": 0, "shift_samples": 1}
"""What can be said of cells, and the least it can be."""


@dataclass(frozen=True)
class Rule:
    """What is said of some cells.

    Attributes:
        why: the reason, a part of a sentence.
        data: names of data sets; None for any, here and below.
        models: names of networks.
        methods: short texts of methods.
        epochs: in place of the recipe's; its milestones are parts of the whole and move with it.
        seeds: how many repetitions, on clean images; 0 leaves the cells out.
        shift_samples: random passes for each corrupted image.
    """

    why: str
    data: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    epochs: int | None = None
    seeds: int | None = None
    shift_samples: int | None = None

    def speaks_of(self, data: str, model: str, method: str) -> bool:
        """Whether it is about a cell."""
        cell = ((self.data, data), (self.models, model), (self.methods, method))
        return all(names is None or name in names for names, name in cell)


Budget = tuple[Rule, ...]


def budget_file(root: Path) -> Path:
    """Where the rules of a folder of runs stand, if it has any."""
    return root / "paper" / "budget.json"


def read_budget(root: Path) -> Budget:
    """The rules of a folder of runs; none if it has none."""
    path = budget_file(root)
    if not path.exists():
        return ()
    content = read_json(path, "mend it, or remove it to have no budget")
    if not isinstance(content, list):
        raise RbueError(f"{path} must be a list of rules, not {shown(repr(content))}.")
    with named_by(str(path)):
        return tuple(_rule(one, f"{path}, rule {number}") for number, one in enumerate(content, 1))


def deciding(rules: Iterable[Rule], thing: str, cell: tuple[str, str, str]) -> Rule | None:
    """The rule that says a thing, such as ``epochs``, of a cell; None if none does."""
    found = None
    for rule in rules:
        if getattr(rule, thing) is not None and rule.speaks_of(*cell):
            found = rule
    return found


def _rule(content: Any, place: str) -> Rule:
    """One rule as it was written; what it cannot mean is said."""
    names = [field.name for field in fields(Rule)]
    if not isinstance(content, dict):
        raise RbueError(f"{place} must be an object with {', '.join(names)}, not {shown(repr(content))}.")
    for name, value in content.items():
        if name not in names:
            raise RbueError(f"{place}: there is no {shown(repr(name))}{did_you_mean(name, names)}.")
        if name in _LISTS and not (isinstance(value, list) and value and all(isinstance(one, str) for one in value)):
            raise RbueError(f"{place}: {name} must be a list of names, not {shown(repr(value))}.")
        least = _COUNTS.get(name)
        if least is not None and not (type(value) is int and value >= least):
            raise RbueError(f"{place}: {name} must be a whole number from {least} on, not {shown(repr(value))}.")
    if not (isinstance(content.get("why"), str) and content["why"].strip()):
        raise RbueError(f"{place}: why must be given, as a part of a sentence.")
    if not content.keys() & _COUNTS.keys():
        raise RbueError(f"{place} says nothing; give {', '.join(_COUNTS)}, or remove it.")
    lists = {name: tuple(content[name]) for name in _LISTS if name in content}
    if "methods" in lists:
        lists["methods"] = tuple(spec_of(parse(method)) for method in lists["methods"])
    for name, values in lists.items():
        for value in values:
            if value not in _LISTS[name]:
                hint = did_you_mean(value, _LISTS[name])
                raise RbueError(f"{place}: no experiment has {shown(repr(value))} among its {name}{hint}.")
    return Rule(**{**content, **lists})
