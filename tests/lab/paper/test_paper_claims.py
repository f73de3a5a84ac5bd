"""Verdicts on the paper's own tables, and that they flip when the numbers do."""

from __future__ import annotations

import json
import math
from itertools import product

import pytest
from faked_work import FakeWork, place
from typer.testing import CliRunner

from rbue.lab.cli import app
from rbue.lab.paper.budget import Rule
from rbue.lab.paper.claims import CLAIMS, judge_all
from rbue.lab.paper.experiments import DIVERSE, chosen
from rbue.lab.paper.judging import Cases, Check, Claim, PaperNumbers, all_hold, caveats, compare, every, judge
from rbue.lab.paper.page import claims_section
from rbue.lab.paper.results import Measured
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunFolder

BY_ID = {claim.id: claim for claim in CLAIMS}
RATES = ("mc-droprelu:0.8", "mc-droprelu:0.85", "mc-droprelu:0.9", "mc-droprelu:0.95")


class Changed(PaperNumbers):
    """The paper's numbers, some of them replaced."""

    def __init__(self, *changes):
        self.changes = changes

    def value(self, data, model, method, measure, table=None):
        for names, value in self.changes:
            if names == (data, model, method, measure):
                return value
        return super().value(data, model, method, measure, table)


class Everywhere(PaperNumbers):
    """Numbers from a function of method and measure, the same on all data and networks."""

    severities = (1, 5)

    def __init__(self, function):
        self.function = function

    def value(self, data, model, method, measure, table=None):
        return self.function(method, measure)

    def shift(self, data, model, method, measure, severity):
        return self.function(method, measure) * (1 + severity if measure == "ece" else 1)


@pytest.fixture(scope="module")
def verdicts():
    return {one.claim.id: one for one in judge_all(PaperNumbers())}


def test_ids_are_different_and_readings_stated():
    assert len(BY_ID) == len(CLAIMS) > 40
    assert all(claim.reading and claim.quote and claim.section for claim in CLAIMS)
    sections = {
        claim.section.split(".")[0] + "." + claim.section.split(".")[1][:1]
        for claim in CLAIMS
        if claim.section[0] in "34"
    }
    assert sections == {"3.4", "4.1", "4.2", "4.3", "4.4", "4.5"}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("variance-dropout", "true"),
        ("variance-droprelu", "false"),
        ("epsilon-positive", "true"),
        ("epsilon-incalculable", "false"),
        ("more-variance", "false"),
        ("experiments-prove-diversity", "true"),
        ("on-par-and-cheaper", "true"),
        ("closest-to-ensemble", "false"),
        ("outperforms-dropout", "false"),
        ("outperforms-dropout-weakly", "false"),
        ("best-q-vgg", "false"),
        ("p02-q08-cifar", "false"),
        ("p02-q08-tiny", "true"),
        ("slower-than-dropout", "true"),
        ("sampling-is-slower", "false"),
        ("faster-than-ensemble", "true"),
        ("tiny-four-times-less-time", "false"),
        ("tiny-vgg-slightly-worse", "true"),
        ("jsd-order", "true"),
        ("ours-more-diverse", "false"),
        ("dis-order", "true"),
        ("droprelu-better-than-rrelu", "false"),
        ("more-layers-ece", "true"),
        ("more-layers-diversity", "not in its tables"),
        ("plane-better-than-dropout", "true"),
        ("shift-on-par", "not in its tables"),
    ],
)
def test_verdicts_on_the_papers_tables(verdicts, name, word):
    assert verdicts[name].paper.word == word


@pytest.mark.parametrize(
    ("name", "wrong", "cases"),
    [
        ("more-variance", 6, 28),
        ("svi-larger-data", 0, 6),
        ("svi-larger-model", 2, 4),
        ("slightly-slower-than-dropout", 16, 60),
        ("tiny-similar-to-ensemble", 13, 20),
        ("tiny-better-than-dropout", 5, 40),
        ("tiny-four-times-less-time", 14, 15),
        ("tiny-time-of-a-single", 15, 15),
        ("diversity-competitive", 0, 4),
        ("extra-time-grows", 0, 6),
    ],
)
def test_in_how_many_cases_the_papers_tables_contradict_a_claim(verdicts, name, wrong, cases):
    found = verdicts[name].paper
    assert (found.holds, found.known, found.cases) == (not wrong, cases, cases)
    assert found.why.startswith(f"not in {wrong} of {cases} cases" if wrong else f"in all {cases} cases")


