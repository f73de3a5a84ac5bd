"""``torchrun``: several processes train and measure what one does, and start again where one of them was killed.

Slow, as every process imports everything; what each of them does has quick tests.
"""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

MODEL = """
import os, pathlib, signal, time
from torch import nn

class Network(nn.Module):
    '''Without BatchNorm, whose statistics are each process's own. A file may say which process is killed, and when.

    By then there is a checkpoint, which is written beside the training.
    '''
    def __init__(self, classes):
        super().__init__()
        hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
        self.body, self.steps = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, classes)), 0
        self.killed = pathlib.Path("killed.txt")

    def forward(self, x):
        self.steps += self.training
        if self.killed.exists() and self.killed.read_text() == f"{os.environ['RANK']} {self.steps}":
            while not list(pathlib.Path().glob("killed/**/state.safetensors")):
                time.sleep(0.02)
            self.killed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.body(x)

def factory(classes, channels, width):
    return Network(classes)
"""
SUMS = {"atol": 1e-5, "rtol": 1e-4}
"""Weights after three epochs: gradients are added up in another order."""


def started(folder, *words, processes=1, launcher=("--standalone",)):
    """A command in so many processes."""
    command = [sys.executable, "-m", "rbue", *map(str, words)]
    if processes > 1 or "--nnodes=2" in launcher:
        command[1:1] = ["-m", "torch.distributed.run", *launcher, f"--nproc-per-node={processes}"]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=folder, **pipes)


def ended(process):
    """What came of a command: exit code, standard output and error."""
    try:
        said = process.communicate(timeout=280)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def rbue(folder, *words, **how):
    return ended(started(folder, *words, **how))


def training(folder, runs, *more):
    """The words of a training."""
    (folder / "plain_mlp.py").write_text(MODEL)
    words = ["train", "--data", "digits", "--model", "plain_mlp:factory", "--method", "mc-droprelu:0.8"]
    return [*words, "--epochs", 3, "--batch", 60, "--runs", runs, *more]


def train(folder, runs, *more, killed=None, restarts=0, **how):
    if killed is not None:
        (folder / "killed.txt").write_text(killed)
    return rbue(folder, *training(folder, runs, *more), launcher=("--standalone", f"--max-restarts={restarts}"), **how)


def run_in(folder, runs):
    (run,) = (folder / runs).glob("*/*/*/training.json")
    return run.parent


def weights(folder, runs):
    return load_file(run_in(folder, runs) / "weights.safetensors")


