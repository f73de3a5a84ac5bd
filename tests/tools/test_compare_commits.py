"""Two sides with benchmarks that only write a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "compare_commits.py"
BENCHMARK = """
import json, os, sys
from factor import FACTOR  # of its own side
order = open(sys.argv[1], "a"); order.write(sys.argv[2][0]); order.close()
content = {
    "seconds": {"ours": 2.0 * FACTOR, "copy": 3.0},
    "rows": [{"step_ms": 5.0, "step_ratio": 1.0 * FACTOR, "peak_mib": 7 / FACTOR}],
    "teraflops": {"ours": 9.0 * FACTOR},
    "environment": {"commit": os.environ.get("RBUE_COMMIT"), "start_s": 1.0 * FACTOR},
}
json.dump(content, open(sys.argv[sys.argv.index("--out") + 1], "w"))
"""


@pytest.fixture
def sides(tmp_path):
    for name, factor in (("old", 1.0), ("same", 1.0), ("slower", 1.5)):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "factor.py").write_text(f"FACTOR = {factor}")
        (tmp_path / name / "benchmarks").mkdir()
        (tmp_path / name / "benchmarks" / "fake.py").write_text(BENCHMARK)
    return tmp_path


def compare(sides, new, *words):
    command = [sys.executable, TOOL, "--old", f"abc={sides / 'old'}", "--new", str(sides / new), "--rounds", "2"]
    return subprocess.run([*command, *words], capture_output=True, text=True)


def test_sides_take_turns_and_the_worst_row_is_last(sides):
    run = compare(sides, "slower", "fake", "--json", str(sides / "out.json"), "--", str(sides / "order"), "{side}")
    assert run.returncode == 1, run.stderr
    assert (sides / "order").read_text() == "onon"
    rows = json.loads((sides / "out.json").read_text())
    better = ["rows / 0 / peak_mib", "seconds / copy", "rows / 0 / step_ms"]
    assert [row["row"] for row in rows["rows"]] == [*better, "seconds / ours"]
    assert rows["rows"][-1] == {"row": "seconds / ours", "ratio": 1.5, "old": [2.0, 2.0], "new": [3.0, 3.0]}
    assert rows["worse"] == ["seconds / ours"]
    assert rows["environment"]["old"]["commit"] == "abc"
    *_, worst, end = run.stdout.splitlines()
    assert worst.startswith("seconds / ours")
    assert worst.endswith("1.5000  worse than 1.02")
    assert end == "1 of 4 rows are more than 2% worse"


def test_equal_sides_pass(sides):
    run = compare(sides, "same", "fake", "--", str(sides / "order"), "{side}")
    assert run.returncode == 0, run.stderr
    assert "0 of 4 rows" in run.stdout


def test_what_is_neither_folder_nor_commit(sides):
    run = compare(sides, "nowhere", "fake")
    assert run.returncode == 1
    assert "nowhere is neither a folder nor a commit" in run.stderr
