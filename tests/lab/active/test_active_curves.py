"""Learning curves compared: labels needed, labels saved, and what cannot be compared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_up import run, three_methods

from rbue.lab.active.curves import Curve, compare
from rbue.lab.active.page import active_page


def one_comparison(*runs, **settings):
    (comparison,), left_out = compare(runs, **settings)
    assert not left_out
    return comparison


class TestLabelsNeeded:
    @pytest.mark.parametrize(
        ("accuracy", "labels"), [(0.5, 20), (0.6, 25), (0.7, 30), (0.65, 27.5), (0.75, 42.5), (0.91, None)]
    )
    def test_between_rounds_by_a_straight_line(self, accuracy, labels):
        """A fall on the way does not count: 0.75 is first reached after it."""
        assert run([0.5, 0.7, 0.7, 0.9, 0.8]).needed(accuracy) == (labels and pytest.approx(labels))

    def test_the_mean_needs_every_seed(self):
        curve = one_comparison(run([0.5, 0.9]), run([0.5, 0.7], seed=1)).curves[0]
        both, one = curve.needed(0.7), curve.needed(0.8)
        assert (both.mean, both.of, both.complete) == (pytest.approx(27.5), 2, True)
        assert both.std == pytest.approx(5 / math.sqrt(2))
        assert curve.mean_over_rounds().values == pytest.approx((0.7, 0.6))
        assert (one.of, one.complete, one.as_json()["mean"]) == (2, False, None)


class TestAgainstRandom:
    def test_seed_by_seed_at_equal_accuracy(self):
        group = one_comparison(
            run([0.5, 0.7], acquire="random"),
            run([0.6, 0.7], acquire="random", seed=1),
            run([0.5, 0.9]),
            run([0.6, 0.9], seed=1),
            run([0.6, 0.9], seed=2),  # has no random to be compared with
        )
        random, bald = group.curves
        assert [curve.acquire for curve in (random, bald)] == ["random", "bald"]
        saved = bald.saved(random, 0.7)
        assert saved.values == (pytest.approx(30 - 25), pytest.approx(30 - (20 + 10 / 3)))
        assert saved.of == 2
        assert bald.gained(random).values == (pytest.approx(0.1), pytest.approx(0.1))
        assert not bald.saved(random, 0.8).values  # random never gets there
        assert bald.saved_at_least(random, 0.8) == pytest.approx(30 - (27.5 + 20 + 20 / 3) / 2)
        first, last = bald.gained_over_rounds(random)
        assert (first.values, last.values) == ((0, 0), (pytest.approx(0.2), pytest.approx(0.2)))
        assert Curve("longer", "bald", (run([0.5, 0.9, 1.0]),)).gained(random).values == (pytest.approx(0.1),)
        assert group.compared_with(random) is None
        assert group.compared_with(bald) is random

    def test_the_end_is_the_last_round_and_not_the_best(self):
        group = one_comparison(run([0.5, 0.8, 0.7], acquire="random"), run([0.5, 0.9]))
        random, bald = group.curves
        assert bald.saved_in_the_end(random).values == (pytest.approx(20 / 3 - 5),)

    def test_it_is_of_the_same_method(self):
        group = one_comparison(run([0.5], "single", "random"), run([0.6]), run([0.7], acquire="random"))
        assert group.random_of("mc-droprelu:0.95").at(0, "accuracy").mean == 0.7
        assert group.random_of("single").at(0, "accuracy").mean == 0.5


class TestGroups:
    def test_other_settings_are_not_compared(self):
        comparisons, _ = compare([run([0.5]), run([0.5], seed=1), run([0.5], steps=100), run([0.5], acquire="margin")])
        assert [[len(curve.runs) for curve in group.curves] for group in comparisons] == [[1, 2], [1]]

    def test_groups_of_one_network_are_told_apart_by_what_differs(self):
        plain, longer = run([0.5]), run([0.5], steps=100, pool=50)
        recipe = replace(plain.config.run.recipe, augmix=0.5)
        mixed = replace(plain, config=replace(plain.config, run=replace(plain.config.run, recipe=recipe)))
        comparisons, _ = compare([plain, longer, mixed])
        assert [one.title for one in comparisons] == [
            "small_cnn on digits, steps 2000, no pool, no augmix",
            "small_cnn on digits, steps 100, pool 50, no augmix",
            "small_cnn on digits, steps 2000, no pool, augmix 0.5",
        ]
        assert compare([plain])[0][0].title == "small_cnn on digits"
        assert "augmix 0.5; the same recipe for all methods" in active_page(comparisons).markdown()

    def test_a_seed_under_way_is_left_out_and_named(self):
        (group,), left_out = compare([*three_methods(), run([], seed=7)])
        assert [len(curve.runs) for curve in group.curves] == [2] * 9
        assert len(left_out) == 2
        assert "seed7" in left_out[0]
        assert "has no finished round yet" in left_out[0]
        assert "bald-seed2" in left_out[1]
        assert "has 2 of 4 rounds" in left_out[1]

    def test_round_accuracies_from_the_lowest_start_to_what_all_seeds_of_the_best_curve_reach(self):
        assert one_comparison(run([0.41, 0.72]), run([0.41, 0.83], seed=1)).levels == [0.5, 0.6, 0.7]
        assert one_comparison(run([0.41, 0.72])).levels == [0.5, 0.6, 0.7]
        assert one_comparison(run([0.91, 0.96])).levels == [0.92, 0.94, 0.96]
        assert one_comparison(run([0.5, 0.5])).levels == []
        assert one_comparison(run([0.41, 0.72]), asked=[0.55]).levels == [0.55]
