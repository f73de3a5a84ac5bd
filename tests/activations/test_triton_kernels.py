import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rbue

NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@NEEDS_TRITON
@pytest.mark.parametrize("settings", [INTERPRETER, pytest.param({}, marks=NEEDS_CUDA)], ids=["interpreter", "cuda"])
def test_kernels_equal_the_formula(settings):
    cases = Path(__file__).with_name("kernel_cases.py")
    source = str(Path(rbue.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])} | settings
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(cases.parent)]
    command = [sys.executable, "-m", "pytest", *options, str(cases)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
