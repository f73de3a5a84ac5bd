"""The numbers the paper prints, under this package's names and in its units.

They are kept as printed in ``paper_numbers.json`` with their source; percent and hours become fractions and seconds
when they are read. The position table prints its accuracies as fractions already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from rbue.errors import InvalidInput
from rbue.lab.methods import parse, spec_of

Key = tuple[str, str, str, str, str]
"""table, data, model, method, measure"""

TABLES = {"table1-cifar10": "cifar10", "table2-cifar100": "cifar100", "table3-tinyimagenet": "tiny-imagenet"}
"""The tables of clean results and their data sets."""

DIVERSITY_TABLES = {"table4-jsd": ("mean_jsd", "max_jsd"), "table5-dis": ("mean_dis", "max_dis")}
POSITION_TABLE = "table6-position"
_DECIMALS = {"ece": 2, "mean_jsd": 3, "max_jsd": 3, "mean_dis": 3, "max_dis": 3}
"""How many decimals it prints, where ours are shown with more."""

ROWS = {
    "Single": "single",
    "MC-Dropout(0.2)": "mc-dropout:0.2",
    "MC-Dropout(0.5)": "mc-dropout:0.5",
    "Deep Ensemble(4)": "deep-ensemble:4",
    "SVI": "svi",
    "MC-RReLU": "mc-rrelu",
    "MC-DropReLU(0.8)": "mc-droprelu:0.8",
    "MC-DropReLU(0.85)": "mc-droprelu:0.85",
    "MC-DropReLU(0.9)": "mc-droprelu:0.9",
    "MC-DropReLU(0.95)": "mc-droprelu:0.95",
    "Deep Ensemble": "deep-ensemble:4",
    "MC-DropReLU(q=0.8)": "mc-droprelu:0.8",
    "MC-DropReLU(q=0.95)": "mc-droprelu:0.95",
    "MC-Dropout(p=0.5)": "mc-dropout:0.5",
    "MC-Dropout(p=0.2)": "mc-dropout:0.2",
}
"""How the paper's rows are called here."""


@cache
def printed() -> dict[str, Any]:
    """The paper's numbers as they are printed, with their source."""
    return json.loads(files("rbue.lab.paper").joinpath("paper_numbers.json").read_text())


@cache
def paper_numbers() -> MappingProxyType[Key, float]:
    """Every number of the paper's tables in this package's units."""
    return MappingProxyType(dict(_read(printed())))


def as_printed(measure: str) -> Callable[[float], str] | None:
    """How the paper writes a measure with fewer decimals than this package; None if it does not.

    >>> as_printed("ece")(0.04)
    '0.04'
    """
    decimals = _DECIMALS.get(measure)
    return None if decimals is None else f"{{:.{decimals}f}}".format


def paper_value(data: str, model: str, method_spec: str, measure: str, table: str | None = None) -> float | None:
    """What the paper gives for a measurement.

    Args:
        data: ``cifar10``, ``cifar100`` or ``tiny-imagenet``.
        model: ``vgg13``, ``resnet18`` or ``densenet121``.
        method_spec: Short text of a method, such as ``mc-droprelu:0.95``.
        measure: As in this package's results, where accuracy is a fraction; ``relative_size`` is in sizes of Single.
        table: Only look in this table. Left out, the first table with the number counts: DenseNet-121 with
            ``mc-droprelu:0.8`` stands in Table 3 and, a little different, in the position table.

    Returns:
        The number, or None if the paper has none.

    Example:
        >>> paper_value("cifar10", "resnet18", "mc-droprelu:0.95", "accuracy")
        0.9532
        >>> paper_value("cifar10", "resnet18", "mc-droprelu:0.95", "nll") is None
        True
    """
    known = (*TABLES, *DIVERSITY_TABLES, POSITION_TABLE)
    if table is not None and table not in known:
        raise InvalidInput(f"the paper has no table {table!r}; there are {', '.join(known)}.")
    method, numbers = spec_of(parse(method_spec)), paper_numbers()
    found = (numbers.get((name, data, model, method, measure)) for name in (known if table is None else (table,)))
    return next((number for number in found if number is not None), None)


def _read(content: dict[str, Any]) -> Iterator[tuple[Key, float]]:
    sizes = content["relative_size"]
    for table, models in content["clean"].items():
        for model, rows in models.items():
            for row, values in rows.items():
                place = (table, TABLES[table], model, ROWS[row])
                yield from _clean(place, values)
                size = sizes["deep-ensemble"] if ROWS[row].startswith("deep-ensemble") else sizes["others"]
                yield (*place, "relative_size"), float(size)
    for row, values in content["diversity"]["rows"].items():
        for table, measures in DIVERSITY_TABLES.items():
            for measure in measures:
                yield (table, "cifar10", "resnet18", ROWS[row], measure), values[measure]
    for where, values in content["position"][POSITION_TABLE].items():
        method = "mc-droprelu:0.8" if where == "all" else f"mc-droprelu:0.8,{where}"
        yield from _clean((POSITION_TABLE, "tiny-imagenet", "densenet121", method), values)


def _clean(place: tuple[str, str, str, str], values: dict[str, float]) -> Iterator[tuple[Key, float]]:
    fraction = values["accuracy_fraction"] if "accuracy_fraction" in values else values["accuracy"] / 100
    yield (*place, "accuracy"), round(fraction, 6)
    yield (*place, "ece"), values["ece"]
    yield (*place, "training_seconds"), values["train_hours"] * 3600
