"""What an experiment of the paper is: data, not code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measure = Literal["clean", "diversity", "shift"]


@dataclass(frozen=True)
class Grid:
    """What to train: every network with every method.

    Attributes:
        data: name of the data set.
        models: names of the networks.
        methods: short texts of the methods, in the order of the paper's rows.
        seeds: how often, each time from another initialisation.
        epochs: None for those of the data set's recipe, which is the paper's.
        any_network: whether another network may stand for its own, if that is asked for.
    """

    data: str
    models: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    epochs: int | None = None
    any_network: bool = False


@dataclass(frozen=True)
class Drawing:
    """One thing to draw from an experiment's data.

    Attributes:
        kind: ``table``, ``boxes``, ``medians``, ``heat-maps``, ``plane``, ``curves``, ``network``, ``framework``,
            ``images`` or ``variance``.
        measures: the measurements it shows, by their names in the results.
        methods: the methods it shows; none means all of the grid.
        caption: what it shows, in one sentence.
    """

    kind: str
    measures: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    caption: str = ""


@dataclass(frozen=True)
class Illustration:
    """Data of a figure that is not a comparison of trained runs.

    Attributes:
        kind: which function of :mod:`rbue.lab.paper.illustrations` makes it.
        data: the data set whose images it shows, if any.
        run: the model and method of the trained run it shows, if any.
    """

    kind: str
    data: str | None = None
    run: tuple[str, str] | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        id: how it is called here.
        place: where it stands in the paper.
        title: what it shows.
        grid: what to train, if anything.
        measures: what to measure on each trained run.
        drawings: what to draw.
        illustration: data that does not come from a grid.
        notes: what the paper leaves open and how it is read here.
    """

    id: str
    place: str
    title: str
    grid: Grid | None = None
    measures: tuple[Measure, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    illustration: Illustration | None = None
    notes: tuple[str, ...] = ()
