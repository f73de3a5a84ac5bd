"""A run stopped by SIGKILL at any moment ends in the weights of a run that was never stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_training.py")


def killed(folder, method, kills=20, seed=0, epochs=16):
    command = [sys.executable, str(SCRIPT), str(folder), method, str(kills), str(seed), str(epochs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SLOW = [
    pytest.param(method, 20, 16, marks=pytest.mark.slow)
    for method in ("mc-droprelu:0.9", "svi", "snapshot-ensemble:4", "swag:3,4", "sgld:2,2,1.0")
]


@pytest.mark.parametrize(("method", "kills", "epochs"), [("mc-droprelu:0.9", 4, 6), *SLOW])
def test_kills_change_nothing(tmp_path, method, kills, epochs):
    found = killed(tmp_path, method, kills, epochs=epochs)
    assert found["sums"][0] == found["sums"][1]
    assert found["log_lines"] == epochs
    assert len(set(found["epochs_when_killed"])) > kills // 4, "the moments must fall into different epochs"
    assert not list(tmp_path.glob("killed/**/*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("method", ["single", "mc-dropout:0.5", "mc-rrelu", "mc-droprelu:0.8"])
def test_other_moments_and_methods(tmp_path, method, seed):
    found = killed(tmp_path, method, seed=seed)
    assert found["sums"][0] == found["sums"][1]
