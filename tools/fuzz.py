"""Give readers thousands of damaged files, and see that each gives a right answer or a clear error.

    python tools/fuzz.py                         10,400 inputs; writes results/fuzzing.json
    python tools/fuzz.py --inputs 200 -o /tmp/f.json
    python tools/fuzz.py --only 'rbue.save' --input 17   one input again, with its traceback

An input follows from the seed, its target and its number alone. Readers run in a process of their own with little
memory, so that a crash, a hang or a bomb is seen. What counts as a failure: another exception than the documented ones;
an error that is not one line, is empty, or does not name the file; an answer out of range; the end of the process; more
than :data:`SECONDS` or :data:`MEMORY`; anything written or changed but the damaged file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from random import Random
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60.0
"""For one input; the slowest takes a tenth of that on a quiet machine."""
MEMORY = 1 << 30
"""Bytes of memory that a process may use beyond what it has after its first whole file."""
GOOD = ("same", "valid", "refused")


# ---- the process that reads


def work(name: str, seed: int, first: int, last: int, place: Path, report: Any) -> None:
    """Read the inputs of a target from ``first`` to before ``last``, and report each."""
    from fuzz_targets import targets

    target, base, folder = targets()[name], place / "base", place / "work"
    if not base.exists():
        made = Path(tempfile.mkdtemp(dir=place))
        target.build(made)
        made.rename(base)
    _renew(folder, base)
    for file in sorted({file for pattern in target.files for file in base.glob(pattern)}):
        relative = file.relative_to(base)
        target.expected[relative] = target.read(folder, relative, Random(0))
        _renew(folder, base)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, hard))
    outside = _listing(place, folder)
    for number in range(first, last):
        report({"input": number})
        outcome, detail = judge(target, seed, number, base, folder)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - used
        if grown > MEMORY:
            outcome, detail = "memory", f"{grown >> 20} MiB more; {detail}"
        if _listing(place, folder) != outside:
            outcome, detail = "wrote elsewhere", f"{sorted(set(_listing(place, folder)) ^ set(outside))[:3]}"
            outside = _listing(place, folder)
        _renew(folder, base)
        report({"input": number, "outcome": outcome, "detail": detail})


def judge(target: Any, seed: int, number: int, base: Path, folder: Path, loud: bool = False) -> tuple[str, str]:
    """What becomes of one input, in a folder that is a copy of ``base``."""
    random = Random(f"{seed}/{target.name}/{number}")
    file, word, data = target.damaged(random, base)
    (folder / file).write_bytes(data)
    try:
        return target.judged(folder, file, random), word
    except target.errors as error:
        if loud:
            traceback.print_exc()
        fault = _fault(str(error), (file.name, str(folder)) if target.names_file else ("",))
        return ("bad message", f"{word}: {fault}: {error}") if fault else ("refused", word)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are no answers either
        if loud:
            traceback.print_exc()
        lines = traceback.extract_tb(error.__traceback__)
        ours = [line for line in lines if "/src/rbue/" in line.filename] or lines
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        kind = "wrong answer" if type(error).__name__ == "Wrong" else "wrong exception"
        return kind, f"{word} in {file}: {type(error).__name__} at {where}: {str(error)[:200]}"


def _fault(message: str, names: tuple[str, ...]) -> str:
    """What is wrong with the words of an error; a set of several files is named by its folder."""
    if not message.strip():
        return "empty"
    if "\n" in message.strip():
        return "several lines"
    if len(message) > 2000:
        return f"{len(message)} letters"
    if not message.rstrip().endswith((".", "?", ")")):
        return "no sentence"
    return "" if any(name in message for name in names) else f"does not name {names[0]}"


def _listing(place: Path, folder: Path) -> list[tuple[str, int, int]]:
    """Everything around the work folder: home, the folder that the process runs in, the whole files."""
    found = [path for path in sorted(place.rglob("*")) if folder not in (path, *path.parents)]
    return [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in found if path.is_file()]


def _renew(folder: Path, base: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)


# ---- the process that watches


class Worker:
    """A process that reads, and its reports."""

    def __init__(self, name: str, seed: int, first: int, last: int, place: Path) -> None:
        words = [sys.executable, __file__, "--worker", name, str(seed), str(first), str(last), str(place)]
        home = place / "home"
        home.mkdir(parents=True, exist_ok=True)
        (place / "here").mkdir(exist_ok=True)
        (place / "here" / "fuzz_evil.py").write_text("open('pwned', 'w').close()\n")
        paths = [str(ROOT / "src"), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1", "RBUE_NATIVE": "0",
            "MPLCONFIGDIR": str(place.parent / "matplotlib"), "TMPDIR": str(place.parent / "tmp"),
        }  # fmt: skip
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=place / "here"
        )
        self.reports: Queue[dict[str, Any] | None] = Queue()
        self.errors: list[str] = []
        Thread(target=self._listen, daemon=True).start()
        Thread(target=self._listen_to_errors, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith("\x01"):
                self.reports.put(json.loads(line[1:]))
        self.reports.put(None)

    def _listen_to_errors(self) -> None:
        for line in self.process.stderr or ():
            self.errors = [*self.errors[-30:], line]

    def stop(self) -> int:
        """End it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        return self.process.wait()


