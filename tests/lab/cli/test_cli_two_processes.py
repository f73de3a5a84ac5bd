"""Two real processes on one run: one works, the other waits or says who works; after a kill the next goes on."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_runs import TINY

from rbue.lab.active.loop import ActiveConfig
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training import recipe_for
from rbue.lab.training.checkpoint import read_tensors
from rbue.lab.training.trainer import read_log

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
HOLD = """
import sys, time
from pathlib import Path
from rbue.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def hold():
    """Has a folder locked by a process of its own, which is given; it is killed at the end."""
    processes = []

    def start(folder: Path):
        words = [sys.executable, "-c", HOLD, str(folder / ".lock")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def in_use(said: str, process: subprocess.Popen) -> bool:
    return f"is in use by process {process.pid} on {platform.node()} since 2" in " ".join(said.split())


def killed(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


CONFIG = RunConfig(width=0.25, recipe=recipe_for("digits", epochs=1, batch=128))
PAPER = (
    "paper",
    "run",
    "table1-cifar10",
    "--quick",
    "--models",
    "vgg13",
    "--epochs",
    "1",
    "--seeds",
    "1",
    "--no-shift",
)
QUICK = Settings(quick=True, models=("vgg13",), epochs=1).config("cifar10", "vgg13", "single", 0)
ACTIVE = ("active", "--method", "single", "--start", "20", "--take", "5", "--rounds", "1", *TINY)
OF_ACTIVE = ActiveConfig(CONFIG, "random", 20, 5, steps=None)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("train", *TINY), RunFolder.of(CONFIG, Path("runs"))),
        (("compare", "--methods", "single", *TINY), RunFolder.of(CONFIG, Path("runs"))),
        ((*PAPER, "--methods", "single"), RunFolder.of(QUICK, Path("runs"))),
        ((*ACTIVE, "--acquire", "random"), OF_ACTIVE.folder(Path("runs"))),
    ],
    ids=("train", "compare", "paper", "active"),
)
def test_the_second_says_who_works_and_goes_on_after_a_kill(words, folder, hold, command):
    holder = hold(folder.path)
    said = command(*words, code=1).stderr
    assert in_use(said, holder), said
    assert not (folder.path / "training.json").exists()
    killed(holder)
    assert (folder.path / ".lock").exists()
    start = time.monotonic()
    assert "waited" not in command(*words).stderr
    assert time.monotonic() - start < 60
    assert not (folder.path / ".lock").exists()


def test_the_rest_of_a_comparison_is_done(hold, command):
    holder = hold(RunFolder.of(CONFIG, Path("runs")).path)
    result = command("compare", "--methods", "single,mc-droprelu", "--samples", 2, *TINY, code=1)
    assert in_use(result.stderr, holder)
    assert "mc-droprelu:0.9" in result.stdout
    assert len(list(Path("runs").glob("**/results.json"))) == 1


@pytest.mark.filterwarnings("default::rbue.errors.RbueWarning")
@pytest.mark.parametrize("words", [("evaluate",), ("shift", "--corruptions", "fog", "--severities", 1)])
def test_measurements_wait_for_their_turn(words, hold, as_json, command):
    run = Path(as_json("train", "--data", "colour-digits-few", *TINY)["run"])
    holder = hold(run)
    threading.Timer(4.0, killed, (holder,)).start()
    result = command(words[0], run, *words[1:], "--samples", 1)
    assert in_use(result.stderr, holder), result.stderr
    assert "It is waited for" in result.stderr
    assert (run / ("results.json" if words[0] == "evaluate" else "shift.json")).exists()


def test_trainings_of_two_processes(tmp_path):
    words = [sys.executable, "-m", "rbue", "train", "--epochs", "20", "--batch", "128", "--width", "0.25"]
    config = RunConfig(width=0.25, recipe=recipe_for("digits", epochs=20, batch=128))
    folder = RunFolder.of(config, tmp_path / "runs")
    first = subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while first.poll() is None and len(read_log(folder.log)) < 3:
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)  # so that it is not done before the other has started
        second = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert second.returncode == 1
        assert in_use(second.stderr, first), second.stderr
        assert first.poll() is None
    finally:
        killed(first)
    before = read_tensors(folder.state)[1]["epoch"]
    assert before >= 1
    third = subprocess.run([*words, "--json"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert '"outcome": "continued"' in third.stdout
    assert [line["epoch"] for line in read_log(folder.log)] == list(range(20))
