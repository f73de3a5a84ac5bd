"""What the command line prints and leaves on tiny runs, and what it reads from ``results/``."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

VARIES = "<varies>"
_CLOCK = {"seconds", "training_seconds", "prediction_seconds", "peak_bytes"}
_VERSIONS = {"rbue", "commit", "python", "torch", "triton", "torchmetrics", "cuda"}
_MACHINE = {"system", "cpu", "cores", "threads", "gpu"}
_TIMED_FILES = {"training.json", "results.json"}  # in checksums.json: the seconds in them are summed too
VOLATILE = _CLOCK | _VERSIONS | _MACHINE | _TIMED_FILES
"""Keys whose values depend on the machine, the clock or the version. ``kernels`` stays: a source file may get lost."""

TINY = "--epochs 1 --batch 128 --width 0.25 --device cpu"
FEW = "table1-cifar10 --quick --models vgg13 --methods single,mc-droprelu:0.9 --epochs 1 --runs paper-runs"
TRAININGS = {
    "single": "train --method single",
    "droprelu": "train --method mc-droprelu:0.9",
    "rrelu": "train --method mc-rrelu --engine plain",
    "dropout": "train --method mc-dropout:0.2",
    "svi": "train --method svi",
    "ensemble": "train --method deep-ensemble:2 --together 2",
    "own": "train --model own_network:make --method mc-droprelu:0.8,first --holdout 100 --holdout-seed 2 --seed 3 "
    "--rate 0.05 --milestones 0.5 --factor 0.2 --momentum 0.8 --no-nesterov --weight-decay 0 --shard-mib 1",
    "colour": "train --data colour-digits-few --method mc-droprelu:0.9,last --padding 2 --flip",
}
"""Tiny runs, by the name that stands for their folder below."""

CALLS = (
    "methods --json",
    "models --json",
    "sites small_cnn --shape 1,8,8 --width 0.5 --json",
    "env --json",
    "data list --json",
    "data check digits --json",
    *(f"evaluate {{{name}}} --samples 6 --device cpu --json" for name in TRAININGS),
    "evaluate {droprelu} --samples 3 --sample-seed 5 --device cpu --json",
    f"compare --methods single,mc-droprelu:0.9,svi --samples 6 {TINY} -o comparison.json --json",
    "calibrate {single} {droprelu} {ensemble} --json",
    "shift {colour} --corruptions fog,contrast --severities 1,5 --samples 4 --device cpu --json",
    "shift {colour} --corruptions fog --severities 1 --samples 40 --adaptive --device cpu --json",
    "ood {single} {droprelu} {ensemble} --near colour-digits --samples 4 --images 50 --k 5 --device cpu --json",
    "predict {droprelu} grey.png --samples 7 --seed 2 --device cpu --json",
    "corrupt 3 --data colour-digits-few --corruption fog -o strip.png",
    "report {single} {droprelu} {colour} -o report.csv --json",
    "report {single} {droprelu} -o report.html --device cpu --json",
    "paper list --json",
    f"paper plan {FEW} --device cpu --json",
    f"paper run {FEW} --device cpu --json",
    "paper run fig-activations fig-network --quick --runs paper-runs --device cpu --json",
    "paper report table1-cifar10 fig-network --quick --epochs 1 --runs paper-runs --json",
    "paper claims --quick --epochs 1 --runs paper-runs --json",
    "runs list --json",
    *(f"runs show {{{name}}} --json" for name in TRAININGS),
    "runs remove {rrelu} --yes --json",
)
WRONG = (
    "",
    "train --method nothing",
    "train --no-such-option",
    "train --width 0",
    "evaluate --method svi --seed 77 --device cpu",
    "evaluate {single} --seed 1",
    "runs show nothing",
    "runs remove {single} --json",
    "shift {single} --device cpu",
    "predict {single} nothing.png",
    "report nothing",
    "corrupt grey.png --corruption nothing",
    "data pack digits parts",
    "data unpack parts",
    "data import cifar10 paper-runs",
    "data fetch nothing",
    "paper run --quick",
)
"""Calls that fail; of them the exit code is kept, as sentences may change."""

OWN_NETWORK = """\
from torch import nn


