"""Where each number comes from: run, seeds, hardware, versions, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.measured import Measured
from rbue.lab.paper.numbers import printed
from rbue.lab.paper.page.shown import anchor_of, name_of
from rbue.lab.report.page import Block, Section, TableBlock, Text
from rbue.lab.report.run_tables import Source, provenance_table, source_from_run
from rbue.lab.runs.folders import RunConfig, RunFolder


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
