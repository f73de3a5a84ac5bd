"""The comparison: one row a method, means over seeds, the paper's value beside each measured one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rbue.lab.report.of_runs.reading import Group, Record
from rbue.lab.report.page.provenance import source_from_run
from rbue.lab.report.tables import Cell, Column, Table
from rbue.lab.report.tables.formats import duration, percent, points, whole

PaperValue = Callable[[str, str, str, str], float | None]
"""``(data, model, method, measure)`` -> the paper's number in the unit of ours, or None if it has none.

Names and units are those of a run: ``("cifar10", "resnet18", "mc-droprelu:0.9", "accuracy")`` -> 0.9486; measures are
the keys of :data:`MEASURES`; accuracies and disagreements are fractions, times are seconds.
"""

NO_DIVERSITY = "a method with one sample has no diversity"

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

METHOD = Column("method", "method", numeric=False)
SEEDS = Column("seeds", "seeds", text=whole, about="Trainings with different seeds: mean ± standard deviation.")


def no_paper(data: str, model: str, method: str, measure: str) -> float | None:
    """A :data:`PaperValue` without any numbers."""
    return None


def comparison_table(group: Group, paper_value: PaperValue = no_paper) -> Table:
    """One row a method of a group."""
    several = any(len(records) > 1 for records in group.methods.values())
    rows = []
    for method, records in group.methods.items():
        row = {column.key: _mean(records, column, paper_value) for column in MEASURES}
        row["method"] = Cell(method, link=f"#{records[0].anchor}")
        if several:
            row["seeds"] = Cell(len(records))
        rows.append(row)
    columns = (METHOD, *((SEEDS,) if several else ()), *MEASURES)
    return Table(columns, rows, f"{group.title}: {group.recipe}")


def runs_table(records: Sequence[Record], paper_value: PaperValue = no_paper) -> Table:
    """One row a measured run with its settings and where it comes from: for scripts and spreadsheets."""
    names = ("data", "model", "method", "seed", "epochs", "width")
    origin = ("run", "sample_seed", "hardware", "versions", "commit", "test_images")
    rows = []
    for record in records:
        if not record.results:
            continue
        config = record.settings
        source = source_from_run(record.name, config.method, config.seed, record.result, record.environment)
        rows.append(
            {
                **{name: getattr(config, name) for name in ("data", "model", "method", "seed", "width")},
                "epochs": config.recipe.epochs,
                **{column.key: _mean([record], column, paper_value) for column in MEASURES},
                **{name: getattr(source, name) for name in origin[:-1]},
                "test_images": source.data,
            }
        )
    columns = (
        [Column(name, name, numeric=False) for name in names],
        [Column(name, name, numeric=False) for name in origin],
    )
    return Table((*columns[0], *MEASURES, *columns[1]), rows)


def _mean(records: Sequence[Record], column: Column, paper_value: PaperValue) -> Cell:
    found = [record.result.get(column.key) for record in records]
    numbers = [number for number in found if number is not None]
    config = records[0].settings
    paper = paper_value(config.data, config.model, config.method, column.key) if config.width == 1 else None
    if not numbers:
        why = NO_DIVERSITY if column.key in ("mean_jsd", "mean_dis") else "not measured"
        return Cell(None, paper=paper, why=why)
    mean = numbers[0] if len(set(numbers)) == 1 else statistics.fmean(numbers)
    varies = len(numbers) > 1 and column.key not in ("parameters", "samples")
    return Cell(mean, deviation=statistics.stdev(numbers) if varies else None, paper=paper)
