"""The paper's tables and figures, measured, as one page that needs no network, and their tables for LaTeX.

:func:`page_files` is a renderer for :func:`rbue.lab.paper.reporting.write_report`. The page has an overview, a section
for each experiment with its drawings (:mod:`rbue.lab.paper.drawings`), what temperature scaling adds, the paper's
sentences with both verdicts, and where each number comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rbue.lab.paper.claims import judge_all
from rbue.lab.paper.drawings import COLUMNS, SEEDS, ExperimentView, anchor_of, draw
from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.judging import CASES, Judged, caveats
from rbue.lab.paper.numbers import printed
from rbue.lab.paper.reporting import Renderer
from rbue.lab.paper.results import Measured, as_measured
from rbue.lab.paper.settings import QUICK, Settings, name_of, spread
from rbue.lab.report.page import Block, Bullets, Columns, Fold, Heading, Notice, Page, Section, TableBlock, Text
from rbue.lab.report.run_records import recipe_words
from rbue.lab.report.run_tables import METHOD, Source, provenance_table, source_from_run
from rbue.lab.report.tables import Cell, Column, Row, Table, Value, counted
from rbue.lab.runs.folders import RunConfig, RunFolder

HTML, LATEX = "report.html", "report.tex"
TITLE = "The paper’s tables and figures, measured"
_QUICK = (
    f"Small stand-ins: {QUICK.data} in place of every data set, networks of {QUICK.width} of their width, a few "
    "epochs. It shows that everything works.",
    "The paper’s values stand beside the numbers only to show where they go; the differences mean nothing.",
)
QUICK_TITLE = "Quick run: these numbers are no evidence about the paper"
FEW = 4


def page_files(settings: Settings, root: Path) -> Renderer:
    """A renderer that gives the page, and its tables as LaTeX; ``settings`` are those that were gathered with."""

    def render(gathered: Sequence[ExperimentData]) -> Mapping[str, bytes]:
        measured, lead = Measured(root, settings), _lead(gathered, settings)
        there = [one for one in gathered if one.has_something]
        quick = any(one.scale == QUICK.name for one in there)
        first = [Section("A quick run", [Notice(QUICK_TITLE, _QUICK)], "quick", "Quick run")] if quick else []
        overview = Section("At a glance", _overview(gathered), "overview", "Overview", open=True)
        few = len(there) <= FEW
        shown = [ExperimentView(one, measured) for one in there]
        numbers = _told_apart([_experiment_section(one, few or bool(one.gathered.rows)) for one in shown])
        numbers += _calibrated_sections(gathered, measured)
        judged = judge_all(measured)
        last = [claims_section(judged, settings.scale.name), _origin_section(gathered, measured)]
        facts = f"Of {len(judged)} sentences of the paper, {'; '.join(_totals(judged))}."
        page = Page(TITLE, [*first, overview, *numbers, *last], lead, facts=facts, wide=True)
        tables = Page(TITLE, [*first, *numbers], lead)
        return {HTML: page.html().encode(), LATEX: tables.latex().encode()}

    return render


def _lead(gathered: Sequence[ExperimentData], settings: Settings) -> str:
    complete = sum(one.is_complete for one in gathered)
    if not any(one.has_something for one in gathered):
        return "Nothing has been measured with these settings yet; `rbue paper run` does it."
    only = "" if settings.models is None else f" for {', '.join(settings.models)} alone"
    return f"{complete} of {len(gathered)} tables and figures are complete{only}."


def _overview(gathered: Sequence[ExperimentData]) -> list[Block]:
    """What there is, as a table; what was never run, a line each."""
    rows: list[Row] = [
        {
            "place": Cell(one.experiment.place, link=f"#{one.experiment.id}"),
            "title": one.experiment.title,
            "state": f"{len(one.missing)} missing" if one.missing else one.state.partition(".")[0],
        }
        for one in gathered
        if one.has_something
    ]
    columns = _texts(place="where", title="what it shows", state="state")
    blocks: list[Block] = [TableBlock(Table(columns, rows, "What was run"))] if rows else []
    absent = [one for one in gathered if not one.has_something]
    lines = [one.line for one in absent]
    return [Columns([one for one in (blocks, [Heading("Not here yet"), Bullets(lines)] if lines else []) if one])]


def _texts(**headings: str) -> tuple[Column, ...]:
    return tuple(Column(key, heading, numeric=False) for key, heading in headings.items())


def _experiment_section(shown: ExperimentView, show: bool) -> Section:
    """The section, whose name is the experiment's id; it says what is missing and how the paper is read."""
    experiment, gathered = shown.experiment, shown.gathered
    words = shown.settings_words()
    lead = f"{experiment.place} of the paper, `{experiment.id}`."
    blocks: list[Block] = [Text(f"{lead} Measured with {words}" if words else lead)]
    if shown.quick and words:
        blocks.append(Notice(QUICK_TITLE))
    if gathered.missing:
        blocks.append(Text(f"{gathered.state}; `{gathered.command}` continues."))
    if gathered.stated:
        blocks.append(Text(f"The budget of these runs: {' '.join(gathered.stated)}"))
    for drawing in experiment.drawings:
        blocks += draw(shown, drawing)
    if experiment.notes:
        blocks.append(Fold("How the paper is read here", [Bullets(experiment.notes)]))
    return Section(f"{experiment.place}: {experiment.title}", blocks, experiment.id, experiment.place, open=show)


