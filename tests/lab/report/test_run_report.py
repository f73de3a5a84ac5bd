"""Reports on run folders: numbers, seeds, the paper, gaps, and the very samples that were measured."""

import json
import re
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from tiny_reports import config

from rbue.errors import RbueError, RbueWarning
from rbue.lab import data
from rbue.lab.cli.compare import read_marks
from rbue.lab.report import run_answers
from rbue.lab.report.figure_style import inline_svg
from rbue.lab.report.page import Page, Section
from rbue.lab.report.run_answers import Answers, drawn_again, image_cards
from rbue.lab.report.run_answers import TestImages as Images
from rbue.lab.report.run_compared import compare_answers
from rbue.lab.report.run_outside import outside_blocks
from rbue.lab.report.run_records import Record, group_records, missing, read_records, recipe_words, without_copies
from rbue.lab.report.run_report import report_on
from rbue.lab.report.run_sections import SECTIONS, calibration_blocks, error_blocks, more_samples, training_blocks
from rbue.lab.report.run_shift import shift_blocks
from rbue.lab.report.run_tables import MEASURES, comparison_table
from rbue.lab.report.run_trust import abstaining_rule
from rbue.lab.runs.folders import RunConfig, RunFolder, find_runs
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.temperatures import calibrate_run
from rbue.lab.shift.rows import Cell as DamagedSet
from rbue.lab.shift.rows import ShiftStore
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
    assert values(table, "parameters")["mc-droprelu:0.9"].std is values(table, "samples")["mc-droprelu:0.9"].std is None
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
    return replace(record, config=replace(record.config, width=1.0))


def test_what_is_missing_is_named_but_members_are_not(made_runs):
    said = missing(records_of(made_runs))
    assert len(said) == 2
    assert any("mc-rrelu" in one and "trained but not measured" in one and "rbue evaluate" in one for one in said)
    assert any("svi" in one and "after 0 of 1 epochs" in one for one in said)


def test_the_whole_report(made_runs, run_report, run_html):
    report, html = run_report, run_html
    titles = [section.title for section in report.page.sections]
    assert titles == [
        "Comparison",
        "What is missing",
        "Which answers to trust",
        "Calibration",
        "Where it is wrong",
        "Images to look at",
        "Training and samples",
        "Where each number comes from",
    ]
    assert str(made_runs) not in html
    accuracy = list(folder(made_runs, "single").read("results").values())[-1]["accuracy"]
    assert f"{100 * accuracy:.2f}\u00a0%" in html
    for record in records_of(made_runs):
        if record.results:
            assert f'id="{record.anchor}"' in html
    assert html.count('<li class="card">') == 3 * 12
    assert len(report.runs.rows) == 4
    assert len(report.missing) == 2


def compared(root):
    (group,) = group_records(records_of(root))
    return compare_answers(group, Images(), CPU)


def test_the_page_opens_with_a_verdict_and_intervals(run_report, made_runs):
    this = compared(made_runs)
    assert run_report.page.lead == this.verdict
    assert this.verdict.startswith("On 355 images ") or "cannot be told apart on 355 images" in this.verdict
    table = comparison_table(this.group, chance=this.chance)
    for key in ("accuracy", "ece", "nll", "brier"):
        for cell in values(table, key).values():
            assert cell.interval[0] <= cell.value <= cell.interval[1]
    for key in ("aurc", "mean_jsd", "parameters", "training_seconds"):
        assert not any(cell.best for cell in values(table, key).values())


def test_augmented_measurements_are_named_beside_plain_ones(own_runs):
    for method in ("mc-droprelu:0.9", "single"):
        evaluate_run(config(method), own_runs, CPU, samples=2, augment="flip")
    records = [one for one in records_of(own_runs) if one.results]
    flipped = "mc-droprelu:0.9 (augmented: flip)"
    this = compared(own_runs)
    assert list(this.group.methods) == ["single (augmented: flip)", "deep-ensemble:2", "mc-droprelu:0.9", flipped]
    assert [one.method for one in this.first] == list(this.chance["nll"].methods) == list(this.group.methods)
    table = comparison_table(this.group, chance=this.chance)
    assert values(table, "nll")[flipped].interval
    about = {column.key: column.about for column in table.columns}
    assert all(about[key].endswith("; of plain passes, for augmented ones too.") for key in ("mean_jsd", "mean_dis"))
    assert sum("plain passes" in words for words in about.values()) == 2
    assert not any("plain passes" in column.about for column in MEASURES)
    runs = report_on(records, pictures=False, answers=False).runs
    assert {(row["method"], row["draws"], row["augment"]) for row in runs.rows} >= {
        ("single", "independent", "flip"),
        ("deep-ensemble:2", "independent", ""),
    }
    alike = [one for one in records if one.result.get("augment")]
    (group,) = group_records(alike)
    assert list(group.methods) == ["single", "mc-droprelu:0.9"]
    assert group.recipe.endswith("augmented: flip")
    (alt, _) = (one.alt for one in more_samples(group))  # no plain samples on a curve of augmented ones
    assert alt.endswith(": single with 1, 2 samples; mc-droprelu:0.9 with 1, 2 samples.")


