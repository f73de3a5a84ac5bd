"""A recipe refuses what cannot train, and takes what the paper uses."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from rbue.errors import InvalidInput
from rbue.lab.training.recipe import Recipe, recipe_for

ALLOWED = {
    "learning_rate": "a positive number",
    "factor": "a number above 0 and at most 1",
    "momentum": "a number from 0 to below 1",
    "weight_decay": "a number of at least 0",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("learning_rate", value) for value in (0.0, -0.1)),
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


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("epochs", value, "a whole number of at least 1") for value in (2.5, math.nan, "3", True)),
        *(("batch", value, "a whole number of at least 1") for value in (2.5, None)),
        *(("padding", value, "a whole number of at least 0") for value in (1.5, "1")),
        *(
            (name, value, "True or False")
            for name, value in (("flip", "no"), ("flip", 2), ("nesterov", None), ("nesterov", 0.5))
        ),
        *((name, value, ALLOWED[name]) for name, value in zip(ALLOWED, ("0.1", None, True, 10**400), strict=True)),
        *(
            ("milestones", value, "growing fractions of the epochs in (0, 1)")
            for value in (0.5, None, ("0.5",), (math.nan,), (0.5, 0.25))
        ),
    ],
)
def test_what_is_no_such_number_is_named(name, value, allowed):
    with pytest.raises(InvalidInput) as refusal:
        Recipe(**{name: value})
    assert str(refusal.value) == f"{name} must be {allowed}, not {value!r}."


def test_numbers_of_other_types_become_plain_ones():
    given = Recipe(
        epochs=np.int64(3),
        batch=8.0,
        learning_rate=1,
        milestones=[np.float64(0.25), 0.5],
        factor=1,
        momentum=np.float32(0.5),
        nesterov=np.bool_(False),
        weight_decay=0,
        padding=np.uint8(1),
        flip=1,
    )
    plain = Recipe(3, 8, 1.0, (0.25, 0.5), 1.0, 0.5, False, 0.0, 1, True)
    assert json.dumps(asdict(given)) == json.dumps(asdict(plain))
    assert hash(given) == hash(plain)


def test_the_rate_drops_at_the_exact_fraction_of_the_epochs():
    for epochs in (200, 360, 680, 720):
        recipe = Recipe(epochs=epochs)
        drops = [
            epoch for epoch in range(1, epochs) if recipe.learning_rate_at(epoch) < recipe.learning_rate_at(epoch - 1)
        ]
        assert drops == [epochs * 450 // 1000, epochs * 675 // 1000, epochs * 900 // 1000]


def test_the_recipes_are_those_of_the_paper():
    schedule = {"epochs": 200, "batch": 128, "learning_rate": 0.1, "milestones": (0.45, 0.675, 0.9), "factor": 0.1}
    rest = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4, "padding": 4, "flip": True}
    tiny = {"epochs": 150, "batch": 100, "learning_rate": 0.01, "milestones": (0.6, 0.9), "factor": 0.1}
    assert asdict(recipe_for("cifar10")) == asdict(recipe_for("cifar100")) == schedule | rest
    assert asdict(recipe_for("tiny-imagenet")) == tiny | rest


@pytest.mark.parametrize("data", ["svhn", "digits", "colour-digits", "colour-digits-few"])
def test_numerals_are_not_mirrored(data):
    assert not recipe_for(data).flip


def test_the_rate_drops_by_the_factor():
    recipe = Recipe(epochs=10, learning_rate=0.8, milestones=(0.3, 0.5), factor=0.25)
    assert [recipe.learning_rate_at(epoch) for epoch in (2, 3, 4, 5)] == pytest.approx([0.8, 0.2, 0.2, 0.05])
