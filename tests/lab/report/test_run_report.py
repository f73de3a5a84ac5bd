"""Reports on run folders: numbers, seeds, the paper, gaps, and the very samples that were measured."""

import json

import numpy as np
import pytest
import torch
from tiny_reports import config

from rbue.errors import RbueError, RbueWarning
from rbue.lab import data
from rbue.lab.report.run_answers import Answers, certain_cards, drawn_again
from rbue.lab.report.run_answers import TestImages as Images
from rbue.lab.report.run_records import Record, group_records, missing, read_records, recipe_words, without_copies
from rbue.lab.report.run_report import more_samples_blocks, report_on
from rbue.lab.report.run_tables import MEASURES, comparison_table
from rbue.lab.runs.folders import RunConfig, RunFolder, find_runs
from rbue.lab.training import recipe_for

CPU = torch.device("cpu")


def records_of(root):
    return read_records(find_runs(root))


def folder(root, method, seed=0):
    return RunFolder.of(config(method, seed), root)


def values(table, key):
    column = next(column for column in table.columns if column.key == key)
    return {table.cell(row, table.columns[0]).value: table.cell(row, column) for row in table.rows}


def test_seeds_become_a_mean_and_a_deviation(made_runs):
    (group,) = group_records(records_of(made_runs))
    assert list(group.methods) == ["single", "deep-ensemble:2", "mc-droprelu:0.9"]
    table = comparison_table(group)
    measured = [list(folder(made_runs, "mc-droprelu:0.9", seed).read("results").values())[-1] for seed in (0, 1)]
    cell = values(table, "ece")["mc-droprelu:0.9"]
    assert cell.value == pytest.approx(np.mean([one["ece"] for one in measured]))
    assert cell.std == pytest.approx(np.std([one["ece"] for one in measured], ddof=1))
    assert values(table, "seeds")["mc-droprelu:0.9"].value == 2
    assert values(table, "parameters")["mc-droprelu:0.9"].std is None
    single = values(table, "mean_jsd")["single"]
    assert single.value is None
    assert "one sample" in single.why


def test_more_accuracy_and_diversity_are_better_and_less_of_all_else():
    better = {column.key: column.better for column in MEASURES if column.better is not None}
    assert {key for key, end in better.items() if end == "higher"} == {"accuracy", "mean_jsd", "mean_dis"}
    less = {"ece", "nll", "brier", "aurc", "parameters", "training_seconds"}
    assert {key for key, end in better.items() if end == "lower"} == less


def test_the_papers_numbers_stand_beside_ours(made_runs):
    asked = []

    def paper_value(data, model, method, measure):
        asked.append((data, model, method, measure))
        return 0.9 if measure == "accuracy" else None

    narrow = group_records(records_of(made_runs))
    comparison_table(narrow[0], paper_value)
    assert asked == []  # a narrower network is not the paper's
    wide = [_widened(record) for record in records_of(made_runs) if record.results]
    table = comparison_table(group_records(wide)[0], paper_value)
    assert ("digits", "small_cnn", "mc-droprelu:0.9", "accuracy") in asked
    cell = values(table, "accuracy")["single"]
    assert cell.difference == pytest.approx(cell.value - 0.9)
    assert values(table, "ece")["single"].paper is None


def _widened(record):
    from dataclasses import replace

    return replace(record, config=replace(record.config, width=1.0))


def test_what_is_missing_is_named_but_members_are_not(made_runs):
    said = missing(records_of(made_runs))
    assert len(said) == 2
    assert any("mc-rrelu" in one and "trained but not measured" in one and "rbue evaluate" in one for one in said)
    assert any("svi" in one and "after 0 of 1 epochs" in one for one in said)


def test_the_whole_report(made_runs, run_report):
    report = run_report
    html = report.page.html()
    titles = [section.title for section in report.page.sections]
    assert titles == [
        "What is missing",
        "Comparison",
        "What more samples bring",
        "Calibration",
        "Answering only what is sure",
        "Right and wrong answers",
        "Most and least certain images",
        "Where each number comes from",
    ]
    assert str(made_runs) not in html
    accuracy = list(folder(made_runs, "single").read("results").values())[-1]["accuracy"]
    assert f"{100 * accuracy:.2f}\u00a0%" in html
    for record in records_of(made_runs):
        if record.results:
            assert f'id="{record.anchor}"' in html
    assert html.count('<li class="card">') == 3 * 8
    assert len(report.runs.rows) == 4
    assert len(report.missing) == 2


