"""Tables of runs: methods compared, with the paper's values beside them; one row a run; where numbers come from."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rbue.lab.report.chance import Resampled
from rbue.lab.report.run_records import Record, RunGroup, recipe_words
from rbue.lab.report.tables import Cell, Column, Table, duration, percent, points, whole
from rbue.lab.training import recipe_for

PaperValue = Callable[[str, str, str, str], float | None]
"""``(data, model, method, measure)`` -> the paper's number in the unit of ours, or None if it has none.

Names and units are those of a run: ``("cifar10", "resnet18", "mc-droprelu:0.9", "accuracy")`` -> 0.9486; measures are
the keys of :data:`MEASURES`; accuracies and disagreements are fractions, times are seconds.
"""

MEASURES = (
    Column("accuracy", "accuracy", "higher", percent, points, "Share of test images with the right answer."),
    Column(
        "ece", "ECE", "lower", about="Expected calibration error over 30 bins: how far confidence and accuracy part."
    ),
    Column("nll", "NLL", "lower", about="Negative log-likelihood of the right answer, in nats."),
    Column("brier", "Brier", "lower", about="Squared distance of the probabilities from the right answer."),
    Column("aurc", "AURC", "lower", about="Mean error over all shares of images answered, the surest first."),
    Column(
        "mean_jsd", "Mean-JSD", "higher", about="Mean Jensen-Shannon divergence between the first samples, in nats."
    ),
    Column(
        "mean_dis",
        "Mean-DIS",
        "higher",
        about="Share of images on which two of the first samples disagree, on average.",
    ),
    Column("parameters", "parameters", "lower", whole, about="Trained numbers in all networks of the method."),
    Column("training_seconds", "training", "lower", duration, about="Time of training all its networks."),
    Column("samples", "samples", None, whole, about="Random passes, or members, for each image."),
)
DIVERSITY = ("mean_jsd", "mean_dis")
METHOD = Column("method", "method", numeric=False)
SEEDS = Column("seeds", "seeds", text=whole, about="Trainings with different seeds: mean ± standard deviation.")


def no_paper(data: str, model: str, method: str, measure: str) -> float | None:
    """A :data:`PaperValue` without any numbers."""
    return None


def comparison_table(
    group: RunGroup, paper_value: PaperValue = no_paper, chance: Mapping[str, Resampled] | None = None
) -> Table:
    """One row a method of a group, means over seeds.

    Args:
        group: the runs.
        paper_value: gives the paper's numbers.
        chance: measure -> what chance does to it. A value is marked as the best where chance does not explain that it
            is better than all others; nothing else is marked.
    """
    several = any(len(records) > 1 for records in group.methods.values())
    rows = []
    for method, records in group.methods.items():
        row = {column.key: _mean(records, column, paper_value) for column in MEASURES}
        for key, cell in row.items():
            row[key] = _with_chance(cell, method, (chance or {}).get(key), len(group.methods))
        row["method"] = Cell(method, link=f"#{records[0].anchor}")
        if several:
            row["seeds"] = Cell(len(records))
        rows.append(row)
    augmented = any(record.result.get("augment") for record in group.records)
    measures = [_of_plain_passes(one) if augmented and one.key in DIVERSITY else one for one in MEASURES]
    columns = (METHOD, *((SEEDS,) if several else ()), *measures)
    return Table(columns, rows, f"{group.title}: {group.recipe}")


def _of_plain_passes(column: Column) -> Column:
    """A measure of diversity beside augmented passes, which it is never of (:func:`rbue.lab.runs.evaluate_run`)."""
    return replace(column, about=f"{column.about.rstrip('.')}; of plain passes, for augmented ones too.")


def runs_table(records: Sequence[Record], paper_value: PaperValue = no_paper) -> Table:
    """One row a measured run with its settings and where it comes from: for scripts and spreadsheets."""
    names = ("data", "model", "method", "seed", "epochs", "width", "recipe")
    origin = ("run", "sample_seed", "hardware", "versions", "commit", "draws", "augment", "test_images")
    rows = []
    for record in records:
        if record.results:
            config, source = record.settings, source_of(record)
            rows.append(
                {
                    **{name: getattr(config, name) for name in names if name not in ("epochs", "recipe")},
                    "epochs": config.recipe.epochs,
                    "recipe": recipe_words(config),
                    **{column.key: _mean([record], column, paper_value) for column in MEASURES},
                    **{name: getattr(source, name) for name in origin[:5]},
                    "draws": record.result.get("draws", "independent"),
                    "augment": record.result.get("augment", ""),
                    "test_images": source.data,
                }
            )
    before, after = ([Column(name, name, numeric=False) for name in words] for words in (names, origin))
    return Table((*before, *MEASURES, *after), rows)


def _with_chance(cell: Cell, method: str, chance: Resampled | None, methods: int) -> Cell:
    """A cell with its interval, marked as the best only if it is beyond chance and no method is left out."""
    if chance is None or method not in chance.methods or cell.number is None:
        return replace(cell, best=False)
    # Stored probabilities are rounded, and what was measured is not.
    low, high = chance.interval(method)
    return replace(
        cell,
        interval=(min(low, cell.number), max(high, cell.number)),
        best=len(chance.methods) == methods and chance.is_best(method),
    )


def _mean(records: Sequence[Record], column: Column, paper_value: PaperValue) -> Cell:
    found = [record.result.get(column.key) for record in records]
    numbers = [number for number in found if number is not None]
    config = records[0].settings
    paper = paper_value(config.data, config.model, config.method, column.key) if _is_papers(records[0]) else None
    if not numbers:
        alone = column.key in DIVERSITY and all(one.result["samples"] == 1 for one in records)
        return Cell(None, paper=paper, why="a method with one sample has no diversity" if alone else "not measured")
    mean = numbers[0] if len(set(numbers)) == 1 else statistics.fmean(numbers)
    varies = len(numbers) > 1 and column.key not in ("parameters", "samples")
    std = statistics.stdev(numbers) if varies else None
    return Cell(mean, std, paper, compared=column.key != "training_seconds")  # the hardware is another one


def _is_papers(record: Record) -> bool:
    """Whether a run is one of the paper's but for its length: its network, its recipe, and plain passes."""
    config, recipe = record.settings, record.settings.recipe
    usual = recipe_for(config.data, epochs=recipe.epochs, batch=recipe.batch)
    return config.width == 1 and recipe == usual and not record.result.get("augment")


