"""A recipe refuses what cannot train, and takes what the paper uses."""

from __future__ import annotations

import math

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