def test_the_same_runs_give_the_same_page(made_runs):
    chosen = [record for record in records_of(made_runs) if record.config.method == "single" and record.results]
    first, second = (report_on(chosen, device=CPU).page.html() for _ in range(2))
    assert first == second


def test_cards_show_the_very_samples_that_were_measured(made_runs):
    for record in records_of(made_runs):
        if record.results and record.settings.method != "single":
            answers = Images().answers(record)
            chosen = np.array([7, 300, 12])
            samples = drawn_again(answers, chosen, CPU)
            assert samples.shape == (record.result["samples"], 3, 10)
            assert np.abs(samples.mean(0) - answers.probs[chosen]).max() < 2e-3  # stored with three digits


def test_stored_answers_agree_with_the_measurements(made_runs):
    for record in records_of(made_runs):
        if record.results:
            answers = Images().answers(record)
            assert answers.correct.mean() == pytest.approx(record.result["accuracy"], abs=0.006)
            assert answers.entropy.mean() == pytest.approx(record.result["entropy"], abs=1e-3)
            assert float(answers.risk_coverage().risk.mean()) == pytest.approx(record.result["aurc"], abs=8e-3)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("probs.npy", None, "is not there"),
        ("probs.npy", b"no array", "cannot be read"),
        ("config.json", b"[]", "cannot be read"),
        ("results.json", b"{", "cannot be read"),
        ("results.json", b'{"a": 1}', "another version"),
    ],
)
def test_damaged_runs_are_named_and_the_rest_is_reported(own_runs, name, content, said):
    path = folder(own_runs, "single").path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.with_name("checksums.json").unlink()
    report = report_on(records_of(own_runs), device=CPU, pictures=name == "probs.npy")
    assert sum(said in one and "single" in one for one in report.missing) == 1
    assert "mc-droprelu:0.9" in report.page.markdown()


def test_other_test_images_are_not_drawn(own_runs):
    path = folder(own_runs, "single").path / "results.json"
    content = json.loads(path.read_text())
    for entry in content.values():
        entry["data"]["sha256"]["images"] = "0" * 64
    path.write_text(json.dumps(content))
    path.with_name("checksums.json").unlink()
    report = report_on(records_of(own_runs), device=CPU)
    assert any("other test images" in one for one in report.missing)


def take_weights(run):
    weights = [path for path in run.path.iterdir() if "safetensors" in path.name]
    assert weights
    for path in weights:
        path.unlink()


def test_without_weights_the_cards_have_no_spread_and_the_report_says_so(own_runs):
    take_weights(folder(own_runs, "mc-droprelu:0.9"))
    report = report_on(records_of(own_runs), device=CPU)
    (said,) = [one for one in report.missing if "cannot be drawn" in one]
    assert str(own_runs) not in said
    assert "remove" not in said
    (section,) = [one for one in report.page.sections if one.title.startswith("Most and least")]
    ranged = {fold.summary: fold.blocks[0].cards[0].bars[0].low is not None for fold in section.blocks[1:]}
    assert ranged == {"single": False, "deep-ensemble:2": True, "mc-droprelu:0.9": False}
    assert "nine in ten samples" in section.blocks[0].words


def test_runs_without_weights_are_one_sentence_and_no_line_is_explained(own_runs):
    for run in (folder(own_runs, "mc-droprelu:0.9"), folder(own_runs, "single", seed=1)):
        take_weights(run)
    report = report_on(records_of(own_runs), device=CPU)
    (said,) = [one for one in report.missing if "weights" in one]
    assert "mc-droprelu-0.9-seed0" in said
    assert "deep-ensemble-2-seed0" in said
    assert " are not kept in their folders: " in said
    words = report.page.markdown()
    assert "A bar is the mean over all samples." in words
    assert "nine in ten samples" not in words


