"""What a folder of runs aims at, and that every command keeps to it and says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from faked_work import FakeWork, place

from rbue.errors import RbueError
from rbue.lab.paper.budget import Rule, budget_file, read_budget
from rbue.lab.paper.experiments import chosen, get
from rbue.lab.paper.gathering import gather
from rbue.lab.paper.page import page_files
from rbue.lab.paper.planning import jobs_for
from rbue.lab.paper.reporting import markdown
from rbue.lab.paper.results import Measured, as_measured
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings, last_settings
from rbue.lab.runs.folders import RunFolder

SHORT = Rule("an epoch takes eight of CIFAR-10's", data=("tiny-imagenet",), epochs=20, shift_samples=5)
ONE_NETWORK = Rule("there was no time", models=("vgg13", "densenet121"), seeds=0)
SOME = Rule("they are the ones compared", models=("resnet18",), methods=("single", "deep-ensemble:4"), seeds=3)
FEW = Settings(methods=("single", "svi"), budget=(SHORT, ONE_NETWORK, SOME))


def written(root, *rules):
    path = budget_file(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rules))
    return path


def test_rules_are_read_and_the_later_one_counts(tmp_path):
    written(
        tmp_path,
        {"why": "of time", "data": ["cifar10"], "seeds": 2, "epochs": 10},
        {"why": "of memory", "methods": ["svi:1"], "seeds": 0},
    )
    settings = Settings(budget=read_budget(tmp_path))
    assert settings.repetitions("cifar10", "vgg13", "single") == (0, 1)
    assert settings.repetitions("cifar10", "vgg13", "svi") == ()
    assert settings.repetitions("cifar100", "vgg13", "single") == (0,)
    assert settings.config("cifar10", "vgg13", "svi", 0).recipe.epochs == 10
    assert settings.config("cifar100", "vgg13", "svi", 0).recipe.epochs == 200


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"seeds": 1}, "rule 1: why must be given"),
        ({"why": " ", "seeds": 1}, "rule 1: why must be given"),
        ({"why": "of time"}, "rule 1 says nothing; give epochs, seeds, shift_samples, or remove it"),
        ({"why": "of time", "epoch": 3}, r"there is no 'epoch' \(did you mean 'epochs'\?\)"),
        ({"why": "of time", "epochs": 0}, "epochs must be a whole number from 1 on, not 0"),
        ({"why": "of time", "seeds": True}, "seeds must be a whole number from 0 on, not True"),
        ({"why": "of time", "seeds": -1}, "seeds must be a whole number from 0 on, not -1"),
        ({"why": "of time", "seeds": 1, "data": "cifar10"}, "data must be a list of names, not 'cifar10'"),
        ({"why": "of time", "seeds": 1, "data": []}, r"data must be a list of names, not \[\]"),
        ({"why": "of time", "seeds": 1, "data": ["cifr10"]}, r"has 'cifr10' among its data \(did you mean 'cifar10'\?"),
        ({"why": "of time", "seeds": 1, "models": ["vgg16"]}, "has 'vgg16' among its models"),
        ({"why": "of time", "seeds": 1, "methods": ["svj"]}, "svj"),
        ([], r"rule 1 must be an object with why, data, .*, not \[\]"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(tmp_path, rule, sentence):
    written(tmp_path, rule)
    with pytest.raises(RbueError, match=sentence):
        read_budget(tmp_path)


def test_files_that_are_no_budget(tmp_path):
    assert read_budget(tmp_path) == ()
    written(tmp_path).write_text("{}")
    with pytest.raises(RbueError, match=r"must be a list of rules, not \{\}"):
        read_budget(tmp_path)
    written(tmp_path).write_text("[")
    with pytest.raises(RbueError, match="mend it, or remove it to have no budget"):
        read_budget(tmp_path)


def test_what_was_asked_for_comes_before_the_budget(tmp_path):
    asked = replace(FEW, seeds=(5,), epochs=7)
    assert asked.repetitions("tiny-imagenet", "vgg13", "single") == (5,)
    assert asked.config("tiny-imagenet", "vgg13", "single", 5).recipe.epochs == 7
    assert gather(get("table3-tinyimagenet"), asked, tmp_path).stated == ()


def test_quick_runs_have_a_budget_of_their_own():
    quick = replace(FEW, quick=True)
    assert quick.repetitions("tiny-imagenet", "vgg13", "single") == (0,)
    assert quick.config("tiny-imagenet", "vgg13", "single", 0).recipe.epochs == 3


def test_it_is_kept_apart_from_the_settings(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    run_experiments([], FEW, place(tmp_path))
    assert "budget" not in json.loads((tmp_path / "paper" / "settings.json").read_text())
    assert last_settings(tmp_path, Settings(budget=(SHORT,))).budget == (SHORT,)


@pytest.fixture
def done(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    run_experiments(chosen(["table3-tinyimagenet", "fig-shift-tinyimagenet"]), FEW, place(tmp_path))
    return tmp_path, work


def test_only_what_it_has_is_run(done):
    _, work = done
    assert {(one.model, one.recipe.epochs) for one in work.trained} == {("resnet18", 20)}
    assert sorted((one.method, one.seed) for one in work.measured) == [
        ("single", 0),
        ("single", 1),
        ("single", 2),
        ("svi", 0),
    ]


def test_corrupted_images_are_for_the_first_repetition(done):
    root, work = done
    figure = get("fig-shift-tinyimagenet")
    resnet = replace(FEW, models=("resnet18",))
    run_experiments([figure], resnet, place(root))
    assert sorted((one.method, one.seed) for one in work.shifted) == [("single", 0), ("svi", 0)]
    svi = resnet.config("tiny-imagenet", "resnet18", "svi", 0)
    assert {row["samples_asked"] for row in Measured(root, resnet).corrupted_rows(svi)} == {5}
    found = gather(figure, resnet, root)
    assert found.missing == ()
    assert found.stated[-1].startswith("5 samples of each corrupted image for all rows, because an epoch takes eight")
    fewer = gather(figure, replace(resnet, samples=3), root)
    assert fewer.stated[-1].startswith("3 samples of each")
    runs = [resnet.config("tiny-imagenet", "resnet18", "single", seed) for seed in (0, 1)]
    first, second = (RunFolder.of(run, root) for run in runs)
    content = first.read("shift")
    second.write("shift", {**content, "rows": [{**row, "ece": 1.0} for row in content["rows"]]})
    assert gather(figure, resnet, root) == found
    page = page_files(resnet, root)([found])["report.html"].decode()
    assert "5 samples, seed 0.)" in page
    assert "repetitions.)" not in page


def test_an_experiment_that_shows_one_run_has_more_only_if_they_are_typed():
    wanted = [one.repetitions_for(get("fig-jsd"), "resnet18", "single") for one in (FEW, replace(FEW, seeds=(2, 3)))]
    assert wanted == [(0,), (2, 3)]


def test_a_table_says_what_its_budget_is(done):
    root, _ = done
    found = gather(get("table3-tinyimagenet"), FEW, root)
    assert found.missing == ()
    assert found.left_out == ("vgg13 single", "vgg13 svi", "densenet121 single", "densenet121 svi")
    assert found.stated == (
        "Left out: vgg13; densenet121, because there was no time.",
        "3 repetitions of resnet18 with single, because they are the ones compared.",
        "20 epochs for resnet18, because an epoch takes eight of CIFAR-10's.",
    )
    assert not found.is_complete
    assert found.state == f"incomplete, by its budget. {' '.join(found.stated)}"
    assert all(f"- {one}" in markdown(found) for one in found.stated)
    page = page_files(FEW, root)([found])["report.html"].decode()
    assert "0 of 1 tables and figures are complete" in page
    assert "The budget of these runs: Left out: vgg13; densenet121, because there was no time." in page
    assert "20 epochs in place of 150" in page


def test_one_that_is_left_out_whole_is_a_line(tmp_path):
    nothing = Settings(budget=(Rule("there was no time", seeds=0),))
    found = gather(get("table6-position"), nothing, tmp_path)
    assert (found.missing, len(found.left_out)) == ((), 3)
    assert markdown(found) == f"Table 6 ({found.experiment.title}): incomplete, by its budget. {found.stated[0]}\n"
    assert found.stated == ("Left out: all rows, because there was no time.",)


def test_what_is_left_out_and_was_measured_is_shown(done):
    root, _ = done
    table = get("table3-tinyimagenet")
    stricter = replace(FEW, budget=(*FEW.budget, Rule("it takes long", methods=("svi",), seeds=0)))
    found = gather(table, stricter, root)
    assert [row.cell for row in found.rows] == [("resnet18", "single"), ("resnet18", "svi")]
    assert "resnet18 svi" not in found.left_out
    assert Measured(root, stricter).value("tiny-imagenet", "resnet18", "svi", "accuracy") == pytest.approx(0.9)


def test_any_network_is_the_one_with_most_of_the_rows(done):
    """The figure's own network is DenseNet-121, of which the budget has little, or nothing."""
    root, _ = done
    figure, own = get("fig-shift-tinyimagenet"), get("fig-shift-tinyimagenet").grid.models
    assert own == ("densenet121",)
    for rule in (Rule("of time", models=own, seeds=0), Rule("of time", models=own, methods=("svi",), seeds=0)):
        settings = replace(FEW, budget=(rule,))
        assert as_measured(figure, settings, root).models == ("resnet18",)
        assert {job.config.model for job in jobs_for([figure], settings, root)} == {"resnet18"}
    everything = replace(FEW, budget=())
    assert as_measured(figure, everything, root).models == own
    run_experiments([figure], replace(FEW, models=("resnet18",)), place(root))
    assert as_measured(figure, FEW, root).models == ("resnet18",)