def test_seeds_that_were_measured_otherwise_are_no_mean(made_runs):
    record, other = (one for one in records_of(made_runs) if one.results and one.settings.method == "mc-droprelu:0.9")
    samples = record.result["samples"]

    def methods(**measured):
        (group,) = group_records([record, replace(other, results={"": {**record.result, **measured}})])
        return {name: len(some) for name, some in group.methods.items()}

    name, plain = "mc-droprelu:0.9", f"mc-droprelu:0.9 ({samples} samples)"
    assert methods() == methods(seed=5) == {name: 2}
    assert methods(samples=1) == {f"{name} (1 sample)": 1, plain: 1}
    assert methods(draws="balanced") == {plain: 1, f"{name} ({samples} samples, balanced)": 1}
    assert methods(samples=1, augment="flip") == {name: 1, f"{name} (augmented: flip)": 1}


def test_what_is_missing_is_not_always_of_one_sample(made_runs):
    (record,) = [one for one in records_of(made_runs) if one.results and one.settings.method == "deep-ensemble:2"]
    older = {name: one for name, one in record.result.items() if name != "mean_jsd"}
    (group,) = group_records([replace(record, results={"older": older})])
    assert values(comparison_table(group), "mean_jsd")["deep-ensemble:2"].why == "not measured"


def test_sixty_images_give_no_star(made_runs):
    from rbue.lab.report.chance import resample

    (group,) = group_records(records_of(made_runs))
    labels = np.arange(60) % 10
    probs = {}
    for turn, method in enumerate(group.methods):
        probs[method] = np.full((60, 10), 0.02)
        right = np.arange(60) >= 2 + 2 * turn
        probs[method][np.arange(60), np.where(right, labels, (labels + 1) % 10)] = 0.82
    table = comparison_table(group, chance=resample({name: [one] for name, one in probs.items()}, labels))
    assert len({cell.value for cell in values(table, "accuracy").values()}) > 1
    assert not any(table.is_best(row, column) for row in table.rows for column in table.columns)


def test_without_stored_answers_there_is_a_page_without_intervals(own_runs, monkeypatch):
    monkeypatch.setattr("rbue.lab.report.page.inline_svg", lambda *_: "<svg></svg>")  # figures take their time
    for path in own_runs.rglob("probs.npy"):
        path.unlink()
    report = report_on(records_of(own_runs), device=CPU)
    assert report.page.lead.startswith("Chance cannot be told from a difference")
    assert [section.title for section in report.page.sections] == [
        "Comparison",
        "What is missing",
        "Training and samples",
        "Where each number comes from",
    ]
    html = report.page.html()
    assert 'class="interval"' not in html
    assert "(best)" not in html


def test_one_method_without_answers_is_named_and_nothing_is_marked(own_runs):
    (folder(own_runs, "deep-ensemble:2").path / "probs.npy").unlink()
    this = compared(own_runs)
    assert this.verdict.endswith("Without stored answers about these images `deep-ensemble:2` is not compared.")
    table = comparison_table(this.group, chance=this.chance)
    assert values(table, "nll")["deep-ensemble:2"].interval is None
    assert not any(table.is_best(row, column) for row in table.rows for column in table.columns)


def test_a_threshold_is_fitted_on_one_half_and_counted_on_the_other():
    confidence = np.arange(1000) / 1000
    correct = np.arange(1000) >= 100
    rule = abstaining_rule(confidence, correct)
    assert (rule.fitted.images, rule.images, rule.fitted.risk) == (500, 500, 0.05)
    half = np.random.default_rng(0).permutation(1000) % 2 == 1
    above = half & (confidence > rule.fitted.threshold)
    assert (rule.answered, rule.wrong) == (above.sum(), (above & ~correct).sum())
    said = rule.sentence("svi")
    assert f"Let `svi` answer images with a confidence above {rule.fitted.threshold:.2f}" in said
    assert "at most 5 % of its answers are wrong, with 95 % confidence" in said
    assert f"is wrong on {rule.wrong} of these {rule.answered}" in said