@dataclass(frozen=True)
class Source:
    """Where the numbers of one run come from; what is not known is None."""

    run: str
    method: str
    seed: int | None = None
    samples: int | None = None
    sample_seed: int | None = None
    hardware: str | None = None
    versions: str | None = None
    commit: str | None = None
    data: str | None = None
    anchor: str = ""


_SOURCE = (
    Column("run", "run", numeric=False, about="Where the run lies; its last eight digits are a hash of its settings."),
    METHOD,
    Column("seed", "seed", text="{:.0f}".format, about="Seed of the initialisation and of training."),
    Column("samples", "samples", text=whole, about="Random passes for each image."),
    Column("sample_seed", "sample seed", text="{:.0f}".format, about="Seed of the random passes."),
    Column("hardware", "hardware", numeric=False),
    Column("versions", "versions", numeric=False),
    Column("commit", "commit", numeric=False, about="Commit of rbue, where it ran from a checkout."),
    Column("data", "test images", numeric=False, about="Number of test images and the start of their SHA-256."),
)


def provenance_table(sources: Sequence[Source], caption: str = "One row a run") -> Table:
    """One row a run; a cell elsewhere with ``link="#ANCHOR"`` leads a reader to the source with that anchor."""
    rows = [
        {column.key: Cell(getattr(source, column.key), why="not recorded") for column in _SOURCE}
        | {"run": Cell(source.run, anchor=source.anchor)}
        for source in sources
    ]
    return Table(_SOURCE, rows, caption)


def source_of(record: Record, anchor: str = "") -> Source:
    """The source of a record's last measurement."""
    config = record.settings
    return source_from_run(record.name, config.method, config.seed, record.result, record.environment, anchor)


def source_from_run(
    run: str,
    method: str,
    seed: int,
    result: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    anchor: str = "",
) -> Source:
    """The source of one entry of a run's ``results.json``.

    Args:
        run: where it lies.
        method: short text of the method.
        seed: seed of the training.
        result: the entry; its ``environment`` is where it was measured.
        environment: where it was trained, from ``environment.json``; named too where it was another machine.
        anchor: the id of its row.
    """
    measured = dict(result.get("environment") or environment or {})
    images = dict(result.get("data") or {})
    hardware, trained = _hardware(measured), _hardware(environment or {})
    if trained and hardware and trained != hardware:
        hardware = f"trained on {trained}; measured on {hardware}"
    versions = [f"{name} {measured[name]}" for name in ("rbue", "torch", "python") if measured.get(name)]
    if measured.get("stream_version") is not None:
        versions.append(f"stream {measured['stream_version']}")
    checksum = dict(images.get("sha256") or {}).get("images", "")
    count, commit = images.get("count"), measured.get("commit")
    remarks = [
        *["from stored probabilities"] * (result.get("combined_from") == "stored probabilities"),
        *["balanced draws"] * (result.get("draws") == "balanced"),
        *[f"augmented by {result.get('augment')}"] * bool(result.get("augment")),
    ]
    return Source(
        run=run,
        method=", ".join([method, *remarks]),
        seed=seed,
        samples=result.get("samples"),
        sample_seed=result.get("seed"),
        hardware=hardware or None,
        versions=", ".join(versions) or None,
        # ten of its forty digits, and whatever stands beside them
        commit=None if commit is None else re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", commit),
        data=None if count is None else f"{count:,} of {images.get('name', 'unknown')}, {checksum[:8]}",
        anchor=anchor,
    )


def _hardware(environment: Mapping[str, Any]) -> str:
    if environment.get("gpu"):
        return str(environment["gpu"])
    if not environment.get("cpu"):
        return ""
    threads = environment.get("threads")
    return f"{environment['cpu']}" + (f", {threads} thread{'s' if threads != 1 else ''}" if threads else "")
