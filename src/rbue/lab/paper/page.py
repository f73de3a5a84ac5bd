"""The paper's tables and figures, measured, as one page that needs no network, and their tables for LaTeX.

:func:`paper_page` puts the page together; :func:`page_files` is a renderer for
:func:`rbue.lab.paper.reporting.write_report`. Which drawings a section has is decided by the experiments, see
:class:`rbue.lab.paper.experiments.Drawing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rbue.errors import RbueError
from rbue.lab.paper import drawings as comparisons
from rbue.lab.paper import drawings as pictures
from rbue.lab.paper.claims import judge_all
from rbue.lab.paper.drawings import COLUMNS, METHOD, SEEDS, Shown, anchor_of, name_of
from rbue.lab.paper.experiments import Drawing
from rbue.lab.paper.judging import CASES, Judged, single_runs_note
from rbue.lab.paper.numbers import printed
from rbue.lab.paper.reporting import Renderer
from rbue.lab.paper.results import ExperimentData, Measured
from rbue.lab.paper.settings import QUICK, Settings, spread
from rbue.lab.report.of_runs.reading import recipe_words
from rbue.lab.report.page import (
    Block,
    Bullets,
    Fold,
    Heading,
    Notice,
    Page,
    Section,
    Source,
    TableBlock,
    Text,
    provenance_table,
    source_from_run,
)
from rbue.lab.report.tables import Cell, Column, Table
from rbue.lab.report.tables.model import Row, Value
from rbue.lab.runs.folders import RunConfig, RunFolder

# One experiment as a section of the page.


Draw = Callable[[Shown, Drawing], list[Block]]
FROM_RUNS: Mapping[str, Draw] = MappingProxyType(
    {
        "table": comparisons.tables,
        "boxes": comparisons.boxes,
        "medians": comparisons.medians,
        "heat-maps": comparisons.heat_maps,
        "plane": comparisons.plane,
    }
)
FROM_ILLUSTRATIONS: Mapping[str, Draw] = MappingProxyType(
    {
        "curves": pictures.curves,
        "network": pictures.network,
        "framework": pictures.framework,
        "images": pictures.images,
        "variance": pictures.variance,
    }
)
QUICK_TITLE = "Quick run: these numbers are no evidence about the paper"
FEW = 4


def experiment_section(shown: Shown) -> Section:
    """The section, whose name is the experiment's id; it says what is missing and how the paper is read."""
    experiment, gathered = shown.experiment, shown.gathered
    words = shown.settings_words()
    lead = f"{experiment.place} of the paper, `{experiment.id}`."
    if words:
        lead += f" {'Measured with' if shown.is_measured else 'To be measured with'} {words}"
    blocks: list[Block] = [Text(lead)]
    if shown.quick and shown.is_measured:
        blocks.append(Notice(QUICK_TITLE))
    if gathered.missing:
        blocks.append(_missing_notice(gathered))
    if experiment.notes:
        blocks += [Text("How the paper is read here:"), Bullets(experiment.notes)]
    for drawing in experiment.drawings:
        blocks += _drawn(shown, drawing)
    return Section(f"{experiment.place}: {experiment.title}", blocks, experiment.id, experiment.place)


def missing_sentence(gathered: ExperimentData) -> str:
    """What one experiment lacks, in a line."""
    name, missing = gathered.experiment.id, gathered.missing
    if not gathered.has_something:
        return f"`{name}`: nothing has been measured yet."
    more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    return f"`{name}`: {len(missing)} missing: {'; '.join(missing[:FEW])}{more}."


def how_to_run(gathered: ExperimentData) -> str:
    """The command that does what is missing."""
    grid, models = gathered.experiment.grid, dict.fromkeys(row.model for row in gathered.rows)
    only = f" --models {','.join(models)}" if grid is not None and models and tuple(models) != grid.models else ""
    quick = " --quick" if gathered.scale == QUICK.name else ""
    return f"`rbue paper run {gathered.experiment.id}{only}{quick}{gathered.options}`"


def _missing_notice(gathered: ExperimentData) -> Notice:
    if not gathered.has_something:
        return Notice("Nothing of this has been measured yet", [f"{how_to_run(gathered)} does it."])
    return Notice(
        "This is not complete", [f"Missing: {'; '.join(gathered.missing)}.", f"{how_to_run(gathered)} continues."]
    )


def _drawn(shown: Shown, drawing: Drawing) -> list[Block]:
    if drawing.kind in FROM_ILLUSTRATIONS:
        if shown.gathered.illustration is None:
            return []
        draw = FROM_ILLUSTRATIONS[drawing.kind]
    else:
        draw = FROM_RUNS[drawing.kind]
    try:
        return draw(shown, drawing)
    except RbueError as error:
        return [Notice("This could not be drawn", [str(error)])]


