"""The Python blocks of README and docs run as written, and the API reference is up to date."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/your-own-model.md",
    "docs/how-it-works.md",
    "docs/comparing.md",
    "docs/shift.md",
    "docs/paper.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_in_order(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    namespace = {"__name__": "documentation"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("page", [*PAGES, "docs/results.md", "benchmarks/README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


SCRIPTS = ["docs/build_api.py", "docs/build_results.py", "benchmarks/readme_table.py", "benchmarks/goals.py"]


RUN_ALL = """
import runpy, sys
from pathlib import Path

place = list(sys.path)
for script in sys.argv[1:]:
    sys.argv, sys.path = [script, "--check"], [str(Path(script).parent), *place]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            print(script, end.code)
"""


def test_generated_pages_are_current():
    """In one process, as each imports torch."""
    run = [sys.executable, "-c", RUN_ALL, *(str(ROOT / script) for script in SCRIPTS)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    outdated = [script for script in SCRIPTS if f"{ROOT / script} " in done.stdout]
    assert not outdated, f"run them with python: {outdated}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_papers_ece_has_the_digits_that_it_prints(page):
    rows = re.findall(r"^\| `[^|]+` \| [\d.]+ \([^|]+\) \| [\d.]+ \(([\d.]+), [^|]+\|", (ROOT / page).read_text(), re.M)
    assert rows
    assert all(re.fullmatch(r"0\.\d\d", ece) for ece in rows), rows


def test_every_calibrated_run_is_shown_apart_from_the_papers_rows():
    readme = (ROOT / "README.md").read_text().partition("<!-- results -->")[2].partition("<!-- /results -->")[0]
    rows = (ROOT / "docs" / "results.md").read_text().partition("## After temperature scaling")[2].splitlines()
    files = sorted((ROOT / "results" / "runs").rglob("calibration.json"))
    assert len(files) == len(sorted((ROOT / "results" / "runs").rglob("results.json"))) > 0
    for file in files:
        entry = json.loads(file.read_text())["samples=100,seed=0"]
        config = json.loads(file.with_name("config.json").read_text())
        scaled = f"{entry['before']['ece']:.3f} → {entry['after']['ece']:.3f}"
        assert scaled not in readme
        shown = any(line.startswith(f"| `{config['method']}` |") and scaled in line for line in rows)
        assert shown or config["seed"] > 0  # a row is the run with seed 0
        assert entry["before"]["accuracy"] == entry["after"]["accuracy"]
        assert hashlib.sha256(file.with_name("probs.npy").read_bytes()).hexdigest() == entry["probs"]["sha256"]


def test_every_public_name_is_in_the_api_reference():
    import rbue

    text = (ROOT / "docs" / "api.md").read_text()
    for name in rbue.__all__:
        assert f"rbue.{name}" in text or name == "__version__", name
