"""Commands in processes of their own, and what they leave behind, to compare engines by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.numpy import load_file
from typer.testing import CliRunner

from rbue.files import read_json
from rbue.lab.cli import app

GRID = ("table1-cifar10", "fig-shift-cifar10", "--quick", "--models", "vgg13", "--epochs", "20")
METHODS = ("--methods", "single,mc-droprelu:0.9")


def begin(*words):
    command = [sys.executable, "-m", "rbue", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(process, code=0):
    out, err = process.communicate(timeout=500)
    assert process.returncode == code, (out[-2000:], err[-4000:])
    assert "Traceback" not in err, err[-4000:]
    return out, err


def rbue(*words, code=0):
    """A command in this process; on Ray, this process is the one that gives out the tasks."""
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="rbue")
    assert result.exit_code == code, (result.exception, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout


def wait_for(condition, process):
    """Wait until something is so, as long as a command runs."""
    while process.poll() is None:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"the command ended first: {process.communicate()}")


def in_training(root, workers):
    """The process of a training that has come past its first epoch, by the lock of its folder."""
    for state in Path(root).glob("**/state.safetensors"):
        try:
            process = int((state.parent / ".lock").read_text().split()[0])
            if process in workers() and not (state.parent / "training.json").exists():
                return process
        except (OSError, ValueError, IndexError):
            pass
    return None


TIMES = ("training_seconds", "prediction_seconds", "seconds", "environment", "environments", "side_by_side", "workers")


def without_times(content):
    if isinstance(content, dict):
        return {name: without_times(value) for name, value in content.items() if name not in TIMES}
    return [without_times(one) for one in content] if isinstance(content, list) else content


def essence(root):
    """Everything that runs came to but the time it took, by path."""
    found = {}
    for path in sorted(Path(root).glob("**/*")):
        name = str(path.relative_to(root))
        if path.name in ("results.json", "calibration.json", "shift.json", "config.json", "training.json"):
            found[name] = without_times(read_json(path))
        elif path.suffix == ".npy":
            found[name] = path.read_bytes()
        elif path.name.startswith("weights") and path.suffix == ".safetensors":
            found[name] = {key: value.tobytes() for key, value in load_file(path).items()}
    return found


def no_more(found, seconds=20):
    deadline = time.monotonic() + seconds
    while found() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not found()


def processes_here(words):
    """The processes in the current folder whose command lines hold some bytes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in path.read_bytes() and os.readlink(path.with_name("cwd")) == os.getcwd():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def grid_that_is_interrupted_and_loses_a_worker(first, again, workers, are_gone):
    """Begun in one place and gone on with in another, it comes to the same as here; gives what the second one said."""
    words = ("paper", "run", *GRID, *METHODS, "--device", "cpu", "--json", "--runs")
    process = begin(*words, "far", *first)
    wait_for(lambda: in_training("far", workers), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    _, err = finish(process, code=130)
    assert err.splitlines()[-1] == "stopped; what was finished is kept, and the same command continues from there."
    assert are_gone()
    process = begin(*words, "far", *again)
    os.kill(wait_for(lambda: in_training("far", workers), process), signal.SIGKILL)
    out, err = finish(process)
    outcome = json.loads(out)
    assert outcome["failed"] == outcome["left"] == outcome["skipped"] == []
    assert len(outcome["done"]) == len(set(outcome["done"]))
    rbue(*words, "near")
    far, near = essence("far"), essence("near")
    assert far.keys() == near.keys()
    assert sum("weights" in name for name in near) == 2
    assert [name for name in near if far[name] != near[name]] == []
    return err
