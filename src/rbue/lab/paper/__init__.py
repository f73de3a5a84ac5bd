"""Every table and figure of the paper as data: what to train, what to measure, what to draw, what it claims.

:data:`EXPERIMENTS` lists them; :func:`run_experiments` does what is missing of them; :func:`gather` collects what was
measured beside what the paper prints; :func:`paper_value` looks a printed number up; :func:`judge_all` compares the
paper's sentences with both. ``rbue paper`` is the command for all of it.
"""

from rbue.lab.paper.experiments import EXPERIMENTS, IDS, Drawing, Experiment, Grid, Illustration, chosen, get
from rbue.lab.paper.gathering import ExperimentData, GatheredCell, GatheredRow, gather
from rbue.lab.paper.numbers import paper_numbers, paper_value
from rbue.lab.paper.results import Measured, Summary
from rbue.lab.paper.runner import Outcome, Place, TimeBudget, Watch, parse_duration, run_experiments
from rbue.lab.paper.settings import FULL, QUICK, Scale, Settings

__all__ = [
    "EXPERIMENTS",
    "FULL",
    "IDS",
    "QUICK",
    "Drawing",
    "Experiment",
    "ExperimentData",
    "GatheredCell",
    "GatheredRow",
    "Grid",
    "Illustration",
    "Measured",
    "Outcome",
    "Place",
    "Scale",
    "Settings",
    "Summary",
    "TimeBudget",
    "Watch",
    "chosen",
    "gather",
    "get",
    "paper_numbers",
    "paper_value",
    "parse_duration",
    "run_experiments",
]