@pytest.mark.parametrize(("images", "risk"), [(60, 0.1), (30, 0.2), (20, None)])
def test_fewer_images_promise_less(images, risk):
    rule = abstaining_rule(np.linspace(0.5, 1, images), np.ones(images, dtype=bool))
    assert (rule and rule.fitted.risk) == risk


def test_a_network_that_is_seldom_wrong_may_answer_everything():
    rule = abstaining_rule(np.linspace(0.5, 1, 400), np.arange(400) > 1)
    assert rule.answered == rule.images == 200
    assert rule.sentence("svi").startswith("Let `svi` answer all images: on images like these, at most 5 %")


def test_a_network_that_is_always_wrong_may_not_answer():
    rule = abstaining_rule(np.linspace(0, 1, 200), np.zeros(200, dtype=bool))
    assert (rule.answered, rule.risk) == (0, None)
    assert rule.sentence("svi").startswith("No threshold")


def test_classes_are_counted_the_worst_first(made_runs):
    this = compared(made_runs)
    one = this.featured
    fold = error_blocks(this)[0]
    assert (fold.summary, fold.open) == (one.method, True)
    (columns,) = fold.blocks
    table = columns.columns[1][0].table
    recalls = values(table, "recall")
    assert [cell.value for cell in recalls.values()] == sorted(cell.value for cell in recalls.values())
    said = one.probs.argmax(1)
    for name, cell in recalls.items():
        label = one.images.classes.index(name)
        assert cell.value == pytest.approx((said == label)[one.images.labels == label].mean())


def test_cards_name_the_files_of_a_folder_and_let_no_markup_through(tmp_path):
    from rbue.lab.report.page import Fold

    some = data.load("digits", "test").take(np.arange(3), "test", None)
    images = replace(some, files=("a/<b>x.png", "a/y.png", "a/z.png"), classes=("<i>zero", *some.classes[1:]))
    probs = np.full((3, 10), 0.02)
    probs[:, 0] = 0.82
    record = Record(RunFolder(tmp_path), config("single"), {"samples=1,seed=0": {"samples": 1}})
    cards, _ = image_cards(Answers(record, images, probs), CPU)
    html = Fold("cards", cards).html("one")
    assert "&lt;b&gt;x.png" in html
    assert "<b>x" not in html
    assert "<i>zero" not in html


def test_temperatures_that_were_fitted_are_shown(own_runs):
    assert not any(
        "after" in column.key for block in calibration_blocks(compared(own_runs)) for column in _columns(block)
    )
    _, entry = calibrate_run(config("single"), own_runs)
    table = calibration_blocks(compared(own_runs))[-1].table
    (row,) = table.rows
    assert (row["method"], row["after_nll"]) == ("single", entry["after"]["nll"])


def _columns(block):
    return block.table.columns if hasattr(block, "table") else ()


def damage(root, method, cells, spoil=0.5, variant="generated", samples=8, **more):
    """Rows of a run on damaged images, whose answers are closer to a guess by ``spoil``."""
    run = folder(root, method)
    result = list(run.read("results").values())[-1]
    probs = np.load(run.probs).astype(np.float32)
    asked = {"samples_asked": None, "seed": None} if method == "single" else {"samples_asked": samples, "seed": 0}
    for name, severity in cells:
        row = {"corruption": name, "severity": severity, "accuracy": 0.9 - 0.1 * severity, "ece": 0.1 * severity}
        row |= {**asked, "variant": variant, "labels_sha256": "0", "stream_version": result["stream_version"], **more}
        ShiftStore(run).keep(row, (1 - spoil) * probs + spoil / 10)


