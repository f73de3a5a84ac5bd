"""What is installed: the library without extras, the old addresses, and a wheel somewhere else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALONE = """
import sys
missing = "PIL accelerate cv2 lightning matplotlib rich scipy sklearn skimage torchmetrics transformers typer"
for name in missing.split():
    sys.modules[name] = None  # not installed
import torch, rbue
assert "torch._dynamo" not in sys.modules, "the compiler takes longer to import than torch"
net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
x = torch.randn(6, 4)
rbue.convert(net, rbue.DropReLU(0.8), example=x)
found = rbue.predict(net, x, samples=40, adaptive=rbue.Adaptive())
assert "torch._dynamo" not in sys.modules, "an eager network has no use for the compiler"
labels = torch.zeros(6, dtype=torch.int64)
assert 0 <= rbue.metrics.ece(found.probs, labels) <= 1
assert rbue.calibration.Temperature.fit(found.probs, labels).value > 0
try:
    rbue.metrics.ECE
except ImportError as error:
    print(error)
assert "ECE" in dir(rbue.metrics)
assert not hasattr(rbue.metrics, "nothing")
try:
    from rbue.lab import load_run
except ImportError as error:
    print(error)
try:
    rbue.predict(net, x, samples=2, progress=True)
except rbue.RbueError as error:
    print(error)
sys.modules["starlette"] = sys.modules["uvicorn"] = None
try:
    import rbue.serving
except ImportError as error:
    print(error)
from rbue.kernels import native
print("compiled" if native.library() is not None else "not compiled")
from rbue.__main__ import main
sys.argv = ["rbue", "methods"]
main()
"""


def alone(path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE]
    return subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path)}, cwd=cwd, text=True, capture_output=True
    )


def test_the_library_needs_torch_numpy_and_safetensors_alone(tmp_path):
    done = alone(ROOT / "src", tmp_path)
    assert "pip install rich" in done.stdout, done.stderr
    assert "rbue.metrics.ECE needs torchmetrics" in done.stdout
    assert "rbue.lab.load_run needs the package PIL; run pip install 'rbue[lab]'." in done.stdout
    assert "rbue.serving needs the package starlette; run pip install 'rbue[serve]'." in done.stdout
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "rbue: the command needs the package typer; run pip install 'rbue[lab]'."
    )


@pytest.mark.slow
def test_a_wheel_elsewhere_has_its_c_source_and_uses_it(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("rbue-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    names = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*")}
    assert {"rbue/kernels/native_kernels.c", "rbue/py.typed", "rbue/lab/paper/paper_numbers.json"} <= names
    done = alone(tmp_path / "site", tmp_path)
    assert "\ncompiled" in done.stdout, done.stderr


OLD = """
import sys, warnings
sys.modules["matplotlib"] = None  # not installed
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from rbue.models import create
    from rbue.data.corruptions import corrupt
    import rbue
    rbue.methods.parse("single")
import rbue.lab.corruptions, rbue.lab.models
assert corrupt is rbue.lab.corruptions.corrupt
assert rbue.lab.models.create is create and rbue.lab.models.__spec__.name == "rbue.lab.models"
for one in seen:
    print(one.category.__name__, one.message, one.filename)
from rbue.lab.report import page, run_report
print(page.Page("a", []).html())
"""


def test_old_addresses_work_with_a_warning_and_reports_without_matplotlib():
    done = subprocess.run([sys.executable, "-c", OLD], text=True, capture_output=True, check=True)
    lines = done.stdout.splitlines()
    assert any("FutureWarning rbue.models is now rbue.lab.models" in line and "<string>" in line for line in lines)
    assert any("rbue.data.corruptions is now rbue.lab.corruptions" in line for line in lines)
    assert "<!doctype html>" in lines
