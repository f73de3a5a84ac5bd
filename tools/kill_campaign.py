"""Kill long jobs at random moments, start them again until they finish, and compare with a run that nothing disturbed.

    python tools/kill_campaign.py --kills 100 -o results/kills.json

While a job is dead, every file that a reader would open is opened by rbue's own readers, and what it says must be what
the undisturbed run says. In the end all weights, measurements, rows and predictions must be the same, bit for bit; only
seconds differ. A quarter of the kills wait, after their moment, for a file that is being written. A job is a process
forked from one that has imported everything: that takes longer than the job itself, and nothing is written in it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rbue.errors import RbueError
from rbue.files import checksum, read_json, read_safetensors, write_json
from rbue.lab import data
from rbue.lab.cli import app
from rbue.lab.environment import facts
from rbue.lab.runs.folders import find_runs
from rbue.lab.training.trainer import read_log

SECONDS = {"seconds", "training_seconds", "prediction_seconds"}
"""All that may differ between two runs."""
NOT_COMPARED = {"checksums.json"}
"""Checksums of files with seconds in them."""
UNFINISHED = ".partial"
IMPORTED_LATE = ("torch._dynamo", "torch.utils.tensorboard", "matplotlib.pyplot", "rbue.lab.report.run_report")
IMPORTED_LATE += ("rbue.lab.paper.runner", "rbue.lab.runs.serving", "rbue.lab.shift")


@dataclass(frozen=True)
class Job:
    """A command of rbue, run in a folder of its own.

    Attributes:
        command: its words.
        before: a command whose result it needs; ``RUN`` is the run that this left.
        idle: the same command with next to nothing to do, whose time is that of starting; without one, a job has
            started when it has written its first file.
        images: how many images to lay into ``images/``.
    """

    name: str
    command: str
    before: str = ""
    idle: str = ""
    images: int = 0


_SMALL = "--width 0.25 --batch 128 --device cpu --runs runs"
_PREDICT = "predict RUN images --device cpu -o out.csv --samples"
JOBS = (
    Job("train", f"train --method mc-droprelu:0.9 --epochs 15 {_SMALL}"),
    Job("train, weights averaged", f"train --method single --epochs 15 --average swa {_SMALL}"),
    Job(
        "paper run",
        "paper run table1-cifar10 --quick --models vgg13 --methods single,mc-droprelu --seeds 1 --epochs 3 --samples 4 "
        "--no-shift --device cpu --runs runs",
    ),
    Job(
        "shift",
        "shift RUN --corruptions fog,contrast,gaussian_noise,motion_blur,pixelate,snow --severities 1,3,5 --samples 20 "
        "--device cpu --runs runs",
        before=f"train --data colour-digits --method mc-droprelu:0.9 --epochs 1 {_SMALL}",
    ),
    Job(
        "predict",
        f"{_PREDICT} 600",
        before=f"train --method mc-droprelu:0.9 --epochs 1 {_SMALL}",
        idle=f"{_PREDICT} 1",
        images=300,
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the campaign and write what came out; 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="at least so many in all (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--jobs", default="", help="only those whose names hold this")
    parser.add_argument("-o", "--output", type=Path, default=Path("kills.json"))
    given = parser.parse_args(words)
    chosen = [job for job in JOBS if given.jobs in job.name]
    torch.set_num_threads(1)  # a forked process must not wait for threads that stayed with its parent
    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):
            import_module(name)
    moments, outcomes = random.Random(given.seed), []
    with tempfile.TemporaryDirectory() as place:
        for number, job in enumerate(chosen):
            kills = given.kills * (number + 1) // len(chosen) - given.kills * number // len(chosen)
            campaign = Campaign(job, Path(place) / str(number), moments)
            outcomes.append(campaign.run(kills))
            tell(f"{job.name}: {outcomes[-1]}")
            write_json(given.output, {"seed": given.seed, "jobs": outcomes, "environment": facts()})
            shutil.rmtree(Path(place) / str(number))
    tell(f"{sum(one['kills'] for one in outcomes)} kills, {sum(len(one['troubles']) for one in outcomes)} troubles")
    return 0 if all(one["equal"] and not one["troubles"] for one in outcomes) else 1


def tell(text: str) -> None:
    """Say how it goes."""
    print(text, file=sys.stderr, flush=True)


class Process:
    """A command of rbue in a folder, in a group of processes of its own."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.words, self.output, self.code = words, folder.parent / "output.txt", None
        self.pid = os.fork()
        with contextlib.suppress(OSError):  # in both processes, as either may be the first; one that has ended has none
            os.setpgid(self.pid, self.pid)
        if self.pid == 0:
            os._exit(self._child(folder))

    def _child(self, folder: Path) -> int:
        os.chdir(folder)
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "RBUE_DATA": ""}
        with self.output.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            app(self.words, prog_name="rbue")
        except SystemExit as end:
            return int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 1

    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code is None

    def end(self) -> None:
        """Wait for its end, which must be a good one."""
        while self.is_running():
            time.sleep(0.01)
        if self.code != 0:
            raise RbueError(f"rbue {' '.join(self.words)} ended with {self.code}: {self.output.read_text()}")

    def kill(self) -> bool:
        """Kill it and its group, unless it has ended; returns when nothing of it is left."""
        if not self.is_running():
            return False
        os.killpg(self.pid, signal.SIGKILL)
        while self.is_running():
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.pid, 0)
                time.sleep(0.002)
        return self.code == -signal.SIGKILL