def _told_apart(sections: list[Section]) -> list[Section]:
    """Those that the contents would call the same are called by the data set too, with which their titles end."""
    often = Counter(one.short for one in sections)
    data = [f", {one.title.rpartition(' on ')[2]}" if often[one.short] > 1 else "" for one in sections]
    return [replace(one, short=one.short + more) for one, more in zip(sections, data, strict=True)]


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
    "temperatures", "temperatures", numeric=False, about="One a half, fitted on the other; of several runs the range."
)
Entries = list[tuple[RunConfig, dict[str, Any]]]


def _calibrated_sections(gathered: Sequence[ExperimentData], measured: Measured) -> list[Section]:
    """One section with one table a network, or none if nothing has been calibrated."""
    groups: dict[RunConfig, dict[str, Entries]] = {}
    for config in _configs(gathered, measured):
        if (entry := measured.calibration(config)) is not None:
            network = replace(config, method="single", seed=0)
            groups.setdefault(network, {}).setdefault(config.method, []).append((config, entry))
    if not groups:
        return []
    blocks: list[Block] = [Text(TEMPERATURE_WORDS)]
    if measured.settings.quick:
        blocks.append(Notice(QUICK_TITLE))
    for number, (network, methods) in enumerate(groups.items()):
        samples = counted(measured.settings.sample_count, "sample")
        words = f"{TEMPERATURE_TITLE}: {network.model} on {network.data}, {recipe_words(network)}, {samples}."
        blocks.append(TableBlock(_temperature_table(methods, words), explain=number == 0))
    return [Section(TEMPERATURE_TITLE, blocks, "temperature", "Temperature", open=False)]


def _temperature_table(methods: dict[str, Entries], caption: str) -> Table:
    several = any(len(entries) > 1 for entries in methods.values())
    pairs = [(score, when) for score in ("ece", "nll", "brier") for when in ("before", "after")]
    scores = [
        replace(COLUMNS[score], key=f"{score}_{when}", heading=f"{COLUMNS[score].heading} {when}", about="")
        for score, when in pairs
    ]
    columns = (METHOD, *((SEEDS,) if several else ()), TEMPERATURES, COLUMNS["accuracy"], *scores)
    rows: list[dict[str, Value]] = []
    for method, entries in methods.items():
        row: dict[str, Value] = {f"{score}_{when}": _score(entries, when, score) for score, when in pairs}
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
    lead = (
        f"{len(judged)} sentences of §3.4 and §4 can be true or false. Each is checked against the numbers that the "
        "paper prints and against those measured here."
    )
    if scale == QUICK.name:
        lead += " The verdicts here come from a quick run and are no evidence."
    columns = _texts(claim="claim", paper="by its own numbers", here=here, section="§", sentence="sentence")
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
        Bullets(_totals(judged)),
        TableBlock(Table(columns, rows, "Sentences of the paper with both verdicts")),
        Text(f"{CASES} {caveats(judged)}"),
        Heading("How each sentence is read, and what decides it"),
        *(_reasons(one, here) for one in judged),
    ]
    return Section("What the paper claims", blocks, "claims", "Claims", open=False)


def _totals(judged: Sequence[Judged]) -> list[str]:
    sides = {"by its own numbers": [one.paper.word for one in judged], "here": [one.measured.word for one in judged]}
    return [f"{name} {_counted(words)}" for name, words in sides.items()]


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


def _origin_section(gathered: Sequence[ExperimentData], measured: Measured) -> Section:
    """One row a run, clean, under corruptions and after temperature scaling apart; empty if nothing was measured."""
    configs = _configs(gathered, measured)
    drawn = [
        source_from_run(f"paper/{one.scale}/{one.experiment.id}.json", "no run", 0, {}, content["environment"])
        for one in gathered
        if (content := one.illustration) is not None and content.get("environment")
    ]
    tables: dict[str, Sequence[Source | None]] = {
        "Clean test images: one row a run": [_clean(config, measured) for config in configs],
        "Corrupted test images: one row a run": [_shifted(config, measured) for config in configs],
        "Temperature scaling: one row a run": [_scaled(config, measured) for config in configs],
        "Figures that compare no runs: one row a figure": drawn,
    }
    blocks: list[Block] = []
    for title, sources in tables.items():
        found = [source for source in sources if source is not None]
        if found:
            blocks.append(TableBlock(provenance_table(found, title), explain=title.startswith("Clean")))
    if blocks:
        paper = printed()
        words = (
            "Every number measured here comes from one of these runs; the method in a table leads to its row. The same "
            "seeds and the same version of the random stream give the same random bits on every machine. The paper's "
            f"numbers are from {paper['source']}; its hardware was {paper['hardware']}."
        )
        blocks.insert(0, Text(words))
    return Section("Where each number comes from", blocks, "origin", "Origin", open=False)


def _configs(gathered: Sequence[ExperimentData], measured: Measured) -> list[RunConfig]:
    """The runs of all experiments, each once."""
    root, found = measured.root, measured.settings
    shown = ((one.experiment, as_measured(one.experiment, found, root)) for one in gathered)
    return list(dict.fromkeys(config for experiment, settings in shown for config in settings.configs(experiment)))


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
