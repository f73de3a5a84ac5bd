"""The page of the paper: every id, both numbers, what is missing, where it comes from; and in headless Chromium."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from faked_work import FakeWork, place

from browsing import CONTRAST, OPEN_FOLDS, chromium_or_skip, show
from rbue.files import read_json, write_json
from rbue.lab.paper import illustrations
from rbue.lab.paper.claims import CLAIMS
from rbue.lab.paper.drawings import FROM_RUNS, _curve, _off_diagonal
from rbue.lab.paper.experiments import EXPERIMENTS, IDS, chosen, get
from rbue.lab.paper.gathering import gather
from rbue.lab.paper.illustrations import FROM_ILLUSTRATIONS
from rbue.lab.paper.page import HTML, LATEX, page_files
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunFolder

QUICK = Settings(quick=True)
NO_EVIDENCE = "these numbers are no evidence"


# Numbers on coloured fields are black or white by a rule of their own, tested with the figure.
FORGET_HEAT_MAPS = """
let removed = 0;
for (const text of document.querySelectorAll(":is([aria-labelledby=fig-jsd], [aria-labelledby=fig-dis]) figure text")) {
  if (/^[0-9]+[.][0-9]+$/.test(text.textContent.trim())) { text.remove(); removed += 1; }
}
return removed;
"""


class Outline(HTMLParser):
    """The parts of a page that the tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.requests, self.drawings = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        for name in ("src", "href", "xlink:href"):
            if not found.get(name, "#").startswith(("#", "data:")):
                self.requests.append(found[name])
        if tag == "svg":
            self.drawings.append(found.get("aria-label", ""))


