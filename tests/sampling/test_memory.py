"""The memory of ``predict`` does not grow with the number of samples."""

import subprocess
import sys

SCRIPT = """
import os, resource
import torch
from torch import nn
import rbue

def measure(where):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 1000),
    )
    x = torch.randn(8, 3, 4, 4)  # the outputs of all samples would be 32 MB
    rbue.convert(net, rbue.DropReLU(0.9), where=where, example=x)
    for samples in (2, 10, 1000):
        rbue.predict(net, x, samples=samples, memory=1 << 20)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)

rbue.convert(nn.ReLU(), rbue.DropReLU(0.9), example=torch.zeros(1, 1))  # imports the rest once
for where in ("all", "last"):
    child = os.fork()  # each has a peak of its own
    if child == 0:
        measure(where)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_peak_memory_is_flat_from_10_to_1000_samples():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-2000:]
    peaks = list(map(int, run.stdout.split()))
    assert len(peaks) == 6
    for _, few, many in (peaks[:3], peaks[3:]):
        assert many <= 1.05 * few
