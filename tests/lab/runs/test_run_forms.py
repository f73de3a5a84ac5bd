"""The JSON files of runs hold what their fields are, or are refused by name."""

import json

import pytest

from rbue.errors import RbueError
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.forms import FORMS, misfit

RESULT = {"accuracy": 0.5, "ece": 0.1, "nll": 1.0, "brier": 0.3, "samples": 1, "seed": None, "by_samples": []}


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("training", {"seconds": "long"}, "seconds"),
        ("training", {"seconds": float("nan")}, "seconds"),
        ("training", {"seconds": 1, "class_names": ["a", None]}, "class_names.1"),
        ("training", {"seconds": 1, "data": {"shape": [8, 8.5, 1]}}, "data.shape.1"),
        ("results", {"samples=1,seed=0": {**RESULT, "accuracy": None}}, "samples=1,seed=0.accuracy"),
        (
            "results",
            {"a": {**RESULT, "by_samples": [{"samples": 1, "accuracy": "x", "ece": 0}]}},
            "a.by_samples.0.accu",
        ),
        ("results", {"a": {**RESULT, "by_samples": [{"samples": 1, "accuracy": 1}]}}, "a.by_samples.0.ece"),
        ("results", {"a": {**RESULT, "jsd": [[0, "x"]]}}, "a.jsd"),
        ("validation", {"a": 3}, "a"),
        ("calibration", {"a": {"before": 1, "after": 1, "temperatures": [], "bounds": []}}, "a.before"),
        ("environment", {"cpu": ["<script>"]}, "cpu"),
        ("ood", {"a": {"sets": {"b": {"scores": {"energy": 3}}}}}, "a.sets.b.scores.energy"),
        ("rounds", {"rounds": 3}, "rounds"),
        ("rounds", {"rounds": [{"labels": 3}]}, "rounds.0.picked"),
        ("calibration", {"a": {}}, "a.before"),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path, name, content, where):
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(RbueError, match=rf"{name}\.json has another form at '{where}.*'; remove it"):
        RunFolder(tmp_path).read(name)


def test_fields_may_be_missing_and_there_may_be_others():
    assert misfit({"a": {**RESULT, "new": object()}}, FORMS["results"]) == ""
    assert misfit({}, FORMS["training"]) == ""
    calibrated = {"before": {"ece": 1, "nll": 1}, "after": {"ece": 1, "nll": 1}, "temperatures": [1.0]}
    assert misfit({"a": {**calibrated, "!": {}}, "b": {**calibrated, "!": 3}}, FORMS["calibration"]) == ""
    assert misfit({"!": 3}, FORMS["calibration"]) == "!"
    assert misfit([], FORMS["training"]) == "its beginning"
