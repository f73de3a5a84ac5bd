"""The page of active learning, in words and in headless Chromium."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from made_up import ENVIRONMENT, run, three_methods

from browsing import CONTRAST, OPEN_FOLDS, chromium_or_skip, show
from rbue.lab.active.curves import as_json, compare
from rbue.lab.active.page import active_page, needed_table, saved_table

NARROW = 390
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def page():
    return active_page(*compare(three_methods()))


def cells(table, row, key):
    column = next(one for one in table.columns if one.key == key)
    return column.value_text(table.cell(table.rows[row], column))


def test_tables_say_what_is_never_reached():
    runs = [
        run([0.5, 0.7], acquire="random"),
        run([0.5, 0.6], acquire="random", seed=1),
        run([0.5, 0.9]),
        run([0.5, 0.9], seed=1),
    ]
    (group,), _ = compare(runs, asked=[0.5, 0.6, 0.7, 0.95])
    needed, saved = needed_table(group), saved_table(group)
    assert [cells(needed, 0, f"at_{level:g}") for level in group.levels] == [
        "at most 20",
        "28 ± 4",
        "in 1 of 2 seeds",
        "not reached",
    ]
    assert cells(saved, 0, "at_0.6") == "+5 ± 4"
    assert cells(saved, 0, "at_0.7") == "over +5"  # 30 labels or more, against 25
    assert cells(saved, 0, "at_0.95") == "both fall short"
    assert cells(saved, 0, "above") == "2 of 2"
    assert cells(saved, 0, "end") == "+6 ± 2"  # 30 labels against 25 for 70 %, against 22.5 for 60 %
    document = as_json([group])[0]
    assert document["curves"][1]["labels_saved"]["0.6"]["mean"] == pytest.approx(5)
    assert document["curves"][1]["labels_saved"]["0.7"]["at_least"] == pytest.approx(5)
    assert document["curves"][0]["labels_saved"] is None
    assert document["environments"] == [ENVIRONMENT]
    assert document["curves"][0]["seconds"] == {"training": 8.0, "measuring": 2.0, "acquiring": 1.0}


def test_a_curve_that_ends_below_random_saves_at_most_so_much():
    runs = [run([0.5, 0.7], acquire="random"), run([0.5, 0.7], acquire="random", seed=1)]
    (group,), _ = compare([*runs, run([0.5, 0.9]), run([0.5, 0.6], seed=1)])
    assert cells(saved_table(group), 0, "end") == "under +2"  # 5 in one seed; in the other all 30 are too few
    (end,) = (one["labels_saved_at_the_end"] for one in as_json([group])[0]["curves"] if one["acquire"] == "bald")
    assert (end["mean"], end["at_most"], end["seeds"]) == (None, pytest.approx(2.5), 2)


def test_the_documentation_is_built_of_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    label_next = importlib.import_module("label_next")
    found = label_next.comparison(three_methods())
    text = "\n".join(label_next.part(found)).replace("\N{NO-BREAK SPACE}", " ")
    assert "`small_cnn` on `digits`: 20 labels at first" in text
    assert "| `mc-droprelu:0.95` | `random` | 78.5 ± 0.7 | 97.9 ± 0.1 | – |" in text
    assert "| `mc-droprelu:0.95` | `bald` | 84.5 ± 0.7 | 98.4 ± 0.1 | +3.0 ± 0.0 | +6 ± 0 | +8 ± 0 |" in text
    assert "labels saved at 75 %" in text  # random does not come to 80 % with every method
    above, below = label_next.picture(found).axes[::3]
    assert [len(one.get_lines()) for one in (above, below)] == [3, 3]  # three curves; two, and the zero of random


def test_there_is_a_page_without_random_and_with_one_seed():
    page = active_page(*compare([run([0.5, 0.7])])).markdown()
    assert "No method has runs of `random`" in page
    assert "With one seed there is no band" in page


def test_words_and_settings(page):
    text = page.markdown()
    for words in (
        "2,000 steps (rounded up to whole epochs)",
        "20 for each image",
        "has 2 of 4 rounds",
        "Seeds: 0, 1.",
        "97.8",
    ):
        assert words in text
    assert "mc-dropout:0.2" in page.latex()


@pytest.mark.slow
def test_in_a_browser(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "active.html"
    path.write_text(page.html(), encoding="utf-8")
    browser = chromium_or_skip(tmp_path_factory.mktemp("chromium"))
    try:
        for width, scheme in ((1200, "light"), (NARROW, "dark")):
            opened = show(browser, path.as_uri(), width, scheme)
            opened.execute_script(OPEN_FOLDS)
            assert opened.get_log("browser") == []
            assert opened.execute_script("return document.documentElement.scrollWidth") <= width
            seen, poor = opened.execute_script(CONTRAST)
            assert seen > 100
            assert not poor
            assert opened.execute_script("return document.querySelectorAll('svg[role=img]').length") == 5 * 3
    finally:
        browser.quit()
