"""A recipe refuses what cannot train, and takes what the paper uses."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from rbue.errors import InvalidInput
from rbue.training.recipe import Recipe, recipe_for

ALLOWED = {
    "rate": "a positive number",
    "factor": "a number above 0 and at most 1",
    "momentum": "a number from 0 to below 1",
    "weight_decay": "a number of at least 0",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rate", value) for value in (0.0, -0.1)),
        *(("factor", value) for value in (0.0, -5.0, 10.0)),
        *(("momentum", value) for value in (-1.0, 1.0, 2.0)),
        ("weight_decay", -1.0),
        *((name, value) for name in ALLOWED for value in (math.nan, math.inf, -math.inf)),
    ],
)
def test_numbers_out_of_range_are_named(name, value):
    with pytest.raises(InvalidInput) as refusal:
        Recipe(**{name: value})
    assert str(refusal.value) == f"{name} must be {ALLOWED[name]}, not {value}."
    with pytest.raises(InvalidInput, match=name):
        recipe_for("cifar10", **{name: value})


@pytest.mark.parametrize(
    ("name", "edge", "beyond"), [("factor", 1.0, 2.0), ("momentum", 0.0, -1.0), ("weight_decay", 0.0, -1.0)]
)
def test_the_edge_of_a_range_is_allowed(name, edge, beyond):
    assert getattr(Recipe(**{name: edge}), name) == edge
    with pytest.raises(InvalidInput, match=name):
        Recipe(**{name: math.nextafter(edge, beyond)})


def test_the_rate_drops_at_the_exact_fraction_of_the_epochs():
    for epochs in (200, 360, 680, 720):
        recipe = Recipe(epochs=epochs)
        drops = [epoch for epoch in range(1, epochs) if recipe.rate_at(epoch) < recipe.rate_at(epoch - 1)]
        assert drops == [epochs * 450 // 1000, epochs * 675 // 1000, epochs * 900 // 1000]


def test_the_recipes_are_those_of_the_paper():
    schedule = {"epochs": 200, "batch": 128, "rate": 0.1, "milestones": (0.45, 0.675, 0.9), "factor": 0.1}
    rest = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4, "padding": 4, "flip": True}
    tiny = {"epochs": 150, "batch": 100, "rate": 0.01, "milestones": (0.6, 0.9), "factor": 0.1}
    assert asdict(recipe_for("cifar10")) == asdict(recipe_for("cifar100")) == schedule | rest
    assert asdict(recipe_for("tiny-imagenet")) == tiny | rest


@pytest.mark.parametrize("data", ["svhn", "digits", "colour-digits", "colour-digits-few"])
def test_numerals_are_not_mirrored(data):
    assert not recipe_for(data).flip


def test_the_rate_drops_by_the_factor():
    recipe = Recipe(epochs=10, rate=0.8, milestones=(0.3, 0.5), factor=0.25)
    assert [recipe.rate_at(epoch) for epoch in (2, 3, 4, 5)] == pytest.approx([0.8, 0.2, 0.2, 0.05])