def test_damaged_images_are_compared_on_the_sets_that_all_runs_have(own_runs):
    assert shift_blocks(compared(own_runs)) == []
    damage(own_runs, "single", [("fog", 1)], spoil=0)
    damage(own_runs, "single", [("fog", 5), ("contrast", 5)])
    damage(own_runs, "mc-droprelu:0.9", [("fog", 1), ("fog", 5)])
    blocks = shift_blocks(compared(own_runs))
    (table,) = [block.table for block in blocks if hasattr(block, "table")]
    assert [row["method"] for row in table.rows] == ["single", "mc-droprelu:0.9"]
    assert table.rows[0]["accuracy5"] == pytest.approx(0.4)
    clean = list(folder(own_runs, "single").read("results").values())[-1]
    assert table.rows[0]["ece0"] == clean["ece"]
    assert "means over 1 corruption (fog)" in table.caption
    assert any("`deep-ensemble:2`" in getattr(block, "words", "") for block in blocks)
    pairs = blocks[-1].figures
    assert len(pairs) == 2
    assert "355 clean" in pairs[0].alt
    said = re.fullmatch(r"AUROC (0\.\d+): 1 would part them, 0\.5 not at all\.", pairs[0].caption)
    assert float(said[1]) > 0.6


def test_numbers_of_damaged_images_are_means_over_corruptions(own_runs):
    for name, accuracy in (("fog", 0.1), ("contrast", 0.2), ("frost", 0.9)):
        damage(own_runs, "single", [(name, 1)], accuracy=accuracy)
    (table,) = [block.table for block in shift_blocks(compared(own_runs)) if hasattr(block, "table")]
    assert table.rows[0]["accuracy1"] == pytest.approx(0.4)


def test_damaged_images_may_have_other_samples_which_is_said(own_runs):
    damage(own_runs, "mc-droprelu:0.9", [("fog", 1), ("fog", 2)], samples=3)
    damage(own_runs, "mc-droprelu:0.9", [("fog", 1)], samples=5)
    blocks = shift_blocks(compared(own_runs))
    (table,) = [block.table for block in blocks if hasattr(block, "table")]
    assert [column.key for column in table.columns][1:4] == ["accuracy0", "accuracy1", "accuracy2"]
    assert any("with 3 samples, on clean images with 8" in getattr(block, "words", "") for block in blocks)


def test_damaged_images_are_augmented_as_clean_ones_were_or_it_is_said(own_runs):
    run = folder(own_runs, "mc-droprelu:0.9")
    damage(own_runs, "mc-droprelu:0.9", [("fog", 1)])
    results = run.read("results")
    run.write("results", {**results, "flipped": {**list(results.values())[-1], "augment": "flip"}})
    said = "with 8 samples, on clean images with 8 samples augmented by flip."
    assert any(said in getattr(block, "words", "") for block in shift_blocks(compared(own_runs)))
    for samples, severity in ((3, 2), (8, 3)):  # other samples, but augmented; then as the clean ones
        damage(own_runs, "mc-droprelu:0.9", [("fog", severity)], samples=samples, augment="flip")
        blocks = shift_blocks(compared(own_runs))
        (table,) = [block.table for block in blocks if hasattr(block, "table")]
        assert f"accuracy{severity}" in table.rows[0]
        assert "accuracy1" not in table.rows[0]
        assert not any(said in getattr(block, "words", "") for block in blocks)


def test_damaged_images_of_two_kinds_are_not_compared(own_runs):
    damage(own_runs, "single", [("fog", 1)])
    damage(own_runs, "mc-droprelu:0.9", [("fog", 1)], variant="published")
    (text,) = shift_blocks(compared(own_runs))
    assert "not measured on the same damaged images" in text.words


def test_other_probabilities_of_damaged_images_are_not_drawn(own_runs):
    damage(own_runs, "single", [("fog", 1)])
    ShiftStore(folder(own_runs, "single")).save_probs(DamagedSet("fog", 1), np.full((355, 10), 0.1, np.float32))
    assert not any(hasattr(block, "figures") for block in shift_blocks(compared(own_runs)))


def test_images_from_elsewhere_have_a_section_where_they_were_measured(own_runs):
    assert outside_blocks(compared(own_runs)) == []
    measured = {"auroc": 0.75, "aupr": 0.7, "fpr95": 0.5}
    counts = {"inside": [350, *[0] * 22, 5], "outside": [*[0] * 23, 90]}
    name = "folder:some/<textures>"
    entry = {"sets": {"svhn": {"scores": {"entropy": measured, "nearest": measured}, "entropies": counts}}}
    folder(own_runs, "single").write("ood", {"earlier": {"sets": {}}, "last": entry})
    folder(own_runs, "mc-droprelu:0.9").write("ood", {"last": {"sets": {name: {"scores": {"entropy": measured}}}}})
    _, grid, table = outside_blocks(compared(own_runs))
    (figure,) = grid.figures  # nothing is drawn of an entry without counts
    assert "355 test images, mean 0.03; 90 of svhn, mean 0.98" in figure.alt
    first, second = table.table.rows
    assert (first["method"], first["images"], first["nearest"]) == ("single", "svhn", 0.75)
    assert (second["method"], second["images"]) == ("mc-droprelu:0.9", "<textures>")
    assert second["nearest"].why.startswith("it takes several samples")
    assert outside_blocks in [blocks for _, blocks in SECTIONS]
    page = Page("", [Section("", [table])]).html()
    assert "&lt;textures&gt;" in page
    assert "<textures>" not in page


