"""Bugs are planted where the code still has the text they replace."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
mutants = importlib.util.module_from_spec(SPEC)
sys.modules["mutants"] = mutants
SPEC.loader.exec_module(mutants)


def test_there_are_twenty_or_more_and_each_has_a_name():
    assert len(mutants.MUTANTS) == len({mutant.name for mutant in mutants.MUTANTS}) >= 20


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_text_is_found_once_and_leaves_code_that_can_be_read(mutant):
    content = (ROOT / "src" / "rbue" / mutant.file).read_text(encoding="utf-8")
    planted = mutant.planted(content)
    assert planted != content
    ast.parse(planted)
    assert all((ROOT / "tests" / test.partition("::")[0]).is_file() for test in mutant.tests)


@pytest.mark.parametrize("content", ["", "x = 1\nx = 1\n"])
def test_a_text_that_is_not_there_exactly_once_is_refused(content):
    with pytest.raises(mutants.NotPlanted, match="times instead of once"):
        mutants.Mutant("a bug", "errors.py", "x = 1", "x = 2", ()).planted(content)


@pytest.mark.parametrize(("code", "verdict"), [(0, "SURVIVED"), (1, "caught"), (2, "NOT TRIED")])
def test_only_a_failed_test_catches_a_bug(monkeypatch, code, verdict):
    monkeypatch.setattr(mutants, "run_tests", lambda *_: code)
    assert mutants.judge(mutants.MUTANTS[0]).startswith(verdict)
