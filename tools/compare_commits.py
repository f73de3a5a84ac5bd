"""Time two commits against each other: one benchmark, run of old and new in turns, compared row by row.

    python tools/compare_commits.py --old 8df17e0 --new main cpu_forward
    python tools/compare_commits.py --old NAME=DIR --new NAME=DIR --rounds 2 kernels --json FILE -- --trials 20

A side is a commit of this repository, or a folder that holds ``src`` and ``benchmarks``, for machines without git;
``NAME=`` says which commit that folder is. Each side runs its own ``benchmarks/BENCHMARK.py`` with the arguments after
``--``, in which ``{side}`` becomes ``old`` or ``new``. Of the files they write, every time and every peak of memory is
compared: the median over the rounds, new over old. Rows of which the sides share no code (a copy, torch's own
functions) show how far chance alone goes. Exit code 1: a row is more than 2 % worse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.02
SIDES = ("old", "new")
UNITS = {"seconds", "milliseconds", "microseconds"}
"""Keys of which everything below is a time."""
ENDINGS = ("_s", "_ms", "_us", "_mib", "bytes")
"""Of keys whose value is a time or a peak of memory; all are better when smaller."""
HEADERS = ("environment", "facts")

Values = dict[str, float]


class Side(NamedTuple):
    """One of the two commits, in a folder."""

    folder: Path
    commit: str | None


class Row(NamedTuple):
    """A number that both sides measured, in every round."""

    path: str
    old: list[float]
    new: list[float]

    @property
    def ratio(self) -> float:
        """Median of new over median of old."""
        return statistics.median(self.new) / statistics.median(self.old)


@contextmanager
def checked_out(side: str) -> Iterator[Side]:
    """The folder of a side; a commit is unpacked into one that is gone afterwards."""
    name, _, folder = side.rpartition("=")
    if Path(folder).is_dir():
        yield Side(Path(folder).resolve(), name or None)
        return
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--verify", f"{side}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"{side} is neither a folder nor a commit of {ROOT}.")
    with tempfile.TemporaryDirectory() as place:
        archive = subprocess.run([*git, "archive", side, "src", "benchmarks"], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
        yield Side(Path(place).resolve(), found.stdout.strip())


def measured(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """The times and peaks of memory in a benchmark's file, each with its path."""
    if isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            if key not in HEADERS:
                yield from measured(value, (*path, str(key)))
    elif isinstance(content, int | float) and content > 0 and (UNITS & {*path} or path[-1].endswith(ENDINGS)):
        yield " / ".join(path), float(content)


def run(side: Side, name: str, benchmark: str, arguments: list[str]) -> dict[str, Any]:
    """Run a side's benchmark in its folder; the content of the file it writes."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "result.json"
        words = [word.replace("{side}", name) for word in arguments]
        places = [str(side.folder / "src"), str(side.folder / "benchmarks"), str(side.folder)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
        if side.commit:
            environment["RBUE_COMMIT"] = side.commit
        command = [sys.executable, str(side.folder / "benchmarks" / f"{benchmark}.py"), *words, "--out", str(out)]
        code = subprocess.run(command, cwd=side.folder, env=environment, stdout=sys.stderr).returncode
        if code or not out.exists():
            sys.exit(f"{benchmark}.py of the {name} side ended with code {code}.")
        content: dict[str, Any] = json.loads(out.read_text())
        return content


def rows_of(old: list[Values], new: list[Values]) -> list[Row]:
    """The numbers that every run has, the worst last."""
    shared = [path for path in old[0] if all(path in run for run in (*old, *new))]
    rows = [Row(path, [run[path] for run in old], [run[path] for run in new]) for path in shared]
    return sorted(rows, key=lambda row: row.ratio)


def show(rows: list[Row]) -> None:
    """Print the table, and how many rows are worse."""
    width = max(len(row.path) for row in rows)
    print(f"{'':{width}}  {'old':>12}  {'new':>12}  new/old")
    for row in rows:
        old, new = statistics.median(row.old), statistics.median(row.new)
        mark = f"  worse than {LIMIT}" if row.ratio > LIMIT else ""
        print(f"{row.path:{width}}  {old:12.4f}  {new:12.4f}  {row.ratio:7.4f}{mark}")
    print(f"{sum(row.ratio > LIMIT for row in rows)} of {len(rows)} rows are more than {LIMIT - 1:.0%} worse")


def summary(rows: list[Row], environment: dict[str, Any], benchmark: str, arguments: list[str]) -> dict[str, Any]:
    """What is written: the rows with every round's values, and where they were measured."""
    listed = [{"row": row.path, "ratio": round(row.ratio, 4), "old": row.old, "new": row.new} for row in rows]
    worse = [row.path for row in rows if row.ratio > LIMIT]
    return {
        "benchmark": benchmark,
        "arguments": arguments,
        "limit": LIMIT,
        "worse": worse,
        "rows": listed,
        "environment": environment,
    }


def main() -> int:
    """Run the sides in turns and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in SIDES:
        parser.add_argument(f"--{name}", required=True, metavar="REV|[NAME=]DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("benchmark", help="the name of a file in benchmarks/, without .py")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, arguments = parser.parse_args(words[:split]), words[split + 1 :]
    values: dict[str, list[Values]] = {name: [] for name in SIDES}
    environment: dict[str, Any] = {}
    rows: list[Row] = []
    with checked_out(options.old) as old, checked_out(options.new) as new:
        for number in range(1, options.rounds + 1):
            for name, side in zip(SIDES, (old, new), strict=True):
                print(f"round {number} of {options.rounds}, {name}", file=sys.stderr, flush=True)
                content = run(side, name, options.benchmark, arguments)
                values[name].append(dict(measured(content)))
                environment[name] = next((content[key] for key in HEADERS if key in content), {})
            rows = rows_of(values["old"], values["new"])
            if not rows:
                sys.exit(f"the two files of {options.benchmark}.py have no time and no memory in common.")
            if options.json is not None:  # after every round, as machines are lent for a time
                content = summary(rows, environment, options.benchmark, arguments)
                options.json.write_text(json.dumps(content, indent=1) + "\n")
    show(rows)
    return int(any(row.ratio > LIMIT for row in rows))


if __name__ == "__main__":
    sys.exit(main())
