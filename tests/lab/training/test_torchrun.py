"""Two processes train the network that one process trains."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

MODEL = """
from torch import nn

def factory(classes, channels, width):
    hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, classes))
"""


def train(folder, method, processes, *more):
    """A network without BatchNorm, whose statistics are each process's own."""
    words = ["-m", "rbue", "train", "--data", "digits", "--model", "plain_mlp:factory", "--method", method]
    words += ["--epochs", "3", "--batch", "64", "--runs", str(folder / f"runs{processes}"), "--json", *more]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-port=0"]
        words = [*launcher, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *words]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["networks"][0]


@pytest.mark.slow  # three processes that import everything; masks and steps of two ranks have quick tests
@pytest.mark.parametrize(("method", "more"), [("mc-droprelu:0.8", ()), ("mc-droprelu:0.8", ("--recipe", "strong"))])
def test_two_processes_train_what_one_does(tmp_path, method, more):
    """1,442 images in batches of 64 leave a last one of 34: equal halves, so the masks are the same ones too."""
    (tmp_path / "plain_mlp.py").write_text(MODEL)
    one, two = train(tmp_path, method, 1, *more), train(tmp_path, method, 2, *more)
    assert (one["processes"], two["processes"]) == (1, 2)
    weights = [load_file(f"{run['run']}/weights.safetensors") for run in (one, two)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=2e-4, rtol=1e-3)
    assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.01)
    assert two["loss"] == pytest.approx(one["loss"], rel=0.01)