def test_more_diversity_goes_with_a_smaller_error(verdicts):
    assert verdicts["diversity-helps"].paper.word == "true"
    best = (("cifar10", "resnet18", "deep-ensemble:4", "ece"), 0.5), (("cifar10", "resnet18", "svi", "ece"), 0.4)
    most = ("cifar10", "resnet18", "mc-droprelu:0.8", "ece"), 0.3
    assert judge(BY_ID["diversity-helps"], Changed(*best, most)).measured.word == "false"


@pytest.mark.parametrize(
    ("errors", "word", "count"),
    [((7, 6, 5, 4, 3, 2, 2), "true", -19), ((1, 2, 3, 4, 5, 6, 7), "false", 20), ([1] * 7, "false", 0)],
)
def test_pairs_that_tie_in_either_number_say_nothing(errors, word, count):
    """Of 21 pairs the first one ties in Mean-JSD, and perhaps the last one, or all, in ECE."""
    jsd = (1, 1, 2, 3, 4, 5, 6)
    numbers = Everywhere(lambda method, measure: (errors if measure == "ece" else jsd)[DIVERSE.index(method)])
    found = judge(BY_ID["diversity-helps"], numbers).measured
    assert (found.word, found.why.rpartition(": ")[2]) == (word, f"{count} of 21")


@pytest.mark.parametrize(("rate", "word"), [("mc-droprelu:0.8", "true"), ("mc-droprelu:0.95", "false")])
def test_the_most_accurate_rate_may_not_be_the_best_calibrated(rate, word):
    """q=0.95 has the highest accuracy on ResNet-18 and CIFAR-10, q=0.8 the lowest."""
    numbers = Changed((("cifar10", "resnet18", rate, "ece"), 0.01))
    assert judge(BY_ID["plane-ece-not-smallest"], numbers).measured.word == word


def test_rates_that_only_the_figure_has_count_where_they_are_measured():
    """The most accurate of the tables is the best calibrated of them, and q=0.5 is better."""
    own = ("cifar10", "resnet18", "mc-droprelu:0.95", "ece"), 0.01
    half = [(("cifar10", "resnet18", "mc-droprelu:0.5", measure), 0.005) for measure in ("accuracy", "ece")]
    judged = [judge(BY_ID["plane-ece-not-smallest"], Changed(own, *more)).measured.word for more in ([], half)]
    assert judged == ["false", "true"]


def test_a_most_accurate_rate_with_the_smallest_error_may_tie_with_another():
    """Both the q in question and another are the most accurate: which of them comes first must not decide."""
    for calibrated, other in (RATES[:2], RATES[1::-1]):
        accurate = [(("cifar10", "resnet18", rate, "accuracy"), 0.96) for rate in (calibrated, other)]
        errors = [(("cifar10", "resnet18", rate, "ece"), 0.01 if rate == calibrated else 0.03) for rate in RATES]
        assert judge(BY_ID["plane-ece-not-smallest"], Changed(*accurate, *errors)).measured.word == "false"


@pytest.mark.parametrize(("best", "word"), [("mc-droprelu:0.9", "false"), ("mc-droprelu:0.85", "true")])
def test_rates_that_tie_do_not_make_networks_differ(best, word):
    """VGG-13 is as accurate with q=0.8 as with q=0.9, which is the best one for ResNet-18."""

    def value(data, model, method, measure, table=None):
        top = {"vgg13": ("mc-droprelu:0.8", "mc-droprelu:0.9"), "resnet18": ("mc-droprelu:0.9",)}.get(model, (best,))
        return 0.95 if method in top else 0.9

    numbers = PaperNumbers()
    numbers.value = value
    found = judge(BY_ID["q-depends-on-model"], numbers).measured
    assert found.word == word
    assert word == "true" or "vgg13 mc-droprelu:0.8 or mc-droprelu:0.9, resnet18 mc-droprelu:0.9" in found.why