def make(classes, channels, width):
    many = int(8192 * width)  # more than fits into one file of weights
    ends = nn.Linear(144, many), nn.ReLU(), nn.Linear(many, 160), nn.ReLU(), nn.Linear(160, classes)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), *ends)
"""


def command(text: str) -> tuple[int | str, str]:
    """``python -m rbue`` with these words, in this process: exit code and stdout."""
    out, before = io.StringIO(), sys.argv
    sys.argv = ["rbue", *shlex.split(text)]
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            runpy.run_module("rbue", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code or 0, out.getvalue()
    except Exception as error:  # a verb that breaks down is a difference like any other
        return type(error).__name__, out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def verbs() -> dict[str, Any]:
    """The options of all verbs, what they print as JSON about tiny runs, and the files that are left."""
    Path("own_network.py").write_text(OWN_NETWORK)
    Image.fromarray((np.arange(64).reshape(8, 8) * 37 % 256).astype(np.uint8)).save("grey.png")
    options = dict(_options(""))
    said: dict[str, Any] = {}
    runs: dict[str, str] = {}
    for name, text in TRAININGS.items():
        said[text] = _said(f"{text} {TINY} --json")
        runs[name] = (said[text]["json"] or {}).get("run", "nothing")
    for text in CALLS:
        said[text] = _said(text.format(**runs))
    called = (*TRAININGS.values(), *CALLS, *WRONG)
    return {
        "options": options,
        "not called": sorted(verb for verb in options if not any(text.startswith(verb) for text in called)),
        "said": said,
        "exit codes": {text: command(text.format(**runs))[0] for text in WRONG},
        "files": _files(),
    }


def _options(verb: str) -> Iterator[tuple[str, list[str]]]:
    """Every verb with its options, from the help of each; groups of verbs are looked into."""
    _, text = command(f"{verb} --help")
    box = ""
    options: list[str] = []
    for line in text.splitlines():
        box = line.split()[1] if line.startswith("╭─ ") else box
        first = re.match(r"│ \*? *((?:-[\w,-]+ *)+)", line)
        if first:
            options += first[1].replace(",", " ").split()
        elif box == "Commands" and (found := re.match(r"│ (\w+) ", line)):
            yield from _options(f"{verb} {found[1]}".strip())
    yield verb, sorted(options)


def _said(text: str) -> dict[str, Any]:
    """The exit code and the JSON on stdout, if it is that."""
    code, out = command(text)
    return {"code": code, "json": normalised(_parsed(out))}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def normalised(value: Any) -> Any:
    """Paths relative to this folder, and placeholders for what depends on the machine or the clock."""
    if isinstance(value, dict):
        if isinstance(value.get("environments"), dict):  # by checksums of what they say
            value = {**value, "environments": list(value["environments"].values())}
        volatile = set(VOLATILE)
        if isinstance(value.get("environment"), str):
            volatile.add("environment")
        if re.search(r"\btime\b", str(value.get("id"))):  # a claim of the paper about training times
            volatile.add("measured")
        return {key: VARIES if key in volatile else normalised(one) for key, one in value.items()}
    if isinstance(value, list):
        return [normalised(one) for one in value]
    return value.replace(str(Path.cwd()), "<here>") if isinstance(value, str) else value


def _files() -> dict[str, Any]:
    """What the verbs left: content of JSON, names and shapes of weights, columns of tables, names of other files."""
    places = ("runs", "paper-runs", "paper-report", "shift", "home/.cache/rbue/data")
    paths = [path for place in places for path in sorted(Path(place).rglob("*")) if path.is_file()]
    paths += [Path(name) for name in ("comparison.json", "report.csv", "report.html", "strip.png")]
    return {str(path): _content(path) for path in paths if path.is_file() and "tensorboard" not in path.parts}


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return normalised(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [normalised(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        return path.read_text().splitlines()[0]
    if path.suffix == ".safetensors":
        raw = path.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        noted = {name: normalised(_parsed(text)) for name, text in header.pop("__metadata__", {}).items()}
        if path.name == "state.safetensors":  # the log of an interrupted training has seconds
            noted["rbue"] = {key: VARIES if key == "sha256" else one for key, one in noted["rbue"].items()}
        return {"metadata": noted, **{name: [one["dtype"], one["shape"]] for name, one in header.items()}}
    return "" if path.suffix != ".npy" else checksum(np.load(path).tobytes())


def checksum(content: bytes) -> str:
    """A short one."""
    return hashlib.sha256(content).hexdigest()[:24]


def results() -> dict[str, Any]:
    """What the code makes of every run in ``results/`` of this folder, and the keys of every kind of file there."""
    roots = [Path("results/runs"), *sorted(Path("results/reruns").glob("*"))]
    folders = [path.parent for path in sorted(Path("results").glob("*runs/**/config.json"))]
    shifted = [folder for folder in folders if (folder / "shift.json").is_file()]
    return {
        "lists": {str(root): _read(f"runs list --runs {root} --json") for root in roots},
        "runs": {str(folder): dict(_run(folder)) for folder in folders},
        "shift": _shift(shifted),
        "claims": _read("paper claims --runs results/runs --json"),
        "report": _paper_report(),
        "keys": _keys_by_file(),
    }


def _run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One run: its folder and id by its settings, what is stored of training, every measurement, its calibration."""
    yield "shown", _read(f"runs show {folder} --json")
    for key in json.loads((folder / "results.json").read_text()):
        asked = dict(part.split("=") for part in re.split(r",(?=\w+=)", key))
        options = " ".join(f"--{'sample-seed' if name == 'seed' else name} {value}" for name, value in asked.items())
        yield key, _read(f"evaluate {folder} {options} --device cpu --json")
    yield "calibration", _read(f"calibrate {folder} --json")