def test_images_from_elsewhere_are_shown_as_most_methods_were_measured(own_runs):
    def entry(auroc, samples, count, **more):
        sets = {"svhn": {"scores": {"entropy": {"auroc": auroc}}}}
        return {"sets": sets, "samples": samples, "data": {"count": count}, **more}

    odd = entry(0.1, 20, 50, augment="flip", draws="balanced")
    folder(own_runs, "single").write("ood", {"plain": entry(0.6, 1, 355)})
    folder(own_runs, "mc-droprelu:0.9").write("ood", {"plain": entry(0.7, 8, 355), "odd": odd})
    evaluate_run(config("single"), own_runs, CPU, samples=2, augment="flip")  # says nothing of images from elsewhere
    text, table = outside_blocks(compared(own_runs))
    for method in ("single", "deep-ensemble:2"):
        folder(own_runs, method).write("ood", {"odd": odd})
    more, flipped = outside_blocks(compared(own_runs))
    assert text.words.endswith("Not measured like that: `deep-ensemble:2`.")
    assert values(table.table, "entropy")["mc-droprelu:0.9"].value == 0.7
    assert [row["method"] for row in table.table.rows] == ["single", "mc-droprelu:0.9"]
    assert table.table.caption.endswith(": 355 test images against images from elsewhere, 1 or 8 samples")
    assert "Not measured" not in more.words
    assert len(flipped.table.rows) == 3
    assert flipped.table.caption.endswith(
        "50 test images against images from elsewhere, 20 samples, balanced draws, augmented: flip"
    )


def test_training_is_drawn_from_the_log(made_runs):
    this = compared(made_runs)
    loss, accuracy, *_ = training_blocks(this)[1].figures
    entry = json.loads(folder(made_runs, "single").log.read_text().splitlines()[-1])
    assert f"single {entry['loss']:.4f}" in loss.alt
    (line,) = [line for line in accuracy.figure.axes[0].lines if line.get_label() == "deep-ensemble:2"]
    assert line.get_xydata().tolist() == [[1, entry["accuracy"]]]  # its first network is that of single


def test_the_measurement_that_is_asked_for_is_shown(made_runs):
    (record,) = [one for one in records_of(made_runs) if len(one.results) > 1]
    key = next(iter(record.results))
    assert record.measured_as(key).result == record.results[key] != record.result
    assert record.measured_as("samples=9,seed=9") is record


@pytest.mark.parametrize("drawn", [2, pytest.param(99, marks=pytest.mark.slow)])
def test_the_same_runs_give_the_same_page(made_runs, drawn, monkeypatch):
    """With so many of its figures, which take their time."""
    monkeypatch.setattr(
        "rbue.lab.report.page.inline_svg",
        lambda figure, alt, prefix: inline_svg(figure, alt, prefix) if next(turn) < drawn else alt,
    )
    chosen = [record for record in records_of(made_runs) if record.config.method == "single" and record.results]
    pages = []
    for _ in range(2):
        turn = count()
        pages.append(report_on(chosen, device=CPU).page.html())
    assert pages[0] == pages[1]
    assert next(turn) > 2


def test_cards_show_the_very_samples_that_were_measured(made_runs):
    for record in records_of(made_runs):
        if record.results and record.settings.method != "single":
            answers = Images().answers(record)
            chosen = np.array([7, 300, 12])
            samples = drawn_again(answers, chosen, CPU)
            assert samples.shape == (record.result["samples"], 3, 10)
            assert np.abs(samples.mean(0) - answers.probs[chosen]).max() < 2e-3  # stored with three digits