class Campaign:
    """One job, undisturbed and killed."""

    def __init__(self, job: Job, place: Path, moments: random.Random) -> None:
        self.job, self.place, self.moments = job, place, moments
        self.stages: Counter[str] = Counter()
        self.starts = self.in_writing = 0
        self.troubles: list[str] = []

    def run(self, kills: int) -> dict[str, Any]:
        """Kill the job so often, then let it finish; what came of it."""
        given = self.place / "given"
        self._prepare(given)
        whole = shutil.copytree(given, self.place / "whole")
        undisturbed, to_start = self._undisturbed(whole)
        seconds, first = undisturbed, to_start
        self.reference = {name: content(whole / name) for name in compared(whole)}
        tell(f"{self.job.name}: {undisturbed:.1f} s undisturbed, of which {to_start:.1f} s to start")
        finished, equal = 0, True
        while self.stages.total() < kills:
            folder, start = shutil.copytree(given, self.place / "killed"), time.monotonic()
            kills_before = self.stages.total()
            while self._is_killed(folder, seconds, first):
                self._look(folder)
            if self.stages.total() == kills_before:  # other work on this machine may have begun or ended
                seconds, before = time.monotonic() - start, seconds
                first *= seconds / before
            finished += 1
            self._look(folder)
            now = {name: content(folder / name) for name in compared(folder)}
            if now != self.reference:
                equal = False
                names = sorted(self.reference.keys() | now.keys())
                self.troubles += [f"{name} differs" for name in names if now.get(name) != self.reference.get(name)]
            self.troubles += [f"{path.name} was left" for path in left_over(folder)]
            shutil.rmtree(folder)
        return {
            "job": self.job.name,
            "command": f"rbue {self.job.command}",
            "undisturbed_seconds": round(undisturbed, 1),
            "seconds_to_start": round(to_start, 1),
            "kills": self.stages.total(),
            "starts": self.starts,
            "finished": finished,
            "killed_while_writing": self.in_writing,
            "killed_at": dict(sorted(self.stages.items())),
            "equal": equal,
            "troubles": self.troubles,
        }

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, pixels in enumerate(data.load("digits", "test").images[: self.job.images]):
            buffer = io.BytesIO()
            Image.fromarray(pixels.squeeze()).save(buffer, "png")
            (folder / "images").mkdir(exist_ok=True)
            (folder / "images" / f"{number:04}.png").write_bytes(buffer.getvalue())
        if self.job.before:
            self._start(self.job.before, folder).end()

    def _start(self, command: str, folder: Path) -> Process:
        run = next((str(one.path.relative_to(folder)) for one in find_runs(folder / "runs")), "")
        return Process([run if word == "RUN" else word for word in command.split()], folder)

    def _undisturbed(self, folder: Path) -> tuple[float, float]:
        """Seconds that the job takes, and those until it really begins."""
        before, first = work_of(folder), 0.0
        start = time.monotonic()
        process = self._start(self.job.command, folder)
        while process.is_running():
            if not first and work_of(folder) != before:
                first = time.monotonic() - start
            time.sleep(0.01)
        seconds = time.monotonic() - start
        process.end()
        if self.job.idle:
            idle = shutil.copytree(self.place / "given", self.place / "idle")
            start = time.monotonic()
            self._start(self.job.idle, idle).end()
            first = time.monotonic() - start
        return seconds, first

    def _is_killed(self, folder: Path, seconds: float, first: float) -> bool:
        """Start the job, and kill it unless it finishes before."""
        starting = self.moments.random() < 0.05
        moment = self.moments.uniform(0, first) if starting else self.moments.uniform(0.95 * first, 1.05 * seconds)
        aimed = self.moments.random() < 0.25
        self.starts += 1
        left, start = unfinished(folder), time.monotonic()
        process = self._start(self.job.command, folder)
        try:
            while process.is_running() and time.monotonic() - start < moment:
                time.sleep(0.002)
            while aimed and process.is_running() and unfinished(folder) <= left:
                pass
        finally:
            moment, killed = time.monotonic() - start, process.kill()
        if not killed:
            process.end()
            return False
        self.in_writing += not unfinished(folder) <= left
        how_far = stage(folder)
        if moment < first:
            how_far = "starting"
        elif self.job.idle:
            how_far = f"after {min(100, round(10 * (moment - first) / (seconds - first)) * 10)} % of the work"
        self.stages[how_far] += 1
        tell(f"  kill {self.stages.total()} after {moment:.1f} s: {how_far}")
        return True

    def _look(self, folder: Path) -> None:
        """Open everything as a reader would; what is there must be a part of what will be there."""
        for name in compared(folder):
            try:
                found = content(folder / name)
            except Exception as error:
                self.troubles.append(f"{name} cannot be read: {error}")
                continue
            if name not in self.reference or not is_part(found, self.reference[name]):
                self.troubles.append(f"{name} says something else")
        for run in find_runs(folder / "runs"):
            for path in run.path.glob("*.json"):
                try:
                    run.read(path.stem)  # with its checksum
                except RbueError as error:
                    self.troubles.append(str(error))


