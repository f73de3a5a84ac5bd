"""Train a run in processes that are killed at random moments, then once without; print both weights' checksums.

Usage: python killed_training.py FOLDER METHOD KILLS SEED
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils import tensorboard  # noqa: F401 (what is slow happens once, before the first fork)

from rbue.lab import data, environment
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for

torch.set_num_threads(1)  # a forked process must not wait for threads that stayed with its parent
CPU = torch.device("cpu")


def run_in_child(config, root):
    child = os.fork()
    if child == 0:
        try:
            train_run(config, root, CPU)
        finally:
            os._exit(0)
    return child


def checksum(config, root):
    weights = RunFolder.of(config, root).path / "weights.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def main():
    folder, method, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    recipe = recipe_for("digits", epochs=16, batch=128)
    config = RunConfig(data="digits", model="small_cnn", method=method, width=0.25, recipe=recipe)
    data.load("digits", "train")
    environment.facts()
    start = time.perf_counter()
    child, log = run_in_child(config, folder / "whole"), RunFolder.of(config, folder / "whole").log
    while not log.exists():
        time.sleep(0.002)
    first = time.perf_counter() - start
    os.waitpid(child, 0)
    rest = time.perf_counter() - start - first
    moments = random.Random(seed)
    epochs, log = [], RunFolder.of(config, folder / "killed").log
    for _ in range(kills):
        child = run_in_child(config, folder / "killed")
        time.sleep(moments.uniform(0, 2 * (first + rest / kills)))  # half of them live to see an epoch end
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        epochs.append(len(log.read_text().splitlines()) if log.exists() else 0)
    os.waitpid(run_in_child(config, folder / "killed"), 0)
    sums = [checksum(config, folder / name) for name in ("whole", "killed")]
    lines = len(log.read_text().splitlines())
    print(json.dumps({"sums": sums, "epochs_when_killed": epochs, "log_lines": lines}))


if __name__ == "__main__":
    main()
