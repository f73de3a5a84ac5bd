"""The Python blocks of README and docs run as written, and the API reference is up to date."""

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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("script", ["docs/build_api.py", "docs/build_results.py", "benchmarks/readme_table.py"])
def test_generated_pages_are_current(script):
    run = [sys.executable, str(ROOT / script), "--check"]
    assert subprocess.run(run, check=False).returncode == 0, f"run: python {script}"


def test_every_public_name_is_in_the_api_reference():
    import rbue

    text = (ROOT / "docs" / "api.md").read_text()
    for name in rbue.__all__:
        assert f"rbue.{name}" in text or name == "__version__", name