@pytest.mark.parametrize(("count", "expected"), [(2, (0.2, 0.8)), (19, (0.2, 0.8)), (20, (0.23, 0.77))])
def test_the_line_on_a_bar_has_nine_in_ten_samples_or_few_samples_all(tmp_path, monkeypatch, count, expected):
    images = data.ImageSet(np.zeros((2, 4, 4, 1), np.uint8), np.array([0, 1]), ("a", "b"), "x", "test", (0.5,), (0.2,))
    first = np.linspace(0.2, 0.8, count)[:, None].repeat(2 + 2 * len(images), axis=1)
    monkeypatch.setattr(run_answers, "drawn_again", lambda *_: np.stack([first, 1 - first], axis=2))
    record = Record(RunFolder(tmp_path), config("svi"), {"samples=2,seed=0": {"samples": count}})
    cards, _ = image_cards(Answers(record, images, np.full((2, 2), 0.5)), CPU)
    bar = cards[0].cards[0].bars[0]
    assert (bar.low, bar.high) == pytest.approx(expected)
    assert sum(bar.low - 1e-9 <= one <= bar.high + 1e-9 for one in first[:, 0]) >= 0.9 * count


def test_cards_show_augmented_samples_where_those_were_measured(own_runs):
    run = config("deep-ensemble:2", 0)
    result = evaluate_run(run, own_runs, CPU, samples=6, augment="shift:1")
    (record,) = [one for one in records_of(own_runs) if one.settings == run]
    answers = Images().answers(record)
    samples = drawn_again(answers, np.array([7, 300]), CPU)
    assert len(samples) == result["samples"] == 6  # more than it has members
    assert np.abs(samples.mean(0) - answers.probs[[7, 300]]).max() < 2e-3


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
        ("results.json", b'{"a": 1}', "another form"),
    ],
)
def test_damaged_runs_are_named_and_the_rest_is_reported(own_runs, name, content, said):
    path = folder(own_runs, "single").path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.with_name("checksums.json").unlink()
    report = report_on(records_of(own_runs), device=CPU, pictures=False)
    assert sum(said in one and "single" in one for one in report.missing) == 1
    assert "mc-droprelu:0.9" in report.page.markdown()


def test_other_test_images_are_not_drawn(own_runs):
    path = folder(own_runs, "single").path / "results.json"
    content = json.loads(path.read_text())
    for entry in content.values():
        entry["data"]["sha256"]["images"] = "0" * 64
    path.write_text(json.dumps(content))
    path.with_name("checksums.json").unlink()
    report = report_on(records_of(own_runs), pictures=False)
    assert any("other test images" in one for one in report.missing)


def on_other_images(run, name, what="images"):
    """Make a run one that was trained (``training``) or measured (``results``) on other images."""
    content = run.read(name)
    for entry in [content] if name == "training" else content.values():
        entry["data"]["sha256"][what] = "0" * 64
    run.write(name, content)


@pytest.mark.parametrize(
    ("name", "what", "said"),
    [
        ("training", "images", "trained on images 00000000, labels "),
        ("training", "labels", ", labels 00000000"),
        ("results", "images", "measured on images 00000000, labels "),
    ],
)
def test_runs_on_other_images_are_compared_apart(own_runs, name, what, said):
    on_other_images(folder(own_runs, "mc-droprelu:0.9", 1), name, what)
    first, other = group_records(records_of(own_runs))
    assert list(first.methods) == ["single", "deep-ensemble:2", "mc-droprelu:0.9"]
    assert {name: len(some) for name, some in other.methods.items()} == {"mc-droprelu:0.9": 1}
    assert said in other.images
    assert other.recipe.endswith(f", {other.images}")
    assert first.images.startswith(other.images[:11])
    report = report_on(records_of(own_runs), pictures=False, device=CPU)
    assert {one.recipe for one in (first, other)} <= {
        section.title.partition(": ")[2] for section in report.page.sections
    }
    (gap,) = [one for one in report.missing if "small_cnn on digits" in one]
    assert gap.startswith("the runs of small_cnn on digits do not share their images: ")


def test_an_ensemble_was_trained_on_the_images_of_its_members(own_runs):
    on_other_images(folder(own_runs, "single", 1), "training")
    first, other = group_records(records_of(own_runs))
    assert (list(first.methods), list(other.methods)) == (["deep-ensemble:2"], ["single", "mc-droprelu:0.9"])
    assert first.images.startswith("trained on images 00000000, labels ")
    assert " and images " in first.images


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_does_not_note_its_images_is_believed(own_runs, first):
    on_other_images(folder(own_runs, "mc-droprelu:0.9", 1), "training")
    older = folder(own_runs, "mc-droprelu:0.9", 0)
    for name in ("training", "results"):
        content = older.read(name)
        for entry in [content] if name == "training" else content.values():
            del entry["data"]
        older.write(name, content)
    records = sorted(records_of(own_runs), key=lambda one: (one.folder.path == older.path) != first)
    assert [len(group.records) for group in group_records(records)] == [3, 1]