def test_only_the_first_repetition_is_corrupted_unless_others_are_typed(tmp_path):
    shifted = replace(FEW, shift=True)
    jobs = jobs_for([get("table3-tinyimagenet")], shifted, tmp_path)
    assert sorted(job.config.seed for job in jobs if job.config.method == "single") == [0, 1, 2]
    assert {job.config.seed for job in jobs if "shift" in job.measures} == {0}
    typed = jobs_for([get("table3-tinyimagenet")], replace(shifted, seeds=(0, 1)), tmp_path)
    assert {job.config.seed for job in typed if "shift" in job.measures} == {0, 1}


def test_figures_of_one_run_want_one(tmp_path):
    three = Settings(budget=(Rule("of chance", seeds=3),))
    for name, count in (("fig-jsd", 1), ("fig-framework", 1), ("table4-jsd", 3)):
        configs = [one for one in three.configs(get(name)) if one.method in ("mc-droprelu:0.9", "svi")]
        assert len(configs) == count, name


def test_a_command_does_not_switch_it_off_for_later_ones(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    run_experiments([], replace(FEW, seeds=(0, 1), epochs=3, samples=7), place(tmp_path))
    asked = Settings(budget=FEW.budget)
    last = last_settings(tmp_path, asked)
    assert (last.seeds, last.epochs, last.samples) == (None, None, 7)
    assert last_settings(tmp_path, Settings()).seeds == (0, 1)
