"""A process that makes corrupted sets for another, which starts it (:mod:`rbue.lab.shift.preparing`).

A process and not a thread, because most corruptions draw their random numbers image by image under Python's lock: ten
of them, on two busy cores, took as long with 2 and with 16 threads as with one. A plain child and not one of
:mod:`multiprocessing`, which would run a user's script a second time unless that is written with care.

It reads lines of JSON: first where the clean images lie, then one corruption and severity at a time, each answered by a
line that holds an error or null.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

from rbue.errors import RbueError
from rbue.lab.corruptions import corrupted
from rbue.lab.data import ImageSet
from rbue.lab.shift.rows import Cell


class Helper:
    """Such a process, seen from the one that started it; it ends when it is closed or its starter is gone.

    One thread at a time may ask it.
    """

    def __init__(self, clean: Path, images: ImageSet, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rbue.lab.shift.helper import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the starter, who ends its helpers
        )
        facts = {"name": images.name, "split": images.split, "mean": images.mean}
        self._tell({"clean": str(clean), "root": str(root), **facts})

    def make(self, cell: Cell) -> None:
        """Have one set made and cached."""
        self._tell({"corruption": cell.corruption, "severity": cell.severity})
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RbueError(
                f"a helper process ended while making {cell} (exit code {self._process.wait()}; out of memory?); "
                "the same command continues with what is missing."
            )
        problem = json.loads(answer)
        if problem is not None:
            raise RbueError(problem)

    def end(self) -> None:
        """End the process, whatever it is doing; who waits for an answer gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let go of an ended process when nobody waits for its answer any more."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer will say it
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer until there are no more questions."""
    first = json.loads(questions.readline())
    images = np.load(first["clean"], mmap_mode="r", allow_pickle=False)
    labels = np.zeros(len(images), dtype=np.int64)
    mean = tuple(first["mean"])
    clean = ImageSet(images, labels, ("unknown",), first["name"], first["split"], mean, mean)
    for line in questions:
        wanted = json.loads(line)
        problem = None
        try:
            corrupted(clean, wanted["corruption"], wanted["severity"], root=first["root"], published=False)
        except (RbueError, OSError) as error:
            problem = str(error)
        answers.write(json.dumps(problem) + "\n")
        answers.flush()


def main() -> None:
    """Be such a process; what a library prints must not get between the answers."""
    to_starter, sys.stdout = sys.stdout, sys.stderr
    with contextlib.suppress(BrokenPipeError):  # the starter is gone
        serve(sys.stdin, to_starter)