def pretend(root, settings, experiments=EXPERIMENTS):
    """Runs without training, and the data of the figures among the experiments; no data set is read for the others."""
    with pytest.MonkeyPatch.context() as patch:
        FakeWork(patch)
        run_experiments(experiments, settings, place(root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(illustrations, "SIMULATIONS", 500)
        for one in experiments:
            if one.id in ("fig-activations", "fig-network", "fig-shot-noise", "variance"):
                illustrations.write_illustration(one, settings, root, torch.device("cpu"))
    samples = np.random.default_rng(0).dirichlet(np.ones(10), 10)
    framework = get("fig-framework")
    content = {
        "run": settings.config("cifar10", "resnet18", "mc-droprelu:0.9", 0).as_json(),
        "image_number": 3,
        "image": {"shape": [16, 16, 3], "base64": base64.b64encode(bytes([90] * 768)).decode()},
        "truth": "7",
        "classes": [str(number) for number in range(10)],
        "samples": samples.tolist(),
        "mean": samples.mean(0).tolist(),
        "entropy": 1.5,
    }
    write_json(illustrations.illustration_file(framework, settings, root), content)
    return root


def page_of(root, settings, experiments=EXPERIMENTS, form=HTML):
    """The page without its figures, which take their time; those of all kinds are drawn once below."""
    with mock.patch("rbue.lab.report.page.inline_svg", return_value="<svg></svg>"):
        return page_files(settings, root)([gather(one, settings, root) for one in experiments])[form].decode()


def section_of(text, name):
    return text.partition(f'<section aria-labelledby="{name}">')[2].partition("</section>")[0]


def whole_page(folder, experiments):
    """The files of a report that lacks nothing, and the folder of its runs."""
    root = pretend(folder / "runs", QUICK, experiments)
    gathered = [gather(one, QUICK, root) for one in experiments]
    assert {one.experiment.id: one.missing for one in gathered if one.missing} == {}
    return page_files(QUICK, root)(gathered), root


@pytest.fixture(scope="module")
def quick_files(tmp_path_factory):
    return whole_page(tmp_path_factory.mktemp("paper"), EXPERIMENTS)


DRAWN_ALIKE = (
    "table2-cifar100",
    "table3-tinyimagenet",
    "position-tinyimagenet",
    "position-cifar10",
    "fig-shift-tinyimagenet",
    "fig-shift-tinyimagenet-ece",
    "fig-dis",
)
"""Experiments whose figures are those of others with other numbers; drawing takes most of the time."""


def test_one_page_has_every_kind_of_experiment(tmp_path):
    some = [replace(one, drawings=one.drawings[:1]) for one in EXPERIMENTS if one.id not in DRAWN_ALIKE]
    assert {drawing.kind for one in some for drawing in one.drawings} == {*FROM_RUNS, *FROM_ILLUSTRATIONS}
    # 4 of samples, 1 of positions, 5 without runs, 1 and 1 under corruptions, 1 of diversity, 1 plane
    assert_whole(*whole_page(tmp_path, some), some, drawings=14, notices=12)


@pytest.mark.slow
def test_everything_on_one_page(quick_files):
    # 10 of samples, 4 of positions, 5 without runs, 8 and 4 under corruptions, 2 of diversity, 1 plane
    assert_whole(*quick_files, EXPERIMENTS, drawings=34, notices=16)


def assert_whole(files, root, experiments, *, drawings, notices):
    text = files[HTML].decode()
    outline = Outline(text)
    assert {one.id for one in experiments} <= set(outline.ids)
    assert len(set(outline.ids)) == len(outline.ids)
    contents = re.findall(r'href="#[^"]*">([^<]*)<', re.search("<nav.*?</nav>", text).group())
    assert len(set(contents)) == len(contents) > len(experiments)
    assert outline.requests == []
    assert {link for link in outline.links if link[1:] not in outline.ids} == set()
    assert sum(link.startswith("#run-") for link in outline.links) > 90
    assert len(outline.drawings) == drawings
    assert all(len(words) > 20 for words in outline.drawings)
    assert text.count(NO_EVIDENCE) >= notices
    assert str(root) not in text
    assert "This report is not complete" not in text
    assert len(text) < 6_000_000
    for words in ("paper 93.85", "c0ffee1", "Fake CPU", "2 samples", "NLL", "Brier"):
        assert words in text
    assert all(text.count(f"<code>{claim.id}</code>") == 1 for claim in CLAIMS)

    latex = files[LATEX].decode()
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == latex.count(r"\begin{tabular}") > 15
    assert r"{\footnotesize (paper 93.85~\%," in latex
    assert NO_EVIDENCE in latex
    assert "svg" not in latex
    assert latex.isascii()
    needs = latex.splitlines()[0]
    assert all(package in needs for package in ("booktabs", "float", "graphicx"))
    assert r"\_\{" not in latex


def test_several_seeds_the_paper_and_the_difference(tmp_path):
    settings = Settings(models=("vgg13",), methods=("single", "deep-ensemble:4"), seeds=(0, 1))
    pretend(tmp_path, settings, chosen(["table1-cifar10"]))
    text = page_of(tmp_path, settings, chosen(["table1-cifar10"]))
    assert re.search(r"90\.50\s%\s± 0\.71\s%<span class=\"paper\">paper 93\.85\s% <span>−3\.35</span>", text)
    assert "4.00 ×" in text
    assert "paper 1:24:00" in text
    assert '<span class="paper">paper 0.05 <span>' in text, "the paper's own digits"
    assert "Mean ± standard deviation. (vgg13 on cifar10, 100 samples, mean of 2 repetitions.)" in text
    assert NO_EVIDENCE not in text
    assert "cifar10 (1,000 test images); 200 epochs, batch 128" in text


def test_only_what_was_measured_is_named(tmp_path):
    done = Settings(models=("resnet18",), methods=("single", "mc-rrelu"))
    wanted = chosen(["table1-cifar10"])
    pretend(tmp_path, done, wanted)
    text = page_of(tmp_path, Settings(), wanted)
    assert "Measured with resnet18 on cifar10 (1,000 test images); " in text
    assert "members of an ensemble" not in text
    assert "(resnet18 on cifar10, 100 samples, seed 0.)" in text
    assert "(vgg13 on cifar10" not in text, "a network without a number"
    assert "one run a method" in page_of(tmp_path, Settings(seeds=(0, 1)), wanted)
    again = replace(done, methods=("single",), seeds=(0, 1))
    pretend(tmp_path, again, wanted)
    assert "mean of 1 to 2 repetitions" in page_of(tmp_path, Settings(seeds=(0, 1)), wanted)


def test_samples_are_not_compared_with_themselves():
    assert _off_diagonal([[0.0, 0.2], [0.4, 0.0]]) == pytest.approx(0.3)


def test_a_curve_of_samples_is_the_mean_over_repetitions():
    runs = [
        {"samples": 4, "accuracy": most, "ece": 0.1, "by_samples": [{"samples": 1, "accuracy": 0.5, "ece": most}]}
        for most in (0.7, 0.9)
    ]
    found = _curve(SimpleNamespace(results=lambda *_: runs), "vgg13", "svi")
    once = {"accuracy": 0.5, "ece": pytest.approx(0.8)}
    assert found == {1: once, 4: {"accuracy": pytest.approx(0.8), "ece": pytest.approx(0.1)}}


def test_training_times_have_no_best_and_no_difference(tmp_path):
    settings = Settings(models=("vgg13",), methods=("single", "mc-rrelu"))
    wanted = chosen(["table1-cifar10"])
    pretend(tmp_path, settings, wanted)
    for name, seconds in (("single", 50.0), ("mc-rrelu", 70.0)):
        folder = RunFolder.of(settings.config("cifar10", "vgg13", name, 0), tmp_path)
        ((key, result),) = folder.read("results").items()
        folder.write("results", {key: {**result, "training_seconds": seconds}})
        write_json(folder.path / "environment.json", {"gpu": "NVIDIA H200"})
        folder.write("training", {**folder.read("training"), "device": "cuda", "side_by_side": 2, "seconds": seconds})
    text = page_of(tmp_path, settings, wanted)
    assert '<td data-number="50.0">50.0\u00a0s<span class="paper">paper 1:24:00</span></td>' in text
    note = "Training times count compiling and saving, on NVIDIA H200; the paper"
    assert text.count(note) == 1
    assert "trained side by side (here 2 at a time) share the time" in text
    latex = page_of(tmp_path, settings, wanted, LATEX)
    assert note in latex
    assert r"\textbf{50.0" not in latex


def test_corrupted_images_are_named_with_their_own_samples_and_origin(tmp_path):
    settings = Settings(methods=("mc-rrelu",))
    wanted = chosen(["fig-shift-cifar10"])
    pretend(tmp_path, settings, wanted)
    text = page_of(tmp_path, settings, wanted)
    assert "(densenet121 on cifar10, 20 samples, seed 0.)" in text
    assert "100 samples for each image (20 for each corrupted one)" in text
    assert "Corrupted test images: one row a run" in text


def test_temperature_scaling_stands_apart(tmp_path):
    settings = Settings(models=("vgg13",), methods=("single", "mc-rrelu"))
    wanted = chosen(["table1-cifar10"])
    pretend(tmp_path, settings, wanted)
    text = page_of(tmp_path, settings, wanted)
    papers, _, rest = text.partition('id="temperature"')
    section, _, later = rest.partition('id="claims"')
    assert "two-fold cross-fit on the test set; not in the paper" in section
    assert "0.0123" in section
    assert section.count("1.25, 1.50") == 2
    assert section.count('href="#run-') == 2
    assert "0.0123" not in papers
    assert "paper 9" not in section
    assert "Fitting CPU" in later
    latex = page_of(tmp_path, settings, wanted, LATEX)
    assert "0.0123" in latex

    several = replace(settings, methods=("single",), seeds=(0, 1))
    pretend(tmp_path, several, wanted)
    section = page_of(tmp_path, several, wanted).partition('id="temperature"')[2].partition('id="claims"')[0]
    assert "1.25 to 2.50" in section
    assert re.search(r"0\.0997\s± 0\.0014", section)

    for path in tmp_path.rglob("calibration.json"):
        path.unlink()
    assert 'id="temperature"' not in page_of(tmp_path, several, wanted)


def test_partial_results_say_what_is_missing(tmp_path):
    settings = Settings(models=("vgg13",), methods=("single",))
    pretend(tmp_path, settings, chosen(["table1-cifar10"]))
    asked = Settings(seeds=(0, 1, 2))
    wanted = chosen(["table1-cifar10", "fig-q-sweep"])
    text = page_of(tmp_path, asked, wanted)
    assert "vgg13 single: 2 of 3 repetitions; vgg13 mc-dropout:0.2; " in text
    assert f"not run; <code>rbue paper run fig-q-sweep --seeds 0,1,2 --runs {tmp_path}</code></li>" in text
    assert 'id="fig-q-sweep"' not in text
    assert section_of(text, "table1-cifar10").count("<tr>") == 2, "a heading and the one row with numbers"
    assert "data-missing" not in section_of(text, "table1-cifar10")
    other = page_of(tmp_path, Settings(models=("vgg13",)), chosen(["fig-shift-cifar10"]))
    assert f"<code>rbue paper run fig-shift-cifar10 --models vgg13 --runs {tmp_path}</code></li>" in other
    assert "0 of 2 tables and figures are complete." in text
    alone = page_of(tmp_path, Settings(models=("vgg13",)), chosen(["table1-cifar10"]))
    assert "0 of 1 tables and figures are complete for vgg13 alone." in alone
    assert "paper 95.32" not in text, "the paper's value of a row that was not run"


def test_the_command_that_continues_asks_for_the_same_runs(tmp_path):
    settings = Settings(quick=True, seeds=(2,), epochs=7, samples=5)
    text = page_of(tmp_path, settings, chosen(["table1-cifar10"]))
    assert f"--quick --seeds 2, --epochs 7 --samples 5 --runs {tmp_path}" in text


def test_corruptions_that_are_missing_are_counted(tmp_path):
    settings = Settings(methods=("single",), shift=True)
    wanted = chosen(["fig-shift-cifar10"])
    pretend(tmp_path, settings, wanted)
    assert gather(wanted[0], settings, tmp_path).missing == ()
    (path,) = tmp_path.rglob("shift.json")
    content = read_json(path)
    RunFolder(path.parent).write("shift", {**content, "rows": content["rows"][:1]})
    assert gather(wanted[0], settings, tmp_path).missing == ("densenet121 single under corruptions: 94 of 95",)
    assert "94 of 95" in page_of(tmp_path, settings, wanted)


def test_no_results_at_all(tmp_path):
    text = page_of(tmp_path, Settings())
    assert not set(IDS) & set(Outline(text).ids)
    assert all(f"<code>rbue paper run {name} --runs {tmp_path}</code>" in text for name in IDS)
    assert "data-missing" not in text
    assert "Nothing has been measured with these settings yet; <code>rbue paper run</code> does it." in text
    assert 'id="origin"' not in text


def test_without_matplotlib_the_tables_remain(tmp_path, monkeypatch):
    pretend(tmp_path, QUICK, chosen(["fig-q-sweep"]))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = page_of(tmp_path, QUICK, chosen(["fig-q-sweep"]))
    assert "figures need matplotlib" in text


def test_every_kind_of_drawing_is_known():
    kinds = {drawing.kind for one in EXPERIMENTS for drawing in one.drawings}
    assert kinds == {*FROM_RUNS, *FROM_ILLUSTRATIONS}


@pytest.mark.slow  # what the page holds has quick tests, and pages of runs are shown in a browser there
def test_in_a_browser(quick_files, tmp_path):
    from selenium.webdriver.common.by import By

    path = tmp_path / HTML
    path.write_bytes(quick_files[0][HTML])
    browser = chromium_or_skip(tmp_path / "chromium")
    try:
        page = show(browser, path.as_uri())
        page.execute_script(OPEN_FOLDS)
        assert page.get_log("browser") == []
        drawings = page.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(s => [s.getAttribute('aria-label'),"
            " s.getBBox().width, s.querySelectorAll('path, use, image').length, s.clientWidth])"
        )
        assert len(drawings) == 34
        assert all(alt.strip() and box > 50 and shapes > 10 and width > 100 for alt, box, shapes, width in drawings)
        assert page.execute_script("return [...document.images].every(i => i.alt.trim() && i.naturalWidth)")

        table = page.find_element(By.CSS_SELECTOR, "[aria-labelledby=table1-cifar10] table")
        heading = next(one for one in table.find_elements(By.CSS_SELECTOR, "th[scope=col]") if "ECE" in one.text)
        heading.find_element(By.TAG_NAME, "button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        link = table.find_element(By.CSS_SELECTOR, "tbody th a")
        target = link.get_attribute("href").rpartition("#")[2]
        link.click()
        assert page.find_element(By.ID, target).is_displayed()

        for scheme in ("light", "dark"):
            page = show(browser, path.as_uri(), scheme=scheme)
            assert page.execute_script(OPEN_FOLDS + FORGET_HEAT_MAPS) > 20
            seen, poor = page.execute_script(CONTRAST)
            assert seen > 500
            assert poor == []
        page = show(browser, path.as_uri(), width=390)
        page.execute_script(OPEN_FOLDS)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.quit()