def work_of(folder: Path) -> set[Path]:
    """The files that hold some of the work of a job."""
    return {path for path in folder.rglob("*.*") if path.name not in (".lock", "config.json", "environment.json")}


def unfinished(folder: Path) -> set[str]:
    """The files that are being written, or were when a job was killed."""
    return {name for _, _, names in os.walk(folder) for name in names if name.endswith(UNFINISHED)}


def left_over(folder: Path) -> list[Path]:
    """What should be gone once a job is done; the cache of damaged images is cleared a day later."""
    found = [*folder.rglob(f"*{UNFINISHED}"), *folder.rglob(".lock")]
    return [path for path in found if folder / "cache" not in path.parents]


def compared(folder: Path) -> Iterator[str]:
    """The files of a folder that a reader would open."""
    kinds = {".json", ".jsonl", ".npy", ".safetensors", ".csv", ".svg"}
    for path in sorted(folder.rglob("*")):
        if path.suffix in kinds and path.name not in NOT_COMPARED:
            yield str(path.relative_to(folder))


def content(path: Path) -> Any:
    """What a file says, but for seconds; an error if it is not whole."""
    if path.suffix == ".json":
        return timeless(read_json(path))
    if path.suffix == ".jsonl":
        return timeless(read_log(path))
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return [array.shape, str(array.dtype), checksum(array.tobytes())]
    if path.suffix == ".safetensors":
        tensors, note = read_safetensors(path)
        bits = {name: checksum(tensor.contiguous().numpy().tobytes()) for name, tensor in tensors.items()}
        return {"tensors": bits, "note": timeless(note)}
    return checksum(path.read_bytes())


def timeless(found: Any) -> Any:
    """The same without seconds."""
    if isinstance(found, dict):
        return {name: timeless(value) for name, value in found.items() if name not in SECONDS}
    return [timeless(value) for value in found] if isinstance(found, list) else found


def is_part(found: Any, whole: Any) -> bool:
    """Whether all that is said is said by the undisturbed run too; a checkpoint of an earlier epoch need not be."""
    if isinstance(found, dict) and isinstance(whole, dict):
        if found.keys() == {"tensors", "note"} and "epoch" in found["note"]:
            earlier = found["note"]["epoch"] < whole["note"]["epoch"]
            return earlier or found == whole
        return all(name in whole and is_part(value, whole[name]) for name, value in found.items())
    if isinstance(found, list) and isinstance(whole, list):
        return all(value in whole for value in found)
    return bool(found == whole)


def stage(folder: Path) -> str:
    """How far a job had come, by its files."""
    done: list[str] = []
    for run in find_runs(folder / "runs"):
        if (run.path / "shift.json").exists():
            done.append(f"{len(run.read('shift')['rows'])} sets measured")
        elif (run.path / "results.json").exists():
            done.append("measured")
        elif (run.path / "training.json").exists():
            done.append("trained")
        else:
            epochs = read_safetensors(run.state)[1]["epoch"] if run.state.exists() else 0
            done.append(f"{epochs} epochs kept")
    return ", ".join(done) or "nothing kept yet"


if __name__ == "__main__":
    sys.exit(main())