def curve(folder, runs):
    epochs = [json.loads(line) for line in (run_in(folder, runs) / "log.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    return [epoch["loss"] for epoch in epochs]


@pytest.mark.parametrize(
    ("processes", "more"), [(2, ()), (2, ("--recipe", "strong")), (3, ("--mixup", 0.3, "--average", "ema"))]
)
def test_several_processes_train_what_one_does(tmp_path, processes, more):
    """1,442 images in batches of 60 leave a last one of 2, of which the first of three processes has none."""
    one = train(tmp_path, "one", "--json", *more)
    several = train(tmp_path, "several", "--json", *more, processes=processes)
    (alone,), (together,) = (json.loads(done.stdout)["networks"] for done in (one, several))
    assert (alone["processes"], together["processes"]) == (1, processes)
    for name, value in weights(tmp_path, "one").items():
        torch.testing.assert_close(weights(tmp_path, "several")[name], value, **SUMS)
    assert curve(tmp_path, "several") == pytest.approx(curve(tmp_path, "one"), rel=1e-5)
    assert together["accuracy"] == alone["accuracy"]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_starts_again_and_ends_in_the_same_bits(tmp_path, killed):
    """In the second of three epochs of 25 steps; the first process holds the lock of the folder."""
    train(tmp_path, "calm", processes=2)
    done = train(tmp_path, "killed", processes=2, restarts=1, killed=f"{killed} 40")
    assert done.returncode == 0, done.stderr
    assert "one of the 2 processes has ended" in done.stderr
    assert "Traceback" not in done.stderr
    assert "continued" in done.stdout
    for name, value in weights(tmp_path, "calm").items():
        assert weights(tmp_path, "killed")[name].equal(value)
    assert curve(tmp_path, "killed") == curve(tmp_path, "calm")
    assert not list((tmp_path / "killed").glob("**/*.partial"))


def test_two_launchers_start_again_together(tmp_path):
    """As on two machines, which count restarts apart: only the one whose process was killed has had one."""
    (tmp_path / "killed.txt").write_text("1 40")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=one"]
    launcher = ["--nnodes=2", "--max-restarts=1", *meeting]
    words = training(tmp_path, "killed")
    first, second = (started(tmp_path, *words, launcher=launcher) for _ in range(2))
    done = [ended(first), ended(second)]
    assert [one.returncode for one in done] == [0, 0], done
    assert sorted("continued" in one.stdout for one in done) == [False, True]
    train(tmp_path, "calm", processes=2)
    for name, value in weights(tmp_path, "calm").items():
        assert weights(tmp_path, "killed")[name].equal(value)


def test_a_training_goes_on_with_another_number_of_processes(tmp_path):
    assert train(tmp_path, "killed", processes=2, killed="1 40").returncode == 1
    assert not list((tmp_path / "killed").glob("**/training.json"))
    assert train(tmp_path, "killed", processes=3).returncode == 0
    train(tmp_path, "one")
    for name, value in weights(tmp_path, "one").items():
        torch.testing.assert_close(weights(tmp_path, "killed")[name], value, **SUMS)
    assert curve(tmp_path, "killed") == pytest.approx(curve(tmp_path, "one"), rel=1e-5)


def test_two_processes_measure_what_one_does(tmp_path):
    """The damaged sets bit for bit; the test images, of which there is one batch, to the last digits."""
    words = ["--data", "colour-digits-few", "--width", 0.25, "--method", "mc-droprelu:0.8", "--epochs", 1]
    assert rbue(tmp_path, "train", *words, "--runs", "one").returncode == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    found = {}
    for runs, processes in (("one", 1), ("two", 2)):
        run = run_in(tmp_path, runs)
        how = ["--samples", 12, "--json"]
        clean = rbue(tmp_path, "evaluate", run, *how, processes=processes)
        sets = ["--corruptions", "fog,contrast,shot_noise", "--severities", "1,5", "--no-cache"]
        shifted = rbue(tmp_path, "shift", run, *sets, *how, "-o", f"figures {runs}", processes=processes)
        few = ["--far", "digits", "--images", 100, "--training-images", 200, "--k", 5]
        apart = rbue(tmp_path, "ood", run, *few, *how, processes=processes)
        assert {clean.returncode, shifted.returncode, apart.returncode} == {0}, clean.stderr + shifted.stderr
        scores = json.loads(apart.stdout)["runs"][0]["result"]["sets"]["digits"]["scores"]
        found[runs] = json.loads(clean.stdout)["result"], json.loads(shifted.stdout)["runs"][0]["rows"], scores, run
    (one, rows, scores, first), (two, other_rows, other_scores, second) = found["one"], found["two"]
    assert other_rows == rows
    for name, measures in scores.items():
        assert other_scores[name] == pytest.approx(measures, abs=1e-4), name
    for file in sorted((first / "shift").iterdir()):
        assert (second / "shift" / file.name).read_bytes() == file.read_bytes()
    assert two["processes"] == 2
    assert two["accuracy"] == one["accuracy"]
    for name in ("ece", "nll", "brier", "entropy", "mutual_information", "aurc", "mean_jsd"):
        assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("evaluate", "nothing"), "there is no run 'nothing'"),
        (("train", "--batch", 1, "--epochs", 1), "a batch of 1 cannot be shared by 2 processes"),
    ],
    ids=["before they meet", "together"],
)
def test_an_error_is_one_sentence(tmp_path, words, sentence):
    done = rbue(tmp_path, *words, processes=2)
    assert done.returncode == 1
    said, _, by_torchrun = done.stderr.partition("Traceback")  # torchrun's own
    assert said.count("error:") == 1
    assert sentence in said
    assert "ChildFailedError" in by_torchrun
    assert not done.stdout
