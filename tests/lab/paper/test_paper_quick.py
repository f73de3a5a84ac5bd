"""The whole paper, quickly: what the command `rbue paper run --quick --all` and the report promise."""

from __future__ import annotations

import pytest
from faked_work import place

from rbue.lab.paper.experiments import EXPERIMENTS
from rbue.lab.paper.results import gather
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_id_is_complete_after_a_quick_run(tmp_path):
    settings = Settings(quick=True)
    outcome = run_experiments(EXPERIMENTS, settings, place(tmp_path))
    assert outcome.left == outcome.skipped == outcome.failed == []
    gathered = [gather(experiment, settings, tmp_path) for experiment in EXPERIMENTS]
    assert {one.experiment.id: one.missing for one in gathered if one.missing} == {}
    assert len({step for step in outcome.done if step.startswith("train")}) == 42
