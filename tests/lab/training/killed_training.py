"""Train a run in processes that are killed in chosen epochs, then once without; print both weights' checksums.

Usage: python killed_training.py FOLDER METHOD KILLS SEED EPOCHS
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


def lines(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def kill_in_epoch(child, log, epochs, seconds):
    """Kill a process some seconds after the log has this many epochs, or has one more, whichever comes first.

    So the epoch does not depend on how fast the machine is; only the moment inside it does.
    """

    def is_running():
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    while lines(log) < epochs and is_running():
        time.sleep(0.002)
    end, most = time.perf_counter() + seconds, lines(log)
    while time.perf_counter() < end and lines(log) <= most and is_running():
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def checksum(config, root):
    weights = RunFolder.of(config, root).path / "weights.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def main():
    # What takes long to import comes once, before the first fork; not where tests are collected.
    import torch._dynamo  # noqa: F401
    from torch.utils import tensorboard  # noqa: F401

    folder, method, (kills, seed, count) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:6])
    recipe = recipe_for("digits", epochs=count, batch=128)
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
    moments, epoch = random.Random(seed), rest / (recipe.epochs - 1)
    epochs, log = [], RunFolder.of(config, folder / "killed").log
    for number in range(kills):
        child = run_in_child(config, folder / "killed")
        # In pairs spread over the training: one after an epoch, and one that finds it done, so that half die young.
        done = number // 2 * 2 * recipe.epochs // kills
        kill_in_epoch(child, log, done, moments.uniform(0, epoch if number % 2 == 0 else first + epoch))
        epochs.append(lines(log))
    os.waitpid(run_in_child(config, folder / "killed"), 0)
    sums = [checksum(config, folder / name) for name in ("whole", "killed")]
    print(json.dumps({"sums": sums, "epochs_when_killed": epochs, "log_lines": lines(log)}))


if __name__ == "__main__":
    main()
