"""`rbue predict -o NAME.parquet` over 100,000 images, by one process, several, and Ray: speed, memory, kills, rows.

    python benchmarks/scoring.py [--images 100000] [--samples 5] [--out results/scoring.json]

A small CNN is trained on digits. Parquet files of one row group each hold test digits with noise, as PNG files in a
column as Hugging Face `datasets` write it; one in 5,000 is cut off. Every command is a process of its own, with one
thread. The peak of resident memory is what Linux notes for a process (VmHWM), read until it ends. Of a pool and on Ray
as many workers as there are cores share them. One of them gets a SIGKILL after the first block, the command itself
after half of them; then the same command is given again. All files are compared with those of the local engine, byte by
byte.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from rbue.files import write_json
from rbue.lab import data
from rbue.lab.environment import facts

BROKEN = 5000
"""One image in so many is cut off."""
WORKERS = (b"ray::rbue", b"spawn_main")
"""What the command lines of workers hold, on Ray and of a pool."""
ENGINES = {
    "local": ["--device", "cpu"],
    "processes": ["--device", "cpu", "--engine", "processes", "--cpus", "1"],
    "ray": ["--engine", "ray"],
}


def write_images(path: Path, count: int) -> None:
    digits = np.asarray(data.load("digits", "test").images[..., 0]).astype(int)
    random = np.random.RandomState(count)
    cells = []
    for number, which in enumerate(random.randint(len(digits), size=count)):
        noisy = np.clip(digits[which] + random.randint(-20, 21, (8, 8)), 0, 255).astype(np.uint8)
        content = io.BytesIO()
        Image.fromarray(noisy).save(content, "PNG")
        cut = 60 if number % BROKEN == BROKEN // 2 else None
        cells.append({"bytes": content.getvalue()[:cut], "path": f"{number}.png"})
    pq.write_table(pa.table({"image": cells, "number": np.arange(count)}), path, row_group_size=1 << 20)


def peak(pid: int) -> int:
    """The most memory a process has had, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def workers() -> list[int]:
    """Processes at a task of this benchmark, which takes them to its folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
            if any(one in words for one in WORKERS) and os.readlink(path.with_name("cwd")) == os.getcwd():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    seconds: float
    out: str
    remarks: str
    peaks: dict[str, int] = field(default_factory=dict)


def command(words: list[str], act: Callable[[subprocess.Popen], None] = lambda _: None) -> Ended:
    """Run a command; ``act`` is called every few milliseconds and may kill something."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start, peaks = time.monotonic(), {"command": 0, "worker": 0}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as remarks:
        process = subprocess.Popen(
            [sys.executable, "-m", "rbue", *words], env=environment, stdout=out, stderr=remarks, text=True
        )
        while process.poll() is None:
            peaks["command"] = max(peaks["command"], peak(process.pid))
            peaks["worker"] = max([peaks["worker"], *map(peak, workers())])
            act(process)
            time.sleep(0.02)
        seconds = time.monotonic() - start
        out.seek(0)
        remarks.seek(0)
        return Ended(process.returncode, seconds, out.read(), remarks.read()[-2000:], peaks)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))}


class Killer:
    """Kills a worker when one block is done, and the command when half of them are."""

    def __init__(self, folder: Path, blocks: int) -> None:
        self.folder, self.blocks, self.worker, self.command = folder, blocks, 0, 0

    def __call__(self, process: subprocess.Popen) -> None:
        done = len(list(self.folder.glob("part-*.parquet")))
        if not self.worker and done >= 1 and (found := workers()):
            os.kill(found[0], signal.SIGKILL)
            self.worker = done
        if self.worker and done > self.worker and done >= self.blocks // 2:
            self.command = done
            process.kill()


def summary(ended: Ended, images: int) -> dict[str, Any]:
    """Seconds are those of the whole command; images a second those of its part that predicts."""
    said = json.loads(ended.out)
    assert ended.code == bool(said["unreadable"]), ended
    assert said["images"] == images
    return {
        "images": images,
        "unreadable": said["unreadable"],
        "predicted_now": said["predicted_now"],
        "command_seconds": round(ended.seconds, 2),
        "predicting_seconds": round(said["seconds"], 2),
        "images_a_second": round(said["predicted_now"] / said["seconds"], 1),
        "peak_mib": {name: round(value / 2**20, 1) for name, value in ended.peaks.items() if value},
    }


def measure(count: int, samples: int, folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    trained = command(["train", "--method", "mc-droprelu:0.9", "--epochs", "8", "--device", "cpu", "--json"])
    run = json.loads(trained.out)["run"]
    sizes = [count // 10, count // 2, count]
    for size in sizes:
        write_images(Path(f"{size}.parquet"), size)

    def words(size: int, out: str, *more: str) -> list[str]:
        return ["predict", run, f"{size}.parquet", "--samples", str(samples), "-o", out, "--json", *more]

    found: dict[str, Any] = {"load_of_the_machine_before": os.getloadavg()[0], **{engine: [] for engine in ENGINES}}
    for size in sizes:
        for engine, more in ENGINES.items():
            ended = command(words(size, f"{engine}-{size}.parquet", *more))
            found[engine].append(summary(ended, size))
            print(engine, found[engine][-1], flush=True)
    wanted = {size: parts(Path(f"local-{size}.parquet")) for size in sizes}
    found["kills"], found["files_equal_to_local"] = {}, {}
    for engine, more in list(ENGINES.items())[1:]:
        killed = Path(f"{engine}-killed.parquet")
        found["kills"][engine] = after_kills(killed, len(wanted[count]), count, words(count, str(killed), *more))
        equal = {f"{size} images": parts(Path(f"{engine}-{size}.parquet")) == wanted[size] for size in sizes}
        found["files_equal_to_local"][engine] = {**equal, "killed and continued": parts(killed) == wanted[count]}
        print(engine, found["kills"][engine], found["files_equal_to_local"][engine], flush=True)
    return found


def after_kills(folder: Path, blocks: int, images: int, words: list[str]) -> dict[str, Any]:
    """What a command that is killed, and given again, comes to."""
    killer = Killer(folder, blocks)
    first = command(words, killer)
    assert first.code == -signal.SIGKILL, first
    again = summary(command(words), images)
    index = pq.read_table(folder, columns=["index"]).column(0).to_numpy()
    return {
        "blocks": blocks,
        "worker_killed_after_blocks": killer.worker,
        "command_killed_after_blocks": killer.command,
        "predicted_by_the_second_command": again["predicted_now"],
        "rows": len(index),
        "rows_twice": len(index) - len(np.unique(index)),
        "rows_missing": images - len(np.unique(index)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/scoring.json"))
    asked = parser.parse_args()
    out = asked.out.absolute()
    with tempfile.TemporaryDirectory(prefix="rbue-scoring-") as folder:
        before = os.getcwd()
        found = measure(asked.images, asked.samples, Path(folder))
        os.chdir(before)
    versions = {name: version(name) for name in ("ray", "pyarrow")}
    setting = {"network": "small_cnn on digits, mc-droprelu:0.9", "samples": asked.samples, "workers": os.cpu_count()}
    write_json(out, {"date": str(date.today()), **setting, **found, "versions": versions, "environment": facts()})


if __name__ == "__main__":
    main()
