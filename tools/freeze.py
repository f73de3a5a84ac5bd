"""Freeze what the package does before a large change, and see after it what has become different.

    python tools/freeze.py FILE                 write all of it for the rbue that can be imported (PYTHONPATH decides)
    python tools/freeze.py --compare FILE       make it again; one line a difference, exit code 1 if there is one
    python tools/freeze.py --compare DIR|REV    the same against another checkout, or a commit of this one

Frozen are the random stream and what it does to networks (with compiled kernels and without), public names with their
parameters, operators, every verb on tiny runs with the files it leaves, and what the code reads from ``results/``. Only
public entry points are used, so that modules may move. All of it runs on the CPU with one thread, in a folder of its
own with an empty home. What depends on the machine or the clock is a placeholder under its key.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = "frozen.json"
SECTIONS = ("streams", "names", "operators", "verbs", "results")
VARIES = "<varies>"
RELATIVE, ABSOLUTE = 1e-5, 5e-7
"""Numbers closer than this are equal, as the order of a sum may change. What has to agree to the bit is a text."""

MORE = " and more"
SHOWN = 100
"""Characters of a value in a line."""

FAILED = "failed as a whole"
INHERITED = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
FIXED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "200",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "agg",
    "PYTHONHASHSEED": "0",
    "RBUE_COMMIT": "frozen",
}


def freeze(source: Path) -> dict[str, Any]:
    """What the package in a source folder does."""
    results = source.parent / "results"
    with tempfile.TemporaryDirectory(prefix="rbue-freeze-") as name:
        folder = Path(name).resolve()
        shutil.copytree(results if results.is_dir() else ROOT / "results", folder / "results")  # verbs may write there
        frozen = _in_process(source, folder, SECTIONS)
        plain = _in_process(source, folder, ("streams",), RBUE_NATIVE="0")
    return {**frozen, "streams without a compiler": plain["streams"]}


def _in_process(source: Path, folder: Path, sections: tuple[str, ...], **more: str) -> dict[str, Any]:
    """Sections made by a process of their own, which sees nothing of this user's caches and settings."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = {**kept, **FIXED, "HOME": str(home), "PYTHONPATH": str(source), **more}
    command = [sys.executable, str(Path(__file__).resolve()), "--sections", ",".join(sections), OUTPUT]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    content: dict[str, Any] = json.loads((folder / OUTPUT).read_text())
    return content


def make(sections: list[str]) -> dict[str, Any]:
    """The sections themselves, in this process and folder."""
    import frozen_commands as commands  # here, as comparing needs neither torch nor the package
    import frozen_library as library

    ways = {
        "streams": library.streams,
        "names": library.names,
        "operators": library.operators,
        "verbs": commands.verbs,
        "results": commands.results,
    }
    return {name: _attempted(ways[name]) for name in sections}


def _attempted(way: Callable[[], Any]) -> Any:
    """A section, or why there is none: the others are compared all the same."""
    try:
        return way()
    except Exception as error:
        traceback.print_exc()
        return {FAILED: f"{type(error).__name__}: {error}"}


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two frozen states differ: path, value before, value after; a placeholder equals everything."""
    if VARIES in (before, after):
        return
    if isinstance(before, dict) and FAILED in before:
        yield path, before, after  # on both sides, too: nothing was compared
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            inner = f"{path} / {key}" if path else key
            if key in before and key in after:
                yield from differences(before[key], after[key], inner)
            else:
                yield inner, before.get(key, "(absent)"), after.get(key, "(absent)")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        found = [line for place, pair in pairs for line in differences(*pair, f"{path}[{place}]")]
        if len(found) > 1 and _is_array(before):
            where, one, other = found[0]
            found = [(f"{where.removesuffix(MORE)}{MORE}", one, other)]
        yield from found
    elif not _equal(before, after):
        yield path, before, after


def _is_array(value: Any) -> bool:
    """Whether there are only numbers in a list, and lists of them; its differences share a line."""
    return all(_is_array(one) if isinstance(one, list) else isinstance(one, (int, float)) for one in value)


def _equal(before: Any, after: Any) -> bool:
    if type(before) is not type(after):
        return False
    if isinstance(before, float):
        return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (
            math.isnan(before) and math.isnan(after)
        )
    return bool(before == after)


def shortened(value: Any) -> str:
    """A value on one line, its middle left out if it is long."""
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


@contextmanager
def checkout(text: str) -> Iterator[Path]:
    """The folder of another checkout, or that of a commit, made for a while."""
    if Path(text).is_dir():
        yield Path(text).resolve()
        return
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}"], capture_output=True)
    if found.returncode:
        raise SystemExit(f"{text} is neither a file, nor a folder, nor a commit.")
    with tempfile.TemporaryDirectory(prefix="rbue-commit-") as name:
        place = str(Path(name) / "tree")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", place, text], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", place], check=True)


def importable() -> Path:
    """The folder from which ``rbue`` would be imported."""
    found = find_spec("rbue")
    if found is None or found.origin is None:
        raise SystemExit("rbue cannot be imported; set PYTHONPATH to the src folder of a checkout.")
    return Path(found.origin).resolve().parents[1]


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="FILE", help="file to write; with --compare a file, a checkout or a commit")
    parser.add_argument("--compare", action="store_true", help="compare with it instead")
    parser.add_argument("--sections", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.sections or not asked.compare:
        content = make(asked.sections.split(",")) if asked.sections else freeze(importable())
        Path(asked.target).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        return 0 if asked.sections else int(any("failed" in section for section in content.values()))
    if Path(asked.target).is_file():
        before = json.loads(Path(asked.target).read_text())
    else:
        with checkout(asked.target) as tree:
            before = freeze(tree / "src")
    found = list(differences(before, freeze(importable())))
    for path, one, other in found:
        print(f"{path}: {shortened(one)} -> {shortened(other)}")
    print(f"{len(found)} differences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