def test_measurements_of_another_stream_are_warned_of_and_not_drawn_again(own_runs):
    run = folder(own_runs, "mc-droprelu:0.9")
    run.write("results", {key: {**one, "stream_version": 0} for key, one in run.read("results").items()})
    with pytest.warns(RbueWarning, match="version 0 of the random stream, while this is version 1") as warned:
        records = records_of(own_runs)
    assert len(warned) == 1
    assert run.path.name in str(warned[0].message)
    (said,) = [one for one in report_on(records, device=CPU).missing if "stream" in one]
    assert "cannot be drawn" in said


def test_a_moved_run_is_reported_without_its_samples(own_runs, tmp_path):
    run = folder(own_runs, "mc-droprelu:0.9").path
    moved = run.rename(tmp_path / run.name)
    report = report_on(read_records([RunFolder(moved)]), device=CPU)
    assert any("moved" in one for one in report.missing)


def test_a_copy_of_a_run_is_not_a_second_seed(made_runs, own_runs):
    records = records_of(made_runs)
    both = records + [record for record in records_of(own_runs) if record.results]
    alone, report = (report_on(some, pictures=False) for some in (records, both))
    assert report.page.sections[1] == alone.page.sections[1]
    assert sum("two of the folders" in one for one in report.missing) == 4


def test_samples_are_drawn_against_what_they_bring(made_runs):
    (group,) = group_records(records_of(made_runs))
    (block,) = more_samples_blocks(group)
    measured = folder(made_runs, "mc-droprelu:0.9").read("results").values()
    line = next(line for line in block.figure.axes[0].lines if line.get_label() == "mc-droprelu:0.9")
    drawn = dict(line.get_xydata().tolist())
    for result in measured:
        assert drawn[result["samples"]] == result["accuracy"]


def test_several_settings_get_a_section_each(own_runs):
    from rbue.lab.runs.measuring import evaluate_run
    from rbue.lab.runs.training import train_run

    longer = config("single", epochs=2)
    train_run(longer, own_runs, CPU)
    evaluate_run(longer, own_runs, CPU, samples=1)
    page = report_on(records_of(own_runs), pictures=False).page
    assert [section.title for section in page.sections].count("small_cnn on digits") == 2
    assert 'id="small-cnn-on-digits-2"' in page.html()


def test_nothing_measured_is_one_sentence(made_runs):
    unmeasured = [record for record in records_of(made_runs) if not record.results]
    with pytest.raises(RbueError, match="none of the 3 runs is measured"):
        report_on(unmeasured)
    with pytest.raises(RbueError, match=r"nothing to report yet: .*svi.*training stopped"):
        report_on([record for record in unmeasured if record.settings.method.startswith("svi")])


def test_the_least_certain_image_has_the_highest_entropy(tmp_path):
    images = data.load("digits", "test")
    probs = np.full((len(images), 10), 0.01)
    probs[:, 3] = 0.91
    probs[7], probs[9] = 0.1, np.eye(10)[3]
    record = Record(RunFolder(tmp_path), config("single"), {"samples=1,seed=0": {"samples": 1}})
    (least, most), trouble = certain_cards(Answers(record, images, probs), CPU)
    assert (least.title, most.title, trouble) == ("Least certain", "Most certain", None)
    assert least.cards[0].alt.startswith("Test image 7,")
    assert most.cards[0].alt.startswith("Test image 9,")


def test_of_two_copies_the_measured_one_is_reported(tmp_path):
    begun = Record(RunFolder(tmp_path / "begun"), config("single"), trouble="trained but not measured")
    done = Record(RunFolder(tmp_path / "done"), config("single"), {"samples=1,seed=0": {"samples": 1}})
    for records in ([begun, done], [done, begun]):
        kept, copies = without_copies(records)
        assert kept == [done]
        assert len(copies) == 1
        assert "begun" in copies[0]


def test_the_words_of_a_recipe_name_an_average():
    paper, strong = (RunConfig(recipe=recipe_for("cifar10", name)) for name in ("paper", "strong"))
    assert recipe_words(paper) == "200 epochs, batch 128, rate 0.1"
    assert recipe_words(strong) == "200 epochs, batch 128, rate 0.1, SWA after 120 epochs"
