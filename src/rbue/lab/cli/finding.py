"""Find a run by the folder, the path below the runs or the id that a user typed."""

from __future__ import annotations

from pathlib import Path

from rbue.errors import InvalidInput, RbueError
from rbue.lab.runs.folders import RunConfig, RunFolder, find_runs

HELP = "A run folder, or the eight-digit id at its end."


def find_run(text: str, root: Path) -> RunFolder:
    """The one run that a text names."""
    path = Path(text).expanduser()
    if (path / "config.json").is_file():
        return RunFolder(path)
    found = [run for run in find_runs(root) if text and run.path.name.endswith(f"-{text}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInput(f"{text!r} names {len(found)} runs in {root}; give the folder of one of them.")
    raise InvalidInput(f"there is no run {text!r}, neither as a folder nor as an id in {root}; see `rbue runs list`.")


def settings_and_root(run: RunFolder) -> tuple[RunConfig, Path]:
    """The settings of a run and the folder of all runs it lies in, where members of an ensemble lie too."""
    config = run.config()
    path = run.path.resolve()
    root = path.parents[2] if len(path.parents) > 2 else path
    expected = RunFolder.of(config, root).path
    if path != expected:
        raise RbueError(
            f"{run.path} was renamed or its config.json changed: these settings belong into "
            f".../{expected.relative_to(root)}; move it there."
        )
    return config, _as_typed(root, run.path)


def _as_typed(root: Path, path: Path) -> Path:
    """The root relative to here if the run was given so."""
    return root if path.is_absolute() or not root.is_relative_to(Path.cwd()) else root.relative_to(Path.cwd())