def _read(text: str) -> Any:
    """What a verb says about stored numbers, digit for digit."""
    code, out = command(text)
    return _as_text(json.loads(out)) if code == 0 else {"code": code}


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_text(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return repr(value) if isinstance(value, float) else value


def _shift(folders: list[Path]) -> Any:
    """The summaries of runs under corruptions; of the rows behind them a checksum."""
    found = {}
    for root in sorted({folder.parents[2] for folder in folders}):
        inside = " ".join(str(folder) for folder in folders if folder.is_relative_to(root))
        said = _read(f"shift {inside} --samples 20 --device cpu -o figures --json")
        for run in said.get("runs", []):
            rows = json.dumps(run["rows"], sort_keys=True).encode()
            found[run["run"]] = {**run, "rows": f"{len(run['rows'])} {checksum(rows)}"}
        found[str(root)] = said.get("code", 0)
    return found


def _paper_report() -> dict[str, Any]:
    """Every table and figure of the paper, as the published runs fill them."""
    said = _read("paper report --runs results/runs -o whole --json")
    tables = {path.name: _as_text(json.loads(path.read_text())) for path in sorted(Path("whole/data").glob("*.json"))}
    lines = list(csv.reader(io.StringIO(Path("whole/report.csv").read_text()))) if tables else []
    return {"said": said, "data": tables, "csv": {" ".join(line[:6]): line[6:] for line in lines}}


def _keys_by_file() -> dict[str, list[str]]:
    """The nested keys of every kind of stored file, over all runs."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path("results").glob("*runs/**/*.json*")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for line in lines:
            found.setdefault(path.name, set()).update(key_paths(normalised(json.loads(line))))
    return {name: sorted(paths) for name, paths in found.items()}


def key_paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Nested keys, entries of lists all alike: ``rows[].seed``."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield f"{prefix}{key}"
            yield from key_paths(one, f"{prefix}{key}.")
    elif isinstance(value, list):
        for one in value:
            yield from key_paths(one, f"{prefix.removesuffix('.')}[].")
