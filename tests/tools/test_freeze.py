"""What counts as a difference between two frozen states, and what is printed of it."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"

STATE = {
    "streams": {"mask": "float32 [2] 00ff", "samples": [[0.25, 0.75]], "votes": [3, 0]},
    "names": {"rbue": {"predict": "(model, x, samples=100)"}},
    "verbs": {"train": {"run": "runs/digits/single-seed0-a8815599", "seconds": "<varies>", "loss": 2.25, "done": True}},
}


@pytest.fixture
def freeze(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("freeze")


def changed(path, value):
    """The state with another value somewhere; with None, without the key."""
    state = copy.deepcopy(STATE)
    *parents, last = path
    inner = state
    for key in parents:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return state


def test_a_state_equals_itself_after_writing(freeze):
    assert list(freeze.differences(STATE, json.loads(json.dumps(STATE)))) == []


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("streams", "mask"), "float32 [2] 00fe", ("streams / mask", "float32 [2] 00ff", "float32 [2] 00fe")),
        (("streams", "samples", 0, 1), 0.7501, ("streams / samples[0][1]", 0.75, 0.7501)),
        (("streams", "votes"), [3, 0, 0], ("streams / votes", [3, 0], [3, 0, 0])),
        (("streams", "votes", 1), 1, ("streams / votes[1]", 0, 1)),
        (("verbs", "train", "loss"), None, ("verbs / train / loss", 2.25, "(absent)")),
        (("verbs", "train", "new"), 1, ("verbs / train / new", "(absent)", 1)),
        (("verbs", "train", "done"), 1, ("verbs / train / done", True, 1)),
        (("verbs", "train", "seconds"), None, ("verbs / train / seconds", "<varies>", "(absent)")),
    ],
)
def test_one_change_is_one_line(freeze, path, value, line):
    assert list(freeze.differences(STATE, changed(path, value))) == [line]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verbs", "train", "seconds"), 3.5),  # a placeholder equals everything
        (("verbs", "train", "loss"), "<varies>"),
        (("streams", "samples", 0, 1), 0.750001),  # another order of a sum
    ],
)
def test_no_difference(freeze, path, value):
    assert list(freeze.differences(STATE, changed(path, value))) == []
    assert list(freeze.differences(changed(path, value), STATE)) == []


def test_the_numbers_of_an_array_share_a_line(freeze):
    found = freeze.differences({"a": [[1.0, 2.0], [3.0, 4.0]]}, {"a": [[1.0, 2.5], [3.5, 5.0]]})
    assert list(found) == [("a[0][1] and more", 2.0, 2.5)]
    assert len(list(freeze.differences([{"a": 1}, "b"], [{"a": 2}, "c"]))) == 2


def test_a_section_that_failed_on_both_sides_is_no_agreement(freeze, capsys):
    broken = {"results": freeze._attempted(lambda: 1 / 0)}
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert [path for path, *_ in freeze.differences(broken, broken)] == ["results"]


def test_every_measurement_of_a_run_is_asked_for_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(TOOLS))
    commands = importlib.import_module("frozen_commands")
    monkeypatch.setattr(commands, "_read", lambda text: text)
    (tmp_path / "results.json").write_text(json.dumps({"samples=48,seed=1,draws=balanced,augment=flip,shift:2": {}}))
    _, (_, asked), _ = commands._run(tmp_path)
    assert "--samples 48 --sample-seed 1 --draws balanced --augment flip,shift:2 " in asked


def test_long_values_are_shortened(freeze):
    assert freeze.shortened({"a": [1, 2]}) == '{"a": [1, 2]}'
    text = freeze.shortened("begin\n" + "x" * 1000 + "end")
    assert text.startswith("begin xxx")
    assert text.endswith("xend")
    assert len(text) < 120


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_tells_of_differences(freeze, monkeypatch, tmp_path, capsys, code):
    file = tmp_path / "frozen.json"
    file.write_text(json.dumps(STATE if code == 0 else changed(("names", "rbue", "predict"), "(model, x)")))
    monkeypatch.setattr(freeze, "freeze", lambda source: STATE)
    monkeypatch.setattr(sys, "argv", ["freeze.py", "--compare", str(file)])
    assert freeze.main() == code
    expected = "names / rbue / predict: (model, x) -> (model, x, samples=100)\n" if code else ""
    assert capsys.readouterr().out == expected


def test_a_commit_is_checked_out_for_a_while(freeze, monkeypatch, tmp_path):
    def git(*words):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *settings, *words], check=True, capture_output=True)

    (tmp_path / "file").write_text("before")
    for words in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        git(*words)
    (tmp_path / "file").write_text("after")
    monkeypatch.setattr(freeze, "ROOT", tmp_path)
    with freeze.checkout("HEAD") as tree:
        assert (tree / "file").read_text() == "before"
    assert not tree.exists()
    with freeze.checkout(str(tmp_path)) as tree:
        assert (tree / "file").read_text() == "after"
    with pytest.raises(SystemExit, match="neither a file"), freeze.checkout("nothing"):
        pass


def test_placeholders_and_parameters(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    commands, library = (importlib.import_module(name) for name in ("frozen_commands", "frozen_library"))
    said = {"path": str(Path.cwd() / "runs"), "seconds": 2.5, "environment": "1e6a163e", "rows": [{"cpu": "fast"}]}
    expected = {"path": "<here>/runs", "seconds": "<varies>", "environment": "<varies>", "rows": [{"cpu": "<varies>"}]}
    assert commands.normalised(said) == expected
    assert list(commands.key_paths(said)) == ["path", "seconds", "environment", "rows", "rows[].cpu"]
    assert commands.VARIES == importlib.import_module("freeze").VARIES

    def function(a: Path, *, b: int = 2, **more: str) -> Path:
        return a

    assert library.parameters(function) == "(a, *, b=2, **more)"
