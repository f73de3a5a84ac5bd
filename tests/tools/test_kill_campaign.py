"""The campaign of kills: what it takes for the same, a handful of kills, and what a hundred came to."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from kill_campaign import JOBS, content, is_part, left_over, main, timeless

RESULT = Path(__file__).parents[2] / "results" / "kills.json"


def test_only_seconds_may_differ():
    assert timeless({"seconds": 1, "rows": [{"training_seconds": 2, "a": 3}]}) == {"rows": [{"a": 3}]}


@pytest.mark.parametrize(
    ("found", "whole", "expected"),
    [
        ({"a": {"x": 1}}, {"a": {"x": 1}, "b": 2}, True),
        ({"a": {"x": 2}}, {"a": {"x": 1}, "b": 2}, False),
        ({"c": 1}, {"a": 1}, False),
        ({"rows": [{"a": 1}]}, {"rows": [{"a": 2}, {"a": 1}]}, True),
        ({"rows": [{"a": 3}]}, {"rows": [{"a": 2}, {"a": 1}]}, False),
        ("abc", "abd", False),
        ({"tensors": {"w": "1"}, "note": {"epoch": 2}}, {"tensors": {"w": "2"}, "note": {"epoch": 3}}, True),
        ({"tensors": {"w": "1"}, "note": {"epoch": 3}}, {"tensors": {"w": "2"}, "note": {"epoch": 3}}, False),
    ],
)
def test_what_is_there_must_be_a_part_of_what_will_be(found, whole, expected):
    assert is_part(found, whole) is expected


def test_a_file_that_is_not_whole_is_an_error(tmp_path):
    for name in ("a.json", "a.npy", "a.safetensors"):
        (tmp_path / name).write_bytes(b"{")
        with pytest.raises(Exception):  # noqa: B017 - of whichever reader
            content(tmp_path / name)


def test_what_should_be_gone(tmp_path):
    for name in ("runs/a.json.0.1.partial", "runs/.lock", "cache/.a.partial", "runs/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {path.name for path in left_over(tmp_path)} == {"a.json.0.1.partial", ".lock"}


def test_the_campaign_that_is_kept_found_no_difference():
    found = json.loads(RESULT.read_text())
    assert {job["job"] for job in found["jobs"]} == {job.name for job in JOBS}
    assert sum(job["kills"] for job in found["jobs"]) >= 100
    assert sum(job["killed_while_writing"] for job in found["jobs"]) > 0
    for job in found["jobs"]:
        assert job["equal"]
        assert job["troubles"] == []
        assert job["kills"] == sum(job["killed_at"].values()) == job["starts"] - job["finished"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("job", ["averaged", "predict"])
def test_a_handful_of_kills(tmp_path, job):
    assert main(["--kills", "3", "--jobs", job, "--seed", "1", "-o", str(tmp_path / "kills.json")]) == 0
    (found,) = json.loads((tmp_path / "kills.json").read_text())["jobs"]
    assert found["kills"] >= 3