# What temperature scaling would add: rows that are not the paper's, in a section of their own.


TEMPERATURE_TITLE = "After temperature scaling (two-fold cross-fit on the test set; not in the paper)"
TEMPERATURE_WORDS = (
    "The log of the mean probabilities is divided by a temperature. Each half of the test images is scaled by the "
    "temperature that gives the other half the least NLL, so the accuracy stays as it is and no image is scaled by its "
    "own label; but labels of test images are used, which no row above does.\n\n"
    "Before and after are both from the stored probabilities, which are rounded to half precision and never below "
    "6e-8: the values before can differ a little from those in the tables above, the NLL most."
)
TEMPERATURES = Column(
    "temperatures",
    "temperatures",
    numeric=False,
    about="One a half, fitted on the other; of several runs the range.",
)
SCORES = ("ece", "nll", "brier")

Entries = list[tuple[RunConfig, dict[str, Any]]]


def calibrated_sections(gathered: Sequence[ExperimentData], measured: Measured) -> list[Section]:
    """One section with one table a network, or none if nothing has been calibrated."""
    groups: dict[RunConfig, dict[str, Entries]] = {}
    for config in dict.fromkeys(c for one in gathered for c in measured.settings.configs(one.experiment)):
        entry = measured.calibration(config)
        if entry is not None:
            network = replace(config, method="single", seed=0)
            groups.setdefault(network, {}).setdefault(config.method, []).append((config, entry))
    if not groups:
        return []
    blocks: list[Block] = [Text(TEMPERATURE_WORDS)]
    if measured.settings.quick:
        blocks.append(Notice(QUICK_TITLE))
    for number, (network, methods) in enumerate(groups.items()):
        words = f"{TEMPERATURE_TITLE}: {network.model} on {network.data}, {recipe_words(network)}, "
        count = measured.settings.sample_count
        words += f"{count} sample{'s' if count != 1 else ''}."
        blocks.append(TableBlock(_temperature_table(methods, words), explain=number == 0))
    return [Section(TEMPERATURE_TITLE, blocks, "temperature", "Temperature")]


def _temperature_table(methods: dict[str, Entries], caption: str) -> Table:
    several = any(len(entries) > 1 for entries in methods.values())
    scores = [
        replace(COLUMNS[score], key=f"{score}_{when}", heading=f"{COLUMNS[score].heading} {when}", about="")
        for score in SCORES
        for when in ("before", "after")
    ]
    columns = (METHOD, *((SEEDS,) if several else ()), TEMPERATURES, COLUMNS["accuracy"], *scores)
    rows: list[dict[str, Value]] = []
    for method, entries in methods.items():
        row: dict[str, Value] = {
            f"{score}_{when}": _score(entries, when, score) for score in SCORES for when in ("before", "after")
        }
        row["method"] = Cell(method, link=f"#{anchor_of(entries[0][0])}")
        row["temperatures"] = _temperatures(entries)
        row["accuracy"] = _score(entries, "after", "accuracy")
        if several:
            row["seeds"] = Cell(len(entries))
        rows.append(row)
    return Table(columns, rows, f"{caption} Mean ± standard deviation." if several else caption)


def _score(entries: Entries, when: str, score: str) -> Cell:
    return Cell(*spread([float(entry[when][score]) for _, entry in entries]))


def _temperatures(entries: Entries) -> str:
    found = [temperature for _, entry in entries for temperature in entry["temperatures"]]
    if len(entries) == 1:
        return ", ".join(f"{one:.2f}" for one in found)
    return f"{min(found):.2f} to {max(found):.2f}"


# The paper's sentences with both verdicts.


VERDICTS = ("true", "false", "not in its tables", "not measured")


def claims_section(judged: Sequence[Judged], scale: str) -> Section:
    """Every sentence, how it is read, and what decides it."""
    here = "here (quick)" if scale == QUICK.name else "here"
    sides = {"By its own numbers": [one.paper.word for one in judged], "Here": [one.measured.word for one in judged]}
    totals = [f"{name}: {_counted(words)}." for name, words in sides.items()]
    lead = (
        f"{len(judged)} sentences of §3.4 and §4 can be true or false. Each is checked against the numbers that the "
        "paper prints and against those measured here."
    )
    if scale == QUICK.name:
        lead += " The verdicts here come from a quick run and are no evidence."
    columns = (
        Column("claim", "claim", numeric=False),
        Column("paper", "by its own numbers", numeric=False),
        Column("here", here, numeric=False),
        Column("section", "§", numeric=False),
        Column("sentence", "sentence", numeric=False),
    )
    rows = [
        {
            "claim": one.claim.id,
            "section": one.claim.section,
            "sentence": f"“{one.claim.quote}”",
            "paper": one.paper.covered_word,
            "here": one.measured.covered_word,
        }
        for one in judged
    ]
    blocks: list[Block] = [
        Text(lead),
        Bullets(totals),
        TableBlock(Table(columns, rows, "Sentences of the paper with both verdicts")),
        Text(f"{CASES} {single_runs_note(judged)}"),
        Heading("How each sentence is read, and what decides it"),
        *(_reasons(one, here) for one in judged),
    ]
    return Section("What the paper claims", blocks, "claims", "Claims")