class UnderCorruptions(PaperNumbers):
    """Medians that please the authors, some of them replaced; an ECE that grows with the severity."""

    severities = (1, 5)

    def __init__(self, **changes):
        self.changes = changes

    def shift(self, data, model, method, measure, severity):
        name = method.partition(":")[0].replace("-", "_")
        if f"{name}_{measure}" in self.changes:
            return self.changes[f"{name}_{measure}"]
        kind = 0 if "relu" in name else 1 if "ensemble" in name else 2
        if measure == "accuracy":
            return (0.80, 0.80, 0.70)[kind]
        grown = self.changes.get("growth", 0.01) * severity + (0.02 if data == "tiny-imagenet" else 0)
        return (0.055, 0.05, 0.06 + grown)[kind]


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("shift-on-par", {}, "true"),
        ("shift-on-par", {"mc_rrelu_accuracy": 0.9, "mc_rrelu_ece": 0.01}, "true"),  # better is not behind
        ("shift-on-par", {"mc_rrelu_accuracy": 0.7901, "mc_rrelu_ece": 0.0599}, "true"),
        ("shift-on-par", {"mc_rrelu_accuracy": 0.785}, "false"),
        ("shift-on-par", {"mc_rrelu_ece": 0.065}, "false"),
        ("shift-outperform", {}, "true"),
        ("shift-outperform", {"mc_dropout_accuracy": 0.9}, "false"),
        ("shift-others-higher", {}, "true"),
        ("shift-others-higher", {"single_ece": 0.055}, "false"),
        ("shift-ensemble-lowest", {}, "true"),
        ("shift-ensemble-lowest", {"svi_ece": 0.05}, "false"),
        ("shift-growing-advantage", {}, "true"),
        ("shift-growing-advantage", {"growth": 0.0}, "false"),
        ("shift-gap-more-obvious", {}, "true"),
        ("shift-gap-more-obvious", {"single_ece": 0.2, "svi_ece": 0.2, "mc_dropout_ece": 0.2}, "false"),
        ("shift-exceeds-ensemble", {}, "false"),
        ("shift-exceeds-ensemble", {"mc_droprelu_ece": 0.049}, "true"),
    ],
)
def test_verdicts_under_corruptions(name, changes, word):
    assert judge(BY_ID[name], UnderCorruptions(**changes)).measured.word == word


def test_a_gap_is_a_range_and_no_height():
    numbers = PaperNumbers()
    numbers.shift = lambda data, *_: 0.3 if data == "tiny-imagenet" else 0.1
    assert judge(BY_ID["shift-gap-more-obvious"], numbers).measured.word == "false"


def test_some_rate_may_be_one_that_was_not_measured():
    numbers = Everywhere(lambda method, _: None if method == RATES[-1] else 0.1)
    found = judge(BY_ID["plane-better-than-dropout"], numbers).measured
    assert (found.holds, found.why) == (None, "numbers are missing")


def test_the_counterexample_is_named(verdicts):
    why = verdicts["outperforms-dropout"].paper.why
    assert "accuracy of mc-droprelu:0.8 and mc-dropout:0.2, vgg13 on cifar10: 93.37 % against 93.78 %" in why
    assert "single" not in verdicts["closest-to-ensemble"].paper.why
    assert "densenet121 on cifar10: 94.16 % against 94.20 %" in verdicts["closest-to-ensemble"].paper.why


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("closest-to-ensemble", [(("cifar10", "densenet121", "mc-droprelu:0.95", "accuracy"), 0.9421)]),
        ("p02-q08-tiny", [(("tiny-imagenet", "resnet18", "mc-droprelu:0.8", "ece"), 0.09)]),
        ("jsd-order", [(("cifar10", "resnet18", "mc-droprelu:0.8", "mean_jsd"), 0.021)]),
        ("more-layers-ece", [(("tiny-imagenet", "densenet121", "mc-droprelu:0.8,last", "ece"), 0.04)]),
        ("faster-than-ensemble", [(("cifar100", "vgg13", "deep-ensemble:4", "training_seconds"), 2.9 * 3600)]),
        ("tiny-vgg-slightly-worse", [(("tiny-imagenet", "vgg13", "mc-rrelu", "accuracy"), 0.59)]),
        ("experiments-prove-diversity", [(("cifar10", "resnet18", "mc-dropout:0.2", "max_dis"), 0.05)]),
        ("plane-better-than-dropout", [(("cifar10", "resnet18", "mc-dropout:0.5", "accuracy"), 0.96)]),
        ("on-par-and-cheaper", [(("cifar10", "densenet121", "deep-ensemble:4", "ece"), 0.019)]),
        ("tiny-vgg-generalises-poorly", [(("tiny-imagenet", "resnet18", "single", "accuracy"), 0.60)]),
        ("diversity-competitive", [(("cifar10", "resnet18", "mc-droprelu:0.8", "mean_jsd"), 0.0159)]),
        ("extra-time-grows", [(("tiny-imagenet", "vgg13", "mc-droprelu:0.9", "training_seconds"), 3.5 * 3600)]),
    ],
)
def test_verdicts_flip_with_the_numbers(verdicts, name, changes):
    before = verdicts[name].paper.holds
    assert before is not None
    assert judge(BY_ID[name], Changed(*changes)).measured.holds is (not before)


