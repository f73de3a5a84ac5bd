"""A recipe refuses what cannot train, and takes what the paper uses."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from rbue.errors import InvalidInput
from rbue.lab.training.recipe import NAMED, RECIPES, Recipe, recipe_for

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
    assert recipe_for("cifar10") == recipe_for("cifar100") == recipe_for("my own data") == Recipe(**schedule, **rest)
    assert recipe_for("tiny-imagenet") == Recipe(**tiny, **rest)
    assert all(recipe_for(data, "paper") == recipe for data, recipe in RECIPES.items())


@pytest.mark.parametrize("data", ["svhn", "digits", "colour-digits", "colour-digits-few"])
def test_numerals_are_not_mirrored(data):
    assert not recipe_for(data).flip


def test_the_rate_drops_by_the_factor():
    recipe = Recipe(epochs=10, learning_rate=0.8, milestones=(0.3, 0.5), factor=0.25)
    assert [recipe.learning_rate_at(epoch) for epoch in (2, 3, 4, 5)] == pytest.approx([0.8, 0.2, 0.2, 0.05])


def test_the_strong_recipe_is_the_papers_but_for_what_it_changes():
    strong = recipe_for("cifar10", "strong")
    assert (strong.weight_decay, strong.nesterov, strong.batch) == (5e-4, True, 128)
    assert (strong.average, strong.average_from, strong.average_learning_rate) == ("swa", 160, 0.05)
    undone = {"weight_decay": 1e-4, "average": "none"}
    assert recipe_for("cifar10", "strong", **undone) == Recipe()
    assert recipe_for("svhn", "strong", **undone) == recipe_for("svhn")


def test_any_part_of_a_named_recipe_can_be_changed():
    changed = recipe_for("cifar10", "strong", learning_rate=0.2, average_start=10, epochs=50)
    assert (changed.average_learning_rate, changed.average_from, changed.weight_decay) == (0.1, 10, 5e-4)
    other = recipe_for("cifar10", "strong", average="ema")
    assert (other.average_start, other.average_decay, other.average_learning_rate) == (0, 0.999, None)


def test_a_recipe_that_is_not_there_is_named():
    with pytest.raises(InvalidInput) as refusal:
        recipe_for("cifar10", "strng")
    expected = "there is no recipe 'strng' (did you mean 'strong'?); there are paper, strong."
    assert str(refusal.value) == expected
    assert list(NAMED) == ["paper", "strong"]


def test_an_average_is_stored_in_full_and_only_where_there_is_one():
    plain = {"epochs", "batch", "rate", "milestones", "factor", "momentum", "nesterov", "weight_decay"}
    plain |= {"padding", "flip"}
    assert Recipe().as_json().keys() == Recipe(average="none").as_json().keys() == plain
    averages = {
        "swa": {"average": "swa", "average_start": 0.8, "average_learning_rate": 0.05},
        "ema": {"average": "ema", "average_start": 0.0, "average_decay": 0.999},
    }
    for kind, stored in averages.items():
        content = Recipe(average=kind).as_json()
        assert {name: value for name, value in content.items() if name not in plain} == stored
        assert Recipe.from_json(json.loads(json.dumps({**content, "milestones": ()}))).as_json()["average"] == kind
        assert Recipe.from_json(content) == Recipe(average=kind) == Recipe(**stored)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"average": "sw"}, "average must be swa, ema or none, not 'sw' (did you mean 'swa'?)."),
        ({"average": ["swa"]}, "average must be swa, ema or none, not ['swa'] (did you mean 'swa'?)."),
        (
            {"average_start": 0.5},
            "average_start is a setting of average swa or ema, but average is none; leave it out.",
        ),
        (
            {"average": "swa", "average_decay": 0.9},
            "average_decay is a setting of average ema, but average is swa; leave it out.",
        ),
        (
            {"average": "ema", "average_learning_rate": 0.1},
            "average_learning_rate is a setting of average swa, but average is ema; leave it out.",
        ),
        ({"average": "swa", "average_start": 1.5}, "average_start must be a fraction or an epoch, not 1.5."),
        ({"average": "swa", "average_start": -0.1}, "average_start must be a fraction or an epoch, not -0.1."),
        ({"average": "swa", "average_start": 200}, "average_start must be below the number of epochs, 200, not 200."),
        ({"average": "swa", "average_learning_rate": 0.0}, "average_learning_rate must be a positive number, not 0.0."),
        *(
            (
                {"average": "ema", "average_decay": value},
                f"average_decay must be a number between 0 and 1, not {value}.",
            )
            for value in (0.0, 1.0, math.nan)
        ),
    ],
)
def test_an_average_that_cannot_be_is_named(settings, said):
    with pytest.raises(InvalidInput) as refusal:
        Recipe(**settings)
    assert str(refusal.value) == said


@pytest.mark.parametrize("part", ["milestones", "factor"])
def test_drops_of_the_learning_rate_are_refused_beside_swa(part):
    changes = {"milestones": (0.5,), "factor": 0.5}
    with pytest.raises(InvalidInput, match=f"{part} has no effect with average swa"):
        recipe_for("cifar10", "strong", **{part: changes[part]})
    assert getattr(recipe_for("cifar10", average="ema", **{part: changes[part]}), part) == changes[part]


@pytest.mark.parametrize(
    ("epochs", "start", "first"), [(200, 0.6, 120), (5, 0.5, 3), (1, 0.6, 0), (2, 0.9, 1), (10, 9, 9), (10, 1, 1)]
)
def test_there_is_always_an_epoch_to_average(epochs, start, first):
    assert Recipe(epochs=epochs, average="swa", average_start=start).average_from == first


def test_swa_from_the_first_epoch_has_one_learning_rate():
    recipe = Recipe(epochs=3, average="swa", average_start=0, average_learning_rate=0.02)
    assert [recipe.learning_rate_at(epoch) for epoch in range(3)] == [0.02] * 3
