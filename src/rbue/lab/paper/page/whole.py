"""The page as a whole, and its tables for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rbue.lab.paper.claims import judge_all
from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.measured import Measured
from rbue.lab.paper.page.calibrated import calibrated_sections
from rbue.lab.paper.page.claims import claims_section
from rbue.lab.paper.page.origin import origin_section
from rbue.lab.paper.page.section import QUICK_TITLE, experiment_section, missing_sentence
from rbue.lab.paper.page.shown import Shown
from rbue.lab.paper.reporting import Renderer
from rbue.lab.paper.settings import QUICK, Settings
from rbue.lab.report.page import Block, Notice, Page, Section, TableBlock
from rbue.lab.report.tables import Cell, Column, Row, Table

HTML, LATEX = "report.html", "report.tex"
TITLE = "The paper’s tables and figures, measured"
_QUICK = (
    f"Small stand-ins: {QUICK.data} in place of every data set, networks of {QUICK.width} of their width, a few "
    "epochs. It shows that everything works.",
    "The paper’s values stand beside the numbers only to show where they go; the differences mean nothing.",
)


def paper_page(gathered: Sequence[ExperimentData], settings: Settings, root: Path) -> Page:
    """The page of some experiments.

    Args:
        gathered: from :func:`rbue.lab.paper.gathering.gather`, one for each section.
        settings: what was asked for when they were gathered.
        root: the folder of runs.
    """
    measured = Measured(root, settings)
    return _page(gathered, _experiments(gathered, measured), measured)


def page_files(settings: Settings, root: Path) -> Renderer:
    """A renderer that gives the page, and its tables as LaTeX."""

    def render(gathered: Sequence[ExperimentData]) -> Mapping[str, bytes]:
        measured = Measured(root, settings)
        sections = _experiments(gathered, measured)
        page = _page(gathered, sections, measured)
        apart = calibrated_sections(gathered, measured)
        tables = Page(TITLE, [*_quick(gathered), *sections, *apart], _lead(gathered, settings))
        return {HTML: page.html().encode(), LATEX: tables.latex().encode()}

    return render


def _experiments(gathered: Sequence[ExperimentData], measured: Measured) -> list[Section]:
    return [experiment_section(Shown(one, measured)) for one in gathered]


def _page(gathered: Sequence[ExperimentData], sections: Sequence[Section], measured: Measured) -> Page:
    scale = measured.settings.scale.name
    every = [
        *_quick(gathered),
        Section("At a glance", [TableBlock(_overview(gathered)), *_missing(gathered)], "overview", "Overview"),
        *sections,
        *calibrated_sections(gathered, measured),
        claims_section(judge_all(measured), scale),
        origin_section(gathered, measured),
    ]
    return Page(TITLE, every, _lead(gathered, measured.settings))


def _lead(gathered: Sequence[ExperimentData], settings: Settings) -> str:
    complete = sum(not one.missing for one in gathered)
    if not any(one.has_something for one in gathered):
        return "Nothing has been measured yet; `rbue paper run` does it. The numbers here are the paper’s own."
    only = "" if settings.models is None else f" for {', '.join(settings.models)} alone"
    return f"{complete} of {len(gathered)} tables and figures are complete{only}."


def _quick(gathered: Sequence[ExperimentData]) -> list[Section]:
    if not any(one.scale == QUICK.name for one in gathered):
        return []
    return [Section("A quick run", [Notice(QUICK_TITLE, _QUICK)], "quick", "Quick run")]


def _overview(gathered: Sequence[ExperimentData]) -> Table:
    columns = (
        Column("id", "id", numeric=False),
        Column("place", "where", numeric=False),
        Column("title", "what it shows", numeric=False),
        Column("state", "state", numeric=False),
    )
    rows: list[Row] = [
        {
            "id": Cell(one.experiment.id, link=f"#{one.experiment.id}"),
            "place": one.experiment.place,
            "title": one.experiment.title,
            "state": _state(one),
        }
        for one in gathered
    ]
    return Table(columns, rows, "Every table and figure; rbue paper run takes the ids")


def _state(one: ExperimentData) -> str:
    if not one.missing:
        return "complete"
    return f"{len(one.missing)} missing" if one.has_something else "nothing yet"


def _missing(gathered: Sequence[ExperimentData]) -> list[Block]:
    gaps = [missing_sentence(one) for one in gathered if one.missing]
    return [Notice("This report is not complete", gaps)] if gaps else []