def _counted(words: Sequence[str]) -> str:
    seen = Counter(words)
    return ", ".join(f"{seen[word]} {word}" for word in (*VERDICTS, *sorted(set(seen) - set(VERDICTS))) if seen[word])


def _reasons(one: Judged, here: str) -> Fold:
    verdicts = f"by its own numbers: {one.paper.covered_word}; {here}: {one.measured.covered_word}"
    decided = [
        f"Read as: {one.claim.reading}",
        f"By its own numbers {one.paper}.",
        f"{here.capitalize()} {one.measured}.",
    ]
    return Fold(f"`{one.claim.id}`, {verdicts}", [Bullets([f"“{one.claim.quote}”", *decided])])


# Where each number comes from: run, seeds, hardware, versions, commit.


def origin_section(gathered: Sequence[ExperimentData], measured: Measured) -> Section:
    """One row a run, clean, under corruptions and after temperature scaling apart; empty if nothing was measured."""
    configs = list(dict.fromkeys(c for one in gathered for c in measured.settings.configs(one.experiment)))
    clean = [source for source in (_clean(config, measured) for config in configs) if source is not None]
    shifted = [source for source in (_shifted(config, measured) for config in configs) if source is not None]
    scaled = [source for source in (_scaled(config, measured) for config in configs) if source is not None]
    drawn = [
        source_from_run(f"paper/{one.scale}/{one.experiment.id}.json", "no run", 0, {}, content["environment"])
        for one in gathered
        if (content := one.illustration) is not None and content.get("environment")
    ]
    blocks: list[Block] = []
    if clean:
        blocks.append(TableBlock(provenance_table(clean, "Clean test images: one row a run"), explain=True))
    if shifted:
        blocks.append(TableBlock(provenance_table(shifted, "Corrupted test images: one row a run")))
    if scaled:
        blocks.append(TableBlock(provenance_table(scaled, "Temperature scaling: one row a run")))
    if drawn:
        blocks.append(TableBlock(provenance_table(drawn, "Figures that compare no runs: one row a figure")))
    if blocks:
        paper = printed()
        words = (
            "Every number measured here comes from one of these runs; the method in a table leads to its row. The same "
            "seeds and the same version of the random stream give the same random bits on every machine. The paper's "
            f"numbers are from {paper['source']}; its hardware was {paper['hardware']}."
        )
        blocks.insert(0, Text(words))
    return Section("Where each number comes from", blocks, "origin", "Origin")


def _clean(config: RunConfig, measured: Measured) -> Source | None:
    result = measured.result(config)
    if result is None:
        return None
    environment = RunFolder.of(config, measured.root).read("environment")
    return source_from_run(
        *(name_of(config), config.method, config.seed, result, environment), anchor=anchor_of(config)
    )


def _scaled(config: RunConfig, measured: Measured) -> Source | None:
    """Where the temperatures were fitted, which needs neither the network nor the machine it was measured on."""
    entry = measured.calibration(config)
    return None if entry is None else source_from_run(name_of(config), config.method, config.seed, entry)


def _shifted(config: RunConfig, measured: Measured) -> Source | None:
    """The runs under corruptions, whose rows name the environment that each was measured in."""
    folder = RunFolder.of(config, measured.root)
    rows = measured.corrupted_rows(config)
    if not rows:
        return None
    known: dict[str, Any] = (folder.read("shift") or {}).get("environments") or {}
    places = [known[name] for name in dict.fromkeys(row.get("environment") for row in rows) if name in known]
    result = {"samples": rows[0].get("samples"), "seed": rows[0]["seed"], "environment": places[0] if places else None}
    found = source_from_run(name_of(config), config.method, config.seed, result, folder.read("environment"))
    generated = sum(str(row.get("variant", "")).startswith("generated") for row in rows)
    images = rows[0].get("images")
    sets = f"{len(rows)} sets" + (f" of {images:,}" if images else "")
    return replace(found, data=f"{sets}, {generated} of them made here" if generated else sets)


# The page as a whole, and its tables for LaTeX.


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
        gathered: from :func:`rbue.lab.paper.results.gather`, one for each section.
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
