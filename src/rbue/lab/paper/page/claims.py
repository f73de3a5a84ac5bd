"""The paper's sentences with both verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rbue.lab.paper.claims import CASES, Judged, single_runs_note
from rbue.lab.paper.settings import QUICK
from rbue.lab.report.page import Block, Bullets, Fold, Heading, Section, TableBlock, Text
from rbue.lab.report.tables import Column, Table

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
