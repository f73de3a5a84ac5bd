"""Every table and figure is there, and its grid is the paper's."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from rbue.errors import InvalidInput
from rbue.lab import models
from rbue.lab.methods import parse, spec_of
from rbue.lab.paper.experiments import EXPERIMENTS, IDS, METHODS, SIX, chosen, get
from rbue.lab.paper.illustrations import _MAKERS
from rbue.lab.paper.settings import Settings

ALL = """
    table1-cifar10 table2-cifar100 table3-tinyimagenet table4-jsd table5-dis table6-position fig-activations
    fig-network fig-framework fig-shot-noise fig-shift-cifar10 fig-shift-cifar10-ece fig-shift-tinyimagenet
    fig-shift-tinyimagenet-ece fig-jsd fig-dis fig-q-sweep variance
    position-tinyimagenet position-cifar10 related-cifar10
"""


def test_every_id_is_there():
    assert sorted(IDS) == sorted(ALL.split())


def test_grids_name_what_exists_in_canonical_form():
    for experiment in EXPERIMENTS:
        assert experiment.drawings
        assert experiment.grid is not None or experiment.illustration is not None
        if experiment.illustration is not None:
            assert experiment.illustration.kind in _MAKERS
        if experiment.grid is not None:
            assert set(experiment.grid.models) <= set(models.list_models())
            assert all(spec_of(parse(method)) == method for method in experiment.grid.methods)
            for drawing in experiment.drawings:
                assert set(drawing.methods) <= set(experiment.grid.methods)


def test_the_grids_are_the_papers():
    for name in ("table1-cifar10", "table2-cifar100", "table3-tinyimagenet"):
        grid = get(name).grid
        assert len(grid.models) == 3
        assert grid.methods == METHODS
        assert len(METHODS) == 10
    assert len(get("table4-jsd").grid.methods) == 7
    assert get("table4-jsd").grid == get("fig-dis").grid
    assert get("table6-position").grid.methods == ("mc-droprelu:0.8", "mc-droprelu:0.8,last", "mc-droprelu:0.8,first")
    assert [method for method in get("fig-q-sweep").grid.methods if "droprelu" in method] == [
        f"mc-droprelu:{q}" for q in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
    ]
    drawn = [drawing.methods for drawing in get("fig-shift-cifar10").drawings]
    assert drawn.count(SIX) == drawn.count(METHODS) == 2


def test_what_the_paper_leaves_open_is_said():
    assert any("CIFAR-10 is assumed" in note for note in get("table5-dis").notes)
    assert any("first ReLU" in note for note in get("table6-position").notes)
    assert any("p=0.2 and q=0.9" in note for note in get("fig-shift-tinyimagenet").notes)


def test_an_experiment_is_data():
    assert json.loads(json.dumps([asdict(one) for one in EXPERIMENTS]))


def test_patterns_and_wrong_names():
    assert [one.id for one in chosen(["table4*", "variance"])] == ["table4-jsd", "variance"]
    assert len(chosen([])) == len(ALL.split())
    with pytest.raises(InvalidInput, match="did you mean 'table1-cifar10'"):
        chosen(["tabel1-cifar10"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("table1", "table1-cifar10"),
        ("Table3", "table3-tinyimagenet"),
        ("tabel1", "table1-cifar10"),
        ("fig-qsweep", "fig-q-sweep"),
        ("position", "table6-position"),
    ],
)
def test_an_id_that_begins_about_as_typed_is_suggested(typed, meant):
    with pytest.raises(InvalidInput, match=f"did you mean '{meant}'"):
        get(typed)


@pytest.mark.parametrize("typed", ["", "foo"])
def test_nothing_is_suggested_for_what_looks_like_no_id(typed):
    with pytest.raises(InvalidInput, match="no experiment") as caught:
        get(typed)
    assert "did you mean" not in str(caught.value)


def test_another_network_may_stand_for_that_of_the_corruption_figures():
    asked = Settings(models=("resnet18", "vgg13"))
    figure, table = (next(one for one in EXPERIMENTS if one.id == name) for name in ("fig-shift-cifar10", "fig-jsd"))
    assert {config.model for config in asked.configs(figure)} == {"resnet18"}
    assert {config.model for config in Settings().configs(figure)} == {"densenet121"}
    assert {config.model for config in Settings(models=("vgg13", "densenet121")).configs(figure)} == {"vgg13"}
    assert not list(Settings(models=("vgg13",)).configs(table))
