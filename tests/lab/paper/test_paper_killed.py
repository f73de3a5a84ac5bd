"""Killed in the middle and started again: nothing trained twice, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from faked_work import place

from rbue.lab.paper.experiments import chosen
from rbue.lab.paper.results import gather
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunFolder

EPOCHS = 2
SETTINGS = Settings(quick=True, models=("vgg13",), methods=("single", "mc-dropout:0.2"), epochs=EPOCHS)
WORDS = ("--quick", "--models", "vgg13", "--methods", "single,mc-dropout:0.2", "--device", "cpu")


def test_killed_and_started_again(tmp_path):
    (experiment,) = chosen(["table1-cifar10"])
    first, second = (RunFolder.of(config, tmp_path) for config in SETTINGS.configs(experiment))
    command = [
        sys.executable,
        "-m",
        "rbue",
        "paper",
        "run",
        "table1-cifar10",
        *WORDS,
        "--epochs",
        str(EPOCHS),
        "--runs",
        str(tmp_path),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not second.state.exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert first.read("training") is not None
    assert first.read("results") is not None
    assert second.read("training") is None
    finished = {path.name: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
    logged = _epochs(second)

    outcome = run_experiments([experiment], SETTINGS, place(tmp_path))
    assert outcome.already == 1
    assert finished == {path.name: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
    assert sorted(set(_epochs(second))) == list(range(EPOCHS))
    assert _epochs(second)[: len(logged)] == logged
    assert len(_epochs(second)) <= EPOCHS + 1  # at most the epoch that was saved but not yet logged, or the reverse
    gathered = gather(experiment, SETTINGS, tmp_path)
    assert gathered.missing == ()
    assert run_experiments([experiment], SETTINGS, place(tmp_path)).done == []


def _epochs(folder):
    if not folder.log.exists():
        return []
    return [json.loads(line)["epoch"] for line in folder.log.read_text().splitlines()]
