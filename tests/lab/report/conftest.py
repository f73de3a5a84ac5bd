"""Runs to report on, and a page with one of everything."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from tiny_reports import make_runs

from rbue.lab.report import figures, severity_figures
from rbue.lab.report.page import (
    Bar,
    Bullets,
    Card,
    Cards,
    Columns,
    FigureBlock,
    FigureGrid,
    Fold,
    Heading,
    Notice,
    Page,
    Section,
    TableBlock,
    Text,
)
from rbue.lab.report.run_records import read_records
from rbue.lab.report.run_report import report_on
from rbue.lab.report.run_tables import Source, provenance_table
from rbue.lab.report.tables import Cell, Column, Table, percent, points
from rbue.lab.runs.folders import find_runs


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory):
    """Made once; not to be changed."""
    return make_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="session")
def run_report(made_runs):
    """The report of those runs."""
    return report_on(read_records(find_runs(made_runs)), device=torch.device("cpu"))


@pytest.fixture(scope="session")
def run_html(run_report):
    """The page of those runs; figures take their time."""
    return run_report.page.html()


@pytest.fixture
def own_runs(made_runs, tmp_path):
    """A copy to change."""
    return shutil.copytree(made_runs, tmp_path / "runs")


@pytest.fixture(scope="session")
def full_page():
    """Every kind of block."""
    random = np.random.default_rng(0)
    methods = ["single", "mc-dropout:0.2", "deep-ensemble:4", "svi", "mc-rrelu", "mc-droprelu:0.9"]
    columns = (
        Column("method", "method", numeric=False),
        Column("accuracy", "accuracy", "higher", percent, points, "Share of right answers."),
        Column("ece", "ECE", "lower"),
        *(Column(f"more{number}", f"measure {number}") for number in range(8)),
    )
    rows = [
        {
            "method": Cell(method, link="#run-0"),
            "accuracy": Cell(0.9 + 0.01 * (turn * 5 % 6), std=0.002, paper=0.93, interval=(0.88, 0.97)),
            "ece": Cell(None) if turn == 2 else 0.05 - 0.003 * turn,
            **{f"more{number}": float(random.random()) for number in range(8)},
        }
        for turn, method in enumerate(methods)
    ]
    image = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    curves = {method: (np.arange(1, 101) / 100, np.linspace(0, 0.1, 100)) for method in methods}
    boxes = {method: {severity: random.random(19) for severity in range(1, 6)} for method in methods}
    card = Card(
        image, "a noisy image", "“cat”", "It is a dog.", [Bar("cat", 0.6, 0.3, 0.9), Bar("dog", 0.4)], good=False
    )
    histogram = figures.histogram_pair({"right": random.random(40), "wrong": random.random(9)}, 2.3, label="svi")
    matrix = figures.confusion_matrix(random.integers(0, 9, (3, 3)), ["cat", "dog", "a < b"])
    small = FigureBlock(histogram, "histogram of entropies")
    origin = provenance_table([Source("digits/small_cnn/single-seed0-12345678", "single", seed=0, anchor="run-0")])
    sections = [
        Section(
            "Words",
            open=True,
            blocks=[Text("One paragraph with `code`.\n\nAnother <one>."), Bullets(["first", "second"])],
        ),
        Section("Gaps", [Notice("Something is missing", ["`run`: not measured"])]),
        Section("Numbers", [Heading("A table"), TableBlock(Table(columns, rows, "All methods"), explain=True)]),
        Section(
            "Figures",
            [
                Columns(
                    [
                        [FigureBlock(figures.risk_coverage_curves(curves), "curves", "Less is better.")],
                        [Text("Words beside it."), FigureBlock(matrix, "matrix")],
                    ]
                ),
                FigureBlock(severity_figures.severity_boxes(boxes, "ECE"), "boxes", "Under corruptions.", wide=True),
                FigureGrid([small, small, small]),
            ],
        ),
        Section(
            "Images",
            [Fold("svi", [Cards("Least certain", [card] * 5)], open=True), Fold("closed", [Cards("Most", [card])])],
        ),
        Section("Origin", [TableBlock(origin)], open=False),
        Section("Left out", []),
    ]
    return Page("A page & everything", sections, lead="What `rbue` found.", facts="Six methods.", wide=True)


@pytest.fixture(scope="session")
def full_html(full_page):
    """The page of every kind of block."""
    return full_page.html()
