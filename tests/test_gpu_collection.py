"""`make test-gpu` finds its tests where pytest has none of the plugins that pyproject.toml asks for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_gpu_tests_are_found_without_plugins():
    recipe = re.search(r"\$\(PYTHON\) -m (pytest .*)", (ROOT / "Makefile").read_text().partition("\ntest-gpu:")[2])
    assert recipe is not None
    arguments = recipe[1].replace("$$", "$")
    command = f"{sys.executable} -m {arguments} -p no:timeout -p no:xdist -p no:hypothesispytest --collect-only -q"
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTEST_ADDOPTS": ""}
    run = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    for found in ("test_kernels_on_a_gpu_equal_the_formula", "test_captured_steps_train_the_weights_of_the_plain_loop"):
        assert found in run.stdout
