"""The memory of ``predict`` does not grow with the number of samples."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from torch import nn
import rbue

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(4096, 100),
)
x = torch.randn(32, 3, 16, 16)
rbue.convert(net, rbue.DropReLU(0.9), where=sys.argv[1], example=x)
for samples in (2, 10, 1000):
    rbue.predict(net, x, samples=samples, memory=16 << 20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("where", ["all", "last"])
def test_peak_memory_is_flat_from_10_to_1000_samples(where):
    run = subprocess.run([sys.executable, "-c", SCRIPT, where], capture_output=True, text=True, check=True, timeout=200)
    _, few, many = map(int, run.stdout.split())
    assert many <= 1.05 * few