def test_numbers_that_would_please_the_authors():
    def ideal(method, measure):
        ours = method.startswith(("mc-droprelu", "mc-rrelu"))
        if measure == "accuracy":
            return 0.95 if ours else 0.96 if "ensemble" in method else 0.9
        if measure == "training_seconds":
            return 4.1 if "ensemble" in method else 1.0 if ours else 1.01
        return 0.02 if ours else 0.015 if "ensemble" in method else 0.04

    judged = {one.claim.id: one.measured.word for one in judge_all(Everywhere(ideal))}
    for name in ("outperforms-dropout", "closest-to-ensemble", "shift-outperform", "shift-ensemble-lowest"):
        assert judged[name] == "true"
    assert judged["shift-exceeds-ensemble"] == "false"
    assert judged["shift-growing-advantage"] == "true"


def test_a_counterexample_decides_even_when_numbers_are_missing():
    assert all_hold([Check("a", None), Check("b", False)]).holds is False
    assert all_hold([Check("a", None), Check("b", True)]).holds is None
    assert all_hold([Check("a", True), Check("b", True)]).holds is True
    assert compare("x", 0.05, ">=", 0.05).holds
    assert not compare("x", 0.05, ">", 0.05).holds
    assert compare("x", 0.05, "<=", 0.05).holds
    assert not compare("x", 0.05, "<", 0.05).holds
    assert compare("x", 0.1 + 0.2, "=", 0.3).holds
    assert not compare("x", 0.05, "=", 0.06).holds
    assert compare("x", math.nan, ">", 1.0).holds is None


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ([True, False, None], "false, 2 of 3 cases"),
        ([True], "true, 1 of 1 case"),
        ([True, None, None], "not measured (2 of 3 cases lack numbers)"),
        ([None, None], "not measured"),
    ],
)
def test_a_verdict_says_how_many_cases_have_numbers(checks, words):
    verdict = all_hold(Check("a case", one) for one in checks)
    assert verdict.covered_word == words
    assert str(verdict).startswith(f"{words}: ")


def test_every_verdict_on_the_papers_tables_has_its_cases(verdicts):
    decided = [one.paper for one in verdicts.values() if one.paper.holds is not None]
    assert all(0 < one.known <= one.cases for one in decided)
    assert verdicts["outperforms-dropout"].paper.covered_word == "false, 144 of 144 cases"
    assert verdicts["plane-close-to-ensemble"].paper.covered_word == "true, 8 of 8 cases"