def fuzz(name: str, seed: int, count: int, place: Path) -> tuple[Counter[str], list[dict[str, Any]], float]:
    """How the inputs of a target ended, those that failed, and the seconds."""
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    begun, at = time.perf_counter(), 0
    (place.parent / "tmp").mkdir(exist_ok=True)  # beside what is watched
    while at < count:
        worker, started, patience = Worker(name, seed, at, count, place), -1, 5 * SECONDS
        while True:
            hung = False
            try:
                report = worker.reports.get(timeout=patience)
            except Empty:
                report, hung = None, True
            if report is None or "outcome" not in report:
                if report is not None:
                    started, patience = report["input"], SECONDS
                    continue
                code = worker.stop() if hung else worker.process.wait()  # whose pipe may end before it does
                if at >= count:
                    break
                if started < at:
                    raise SystemExit(f"{name} cannot begin (exit code {code}):\n{''.join(worker.errors)}")
                outcome = "hang" if hung else "crash"
                report = {"input": started, "outcome": outcome, "detail": f"exit {code}: {''.join(worker.errors[-3:])}"}
            outcomes[report["outcome"]] += 1
            at = report["input"] + 1
            if report["outcome"] not in GOOD:
                failures.append({"target": name, **report})
                print(f"  {name} {report['input']}: {report['outcome']}: {report['detail'][:300]}", flush=True)
            if report["outcome"] in ("hang", "crash"):
                break
        worker.stop()
    return outcomes, failures, time.perf_counter() - begun


def main() -> int:
    """The command."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--inputs", type=int, default=10_400, help="how many in all")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", help="targets whose name has this text; others stay as they are in the output")
    options.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    options.add_argument("--input", type=int, help="one input of one target again, in this process")
    options.add_argument("-o", "--output", type=Path, default=ROOT / "results" / "fuzzing.json")
    given = options.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
    from fuzz_targets import targets

    chosen = {name: one for name, one in targets().items() if given.only is None or given.only in name}
    if not chosen:
        options.error(f"no target has {given.only!r} in its name; there are {', '.join(targets())}")
    with tempfile.TemporaryDirectory(prefix="rbue-fuzz-") as name:
        place = Path(name)
        if given.input is not None:
            return _again(next(iter(chosen.values())), given.seed, given.input, place)
        shares = sum(one.share for one in targets().values())
        entries, failures = _before(given) if given.only else ({}, list[dict[str, Any]]())

        def run(title: str) -> None:
            count = -(-given.inputs * chosen[title].share // shares)
            folder = place / str([*chosen].index(title))
            folder.mkdir()
            outcomes, failed, seconds = fuzz(title, given.seed, count, folder)
            failures[:] = [one for one in failures if one["target"] != title] + failed
            entries[title] = {
                "inputs": count,
                **{key: outcomes[key] for key in sorted(outcomes)},
                "seconds": round(seconds),
            }
            print(f"{title}: {entries[title]}", flush=True)
            shutil.rmtree(folder)

        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(run, reversed([*chosen])))  # the slowest first
        entries = {title: entries[title] for title in targets() if title in entries}
    content = {
        "command": _command(given),
        "inputs": sum(one["inputs"] for one in entries.values()),
        "failures": failures,
        "seconds": sum(one["seconds"] for one in entries.values()),
        "targets": entries,
        "limits": {"seconds": SECONDS, "bytes": MEMORY},
        "environment": {
            "python": platform.python_version(), "system": platform.system(), "machine": platform.machine(),
            **{one: version(one) for one in ("torch", "numpy", "pillow", "safetensors", "scipy", "starlette")},
        },
    }  # fmt: skip
    given.output.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{content['inputs']} inputs, {len(failures)} failures")
    return 1 if failures else 0


def _before(given: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What an earlier start with the same settings found of other targets."""
    found = json.loads(given.output.read_text()) if given.output.exists() else {}
    same = found.get("command") == _command(given)
    return (found["targets"], found["failures"]) if same else ({}, [])


def _command(given: argparse.Namespace) -> str:
    return f"python tools/fuzz.py --inputs {given.inputs} --seed {given.seed}"


def _again(target: Any, seed: int, number: int, place: Path) -> int:
    base, folder = place / "base", place / "work"
    base.mkdir()
    target.build(base)
    _renew(folder, base)
    outcome, detail = judge(target, seed, number, base, folder, loud=True)
    print(f"{outcome}: {detail}")
    return outcome not in GOOD


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        title, *numbers, where = sys.argv[2:]

        def say(report: dict[str, Any]) -> None:
            """One line, which is told from what others print by its first letter."""
            os.write(1, f"\x01{json.dumps(report)}\n".encode())

        work(title, *map(int, numbers), Path(where), say)  # type: ignore[arg-type]
        sys.exit(0)
    sys.exit(main())
