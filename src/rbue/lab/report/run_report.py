"""The report of run folders that ``rbue report`` writes: the page, and what could not be put into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rbue.errors import RbueError
from rbue.lab.report.page import Block, Heading, Notice, Page, Section, TableBlock, Text
from rbue.lab.report.run_answers import TestImages
from rbue.lab.report.run_compared import Compared, Gaps, compare_answers
from rbue.lab.report.run_records import Record, RunGroup, apart, group_records, missing, without_copies
from rbue.lab.report.run_sections import SECTIONS, interval_blocks
from rbue.lab.report.run_tables import PaperValue, comparison_table, no_paper, provenance_table, runs_table, source_of
from rbue.lab.report.tables import Table, counted

Part = tuple[str, list[Block]]


@dataclass(frozen=True)
class Report:
    """A report of runs.

    Attributes:
        page: what to read.
        runs: every measured run as a row, for scripts.
        missing: one sentence for everything that is not in it.
    """

    page: Page
    runs: Table
    missing: list[str]


def report_on(
    records: Sequence[Record],
    paper_value: PaperValue = no_paper,
    *,
    pictures: bool = True,
    answers: bool = True,
    device: torch.device | None = None,
    lead: str = "",
) -> Report:
    """Report on runs.

    Args:
        records: from :func:`read_records`.
        paper_value: gives the paper's numbers.
        pictures: whether to draw figures and images, which needs matplotlib.
        answers: whether to read stored answers and test images, for the verdict, intervals and pictures.
        device: where the samples of a few images are drawn again; the GPU if there is one and this is left out.
        lead: what stands at the top of the page in place of the verdict.

    Raises:
        RbueError: if none of the runs is measured.
    """
    records, copies = without_copies(records)
    groups = group_records(records)
    gaps = Gaps(missing(records) + copies + apart(groups))
    if not groups:
        raise RbueError(_nothing(records, gaps.sentences()))
    images = TestImages()
    compared = [compare_answers(group, images if answers else None, device, gaps) for group in groups]
    parts = [(one, _parts(one, paper_value, pictures)) for one in compared]
    said = gaps.sentences()
    notice = [Section("What is missing", [Notice("This report is not complete", said)], open=True)] if said else []
    sources = [source_of(record, record.anchor) for group in groups for record in group.records]
    words = (
        "Every number above comes from one of these runs. The same seeds and the same version of the random stream "
        "give the same random bits on every machine."
    )
    blocks = [Text(words), TableBlock(provenance_table(sources))]
    origin = Section("Where each number comes from", blocks, "provenance", open=False)
    sections = _sections(parts)
    place = 1 if len(groups) == 1 else len(sections)
    facts = _facts(groups, records)
    page = Page(
        f"{groups[0].title}: how sure, and how right" if len(groups) == 1 else "How sure, and how right",
        [*sections[:place], *notice, *sections[place:], origin],
        lead=lead or (compared[0].verdict if len(groups) == 1 else facts),
        facts=facts if len(groups) == 1 else "",
        wide=True,
    )
    return Report(page, runs_table(records, paper_value), said)


def _parts(this: Compared, paper_value: PaperValue, pictures: bool) -> list[Part]:
    """What a group came to; what is missing of it is added to the gaps."""
    table = comparison_table(this.group, paper_value, this.chance)
    blocks: list[Block] = [*([Text(_HOW)] if this.chance else []), TableBlock(table, explain=True)]
    if not pictures:
        return [("Comparison", blocks)]
    blocks += interval_blocks(this, table)
    more = [(title, section(this)) for title, section in SECTIONS]
    return [("Comparison", blocks), *((title, found) for title, found in more if found)]


_HOW = (
    "Accuracy, ECE, NLL and Brier score have 95 % intervals over the test images. Of these a value is marked where it "
    "is better than all others by more than chance: by a paired bootstrap over the images, corrected for comparing "
    "several methods. Another training would move the numbers too; runs with other seeds show by how much."
)


def _sections(parts: Sequence[tuple[Compared, list[Part]]]) -> list[Section]:
    """Sections by idea for one group; one section a group, with its verdict and headings, for several.

    Groups of one network and data set are told apart by their recipes.
    """
    if len(parts) == 1:
        return [Section(title, blocks, open=True) for title, blocks in parts[0][1]]
    sections, titles = [], [this.group.title for this, _ in parts]
    for this, found in parts:
        name = this.group.title
        if titles.count(name) > 1:
            name += f": {this.group.recipe}"
        blocks: list[Block] = [Text(this.verdict)]
        for title, inside in found:
            blocks += [Heading(title), *inside]
        sections.append(Section(name, blocks, this.group.title, open=True))
    return sections


def _facts(groups: Sequence[RunGroup], records: Sequence[Record]) -> str:
    measured = sum(bool(record.results) for record in records)
    methods = len({method for group in groups for method in group.methods})
    where = groups[0].recipe if len(groups) == 1 else f"{len(groups)} settings of network, data and recipe"
    return f"{counted(methods, 'method')} in {counted(measured, 'measured run')}; {where}."


def _nothing(records: Sequence[Record], gaps: Sequence[str]) -> str:
    if len(records) == 1:
        return f"there is nothing to report yet: {records[0].name}: {records[0].trouble}"
    return f"there is nothing to report yet: none of the {len(records)} runs is measured ({gaps[0].rstrip('.')})."