def test_coverage_and_single_runs_stand_with_a_verdict(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(models=("resnet18",), methods=RATES)
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    folder = RunFolder.of(settings.config("cifar10", "resnet18", RATES[0], 0), tmp_path)
    folder.write("results", {key: {**one, "accuracy": 0.99} for key, one in folder.read("results").items()})

    judged = judge(BY_ID["best-q-resnet-densenet"], Measured(tmp_path, settings))
    assert judged.measured.covered_word == "false, 6 of 24 cases"
    content = judged.as_json()["measured"]
    assert (content["verdict"], content["known"], content["cases"], content["fewest_runs"]) == ("false", 6, 24, 1)
    assert judged.as_json()["paper"]["fewest_runs"] is None
    assert str(judged.measured).endswith("(a single run of some method)")
    assert "single run" not in str(judged.paper)
    assert "1 verdict here rests on a single run" in caveats([judged])

    shown = CliRunner().invoke(app, ["paper", "claims", "--runs", str(tmp_path)], env={"COLUMNS": "300"}).stdout
    assert "false, 6 of 24 cases" in shown
    assert shown.count("on a single run of") == shown.count("not in how many it holds") == 1
    page = claims_section([judged], "full").blocks
    text = "".join(block.html("x") for block in page)
    assert text.count("false, 6 of 24 cases") == 3
    assert text.count("rests on a single run of") == 1


def test_several_runs_and_sizes_are_no_single_runs(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(models=("resnet18",), methods=("single", "mc-dropout:0.5", *RATES), seeds=(0, 1))
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    best = judge(BY_ID["best-q-resnet-densenet"], Measured(tmp_path, settings)).measured
    assert (best.known, best.fewest_runs) == (6, 2)
    sizes = judge(BY_ID["no-more-parameters"], Measured(tmp_path, Settings())).measured
    assert sizes.known > 0
    assert sizes.fewest_runs is None
    assert caveats(judge_all(Measured(tmp_path, settings))) == ""
    RunFolder.of(settings.config("cifar10", "resnet18", RATES[0], 1), tmp_path).write("results", {})
    mixed = judge(BY_ID["best-q-resnet-densenet"], Measured(tmp_path, settings)).measured
    assert (mixed.known, mixed.fewest_runs) == (6, 1), "two runs of q=0.95 against one of q=0.8"


def test_a_verdict_on_few_runs_says_whether_their_spread_turns_it(tmp_path, monkeypatch):
    """Two runs a method, 0.002 apart: the 95 % interval of their mean reaches 12.7 standard errors of 0.001."""
    FakeWork(monkeypatch)
    rates = ("mc-droprelu:0.8", "mc-droprelu:0.9")
    settings = Settings(models=("resnet18",), methods=rates, seeds=(0, 1))
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    case = Cases("", rates[0], ">", rates[1], data="cifar10", model="resnet18", measure="accuracy")
    for best, word, turns in ((0.915, "true", False), (0.91, "true", True), (0.89, "false", True)):
        for method, seed in product(rates, (0, 1)):
            folder = RunFolder.of(settings.config("cifar10", "resnet18", method, seed), tmp_path)
            accuracy = (best if method == rates[0] else 0.9) + 0.002 * seed
            folder.write("results", {key: {**one, "accuracy": accuracy} for key, one in folder.read("results").items()})
        judged = judge(Claim("", "", "", "", every(case)), Measured(tmp_path, settings))
        found = judged.measured
        assert (found.word, found.fewest_runs, found.turns, found.as_json()["turns"]) == (word, 2, turns, turns)
        assert str(found).endswith("(turns within the 95 % interval of some mean over runs)") is turns
        assert caveats([judged]).startswith("1 verdict here turns if the mean") is turns
    for sign, limit in ((">", 0.88), ("<", 0.9)):  # a mean of 0.891 turns either by falling or by rising
        case = Cases("", rates[0], sign, limit, data="cifar10", model="resnet18", measure="accuracy")
        assert judge(Claim("", "", "", "", every(case)), Measured(tmp_path, settings)).measured.turns


def test_corruptions_count_their_runs(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(methods=("mc-droprelu:0.9", "deep-ensemble:4"))
    run_experiments(chosen(["fig-shift-tinyimagenet"]), settings, place(tmp_path))
    found = judge(BY_ID["shift-exceeds-ensemble"], Measured(tmp_path, settings)).measured
    assert (found.covered_word, found.fewest_runs) == ("false, 5 of 5 cases", 1)


@pytest.mark.parametrize(("epochs", "shortest"), [(10, (10, 150)), (150, None), (200, None)])
def test_a_verdict_on_shortened_trainings_says_so(tmp_path, monkeypatch, epochs, shortest):
    FakeWork(monkeypatch)
    rule = Rule("it is long", data=("tiny-imagenet",), epochs=epochs)
    settings = Settings(methods=("mc-droprelu:0.9", "deep-ensemble:4"), budget=(rule,))
    run_experiments(chosen(["fig-shift-tinyimagenet", "table3-tinyimagenet"]), settings, place(tmp_path))
    measured = Measured(tmp_path, settings)
    clean = Cases("", "mc-droprelu:0.9", ">", 1.0, data="tiny-imagenet", model="resnet18", measure="accuracy")
    for claim, cases in (
        (BY_ID["shift-exceeds-ensemble"], "5 of 5 cases"),
        (Claim("", "", "", "", every(clean)), "1 of 1 case"),
    ):
        judged = judge(claim, measured)
        assert judged.measured.shortest == shortest == judged.as_json()["measured"]["shortest"]
        length = ", 10 of 150 epochs" if shortest else ""
        assert judged.measured.covered_word == f"false, {cases}{length}"
        assert ("1 verdict here rests on networks with fewer epochs" in caveats([judged])) is bool(shortest)
    assert judge(BY_ID["tiny-counts"], measured).measured.shortest is None
    assert judge(BY_ID["no-more-parameters"], measured).measured.shortest is None


def test_a_repetition_with_some_corruptions_does_not_count_for_the_others(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(methods=("mc-droprelu:0.9", "deep-ensemble:4"), seeds=(0, 1))
    run_experiments(chosen(["fig-shift-tinyimagenet"]), settings, place(tmp_path))
    claim = BY_ID["shift-exceeds-ensemble"]
    assert judge(claim, Measured(tmp_path, settings)).measured.fewest_runs == 2
    folder = RunFolder.of(settings.config("tiny-imagenet", "densenet121", "mc-droprelu:0.9", 1), tmp_path)
    content = folder.read("shift")
    where = {"data": "tiny-imagenet", "model": "densenet121", "measure": "accuracy", "severity": (1,)}
    one_case = Claim("", "", "", "", every(Cases("", "mc-droprelu:0.9", ">", "deep-ensemble:4", **where)))
    assert not judge(one_case, Measured(tmp_path, settings)).measured.turns
    folder.write("shift", {**content, "rows": [{**row, "accuracy": row["accuracy"] / 2} for row in content["rows"]]})
    assert judge(one_case, Measured(tmp_path, settings)).measured.turns, "repetitions far apart"
    folder.write("shift", {**content, "rows": content["rows"][3:]})
    found = judge(claim, Measured(tmp_path, settings)).measured
    assert (found.known, found.fewest_runs) == (5, 1)


def test_another_network_under_corruptions(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    asked = Settings(methods=("mc-droprelu:0.9", "deep-ensemble:4"), models=("resnet18",))
    run_experiments(chosen(["fig-shift-tinyimagenet"]), asked, place(tmp_path))
    claim = BY_ID["shift-exceeds-ensemble"]
    assert judge(claim, Measured(tmp_path, Settings())).measured.holds is None, "the paper's network was not measured"
    found = judge(claim, Measured(tmp_path, asked)).measured
    assert found.covered_word == "false, 5 of 5 cases"
    assert "resnet18, severity 1" in found.why


def test_only_the_networks_asked_for_count(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    run_experiments(chosen(["table1-cifar10"]), Settings(), place(tmp_path))
    known = [
        judge(BY_ID["outperforms-dropout"], Measured(tmp_path, Settings(models=models))).measured.known
        for models in (None, ("resnet18", "vgg13"), ("resnet18",))
    ]
    assert known[0] == 3 * known[2] > 0
    assert known[1] == 2 * known[2]


def test_nothing_measured(tmp_path):
    judged = judge_all(Measured(tmp_path, Settings()))
    told = {one.claim.id for one in judged if one.measured.holds is not None}
    assert told == {
        *("variance-dropout", "variance-droprelu", "epsilon-positive", "epsilon-incalculable", "more-variance"),
        *("cifar-counts", "tiny-counts", "ninety-five"),
    }
    assert all(one.measured.word == "not measured" for one in judged if one.measured.holds is None)
    assert json.loads(json.dumps([one.as_json() for one in judged]))[0]["measured"]["verdict"] == "true"


def test_a_quick_run_cannot_compare_data_sets(tmp_path):
    quick = Measured(tmp_path, Settings(quick=True))
    said = {
        (name, numbers is quick): "one data set" in judge(BY_ID[name], numbers).measured.why
        for name in ("svi-larger-data", "svi-larger-model")
        for numbers in (quick, Measured(tmp_path, Settings()))
    }
    assert [case for case, told in said.items() if told] == [("svi-larger-data", True)]