def test_a_comparison_on_the_command_line_judges_no_runs_on_different_images(own_runs):
    on_other_images(folder(own_runs, "single"), "results")
    marks = read_marks([one for one in records_of(own_runs) if one.results], 3)
    assert not marks.best
    assert marks.verdict.startswith("These runs were not all trained and measured on the same images")


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
    (section,) = [one for one in report.page.sections if one.title == "Images to look at"]
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
    assert report.page.sections[0] == alone.page.sections[0]
    assert sum("two of the folders" in one for one in report.missing) == 4


def test_samples_are_drawn_against_what_they_bring(made_runs):
    (group,) = group_records(records_of(made_runs))
    block, _ = more_samples(group)
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
    titles = [section.title for section in page.sections]
    assert [one.partition(", ")[0] for one in titles[:2]] == [
        f"small_cnn on digits: {n}" for n in ("1 epoch", "2 epochs")
    ]
    assert page.sections[-2].title == "What is missing"
    assert all("355 images" in section.blocks[0].words for section in page.sections[:2])
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
    (mistakes, least, most), trouble = image_cards(Answers(record, images, probs), CPU)
    assert (mistakes.title, least.title, most.title) == ("Surest mistakes", "Least certain", "Most certain")
    assert trouble is None
    assert all(card.good is False for card in mistakes.cards)
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
    paper, strong = (RunConfig("cifar10", recipe=recipe_for("cifar10", name)) for name in ("paper", "strong"))
    assert recipe_words(paper) == "200 epochs, batch 128, learning rate 0.1"
    assert recipe_words(strong) == "200 epochs, batch 128, learning rate 0.1, SWA after 160 epochs, weight decay 0.0005"


def test_the_words_of_a_recipe_name_everything_that_is_not_the_data_sets():
    changes = {"augmix": 0.5, "flip": False, "milestones": (0.5, 0.9)}
    run = RunConfig(holdout=100, holdout_seed=2, recipe=recipe_for("digits", **changes, weight_decay=0))
    said = recipe_words(run)
    assert said.startswith("20 epochs, batch 32, learning rate 0.05, milestones 0.5 0.9, weight decay 0, augmix 0.5, ")
    assert said.endswith("100 images held out with seed 2")  # flips are off for digits anyway
    assert "no flip" in recipe_words(RunConfig(data="cifar10", recipe=recipe_for("cifar10", flip=False)))


def test_groups_of_one_network_are_told_apart_by_their_recipes(made_runs):
    (single,) = (one for one in records_of(made_runs) if one.name.startswith("digits/small_cnn/single-seed0"))
    other = replace(single, config=replace(single.config, recipe=replace(single.config.recipe, augmix=0.5)))
    made = report_on([single, other], answers=False)
    titles = [section.title for section in made.page.sections]
    assert titles[:2] == ["small_cnn on digits: 1 epoch, batch 128, learning rate 0.05" + more for more in _MORE]
    recipes = [row["recipe"] for row in made.runs.rows]
    assert recipes == ["1 epoch, batch 128, learning rate 0.05" + more for more in _MORE]


_MORE = (", width 0.25", ", augmix 0.5, width 0.25")


def test_the_papers_numbers_do_not_stand_beside_other_recipes_or_passes(made_runs):
    def paper_value(data, model, method, measure):
        return 0.9

    plain = next(_widened(record) for record in records_of(made_runs) if record.results)
    strong = replace(plain.config, recipe=recipe_for("digits", "strong", epochs=3))
    augmented = {name: {**one, "augment": "flip"} for name, one in plain.results.items()}
    for record, known in (
        (plain, True),
        (replace(plain, config=strong), False),
        (replace(plain, results=augmented), False),
    ):
        ((row,),) = (comparison_table(one, paper_value).rows for one in group_records([record]))
        assert {cell.paper for key, cell in row.items() if key != "method"} == {0.9 if known else None}
        assert row["training_seconds"].difference is None  # other hardware
