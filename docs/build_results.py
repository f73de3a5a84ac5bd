"""Write the table of measured results into README from the runs in ``results/runs``: ``python docs/build_results.py``.

With ``--check`` nothing is written, and the exit status says whether README is up to date.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rbue.data.corruptions import CORRUPTIONS, SEVERITIES
from rbue.evaluation import SAMPLE_COUNTS
from rbue.paper.experiments import METHODS
from rbue.paper.numbers import paper_value
from rbue.paper.settings import Settings
from rbue.runs import RunConfig, RunFolder, result_key

ROOT = Path(__file__).parent.parent
RUNS, RERUNS = ROOT / "results" / "runs", ROOT / "results" / "reruns"
START, END = "<!-- results -->", "<!-- /results -->"
DATA, MODEL, SAMPLES = "cifar10", "resnet18", 100
SEEDS = range(10)
KEY = result_key(SAMPLES)
SHIFTED_SCORES = ("accuracy", "ece", "nll", "brier", "aurc")


def measured(root: Path = RUNS) -> dict[str, tuple[RunConfig, dict[str, Any]]]:
    """The result of each method's first run with the paper's settings."""
    found = {}
    for method in METHODS:
        config = Settings().config(DATA, MODEL, method, 0)
        results = RunFolder.of(config, root).read("results") or {}
        if KEY in results:
            found[method] = config, results[KEY]
    return found


def side_by_side(configs: Iterable[RunConfig]) -> str:
    """How many networks shared the GPU while these were trained."""
    members = [RunFolder.of(member, RUNS).read("training") for config in configs for member in config.members()]
    counts = sorted({entry["side_by_side"] for entry in members})
    return " or ".join(map(str, counts))


def with_paper(value: float, paper: float | None, text: str, scale: float = 1.0) -> str:
    """Ours, the paper's and the difference."""
    if paper is None:
        return format(scale * value, text)
    return (
        f"{format(scale * value, text)} ({format(scale * paper, text)}, {format(scale * (value - paper), '+' + text)})"
    )


def comparison(found: dict[str, tuple[RunConfig, dict[str, Any]]]) -> list[str]:
    """Ours beside the paper's, one line a method."""
    lines = [
        "| method | accuracy, % | ECE | NLL | Brier | Mean-JSD | Mean-DIS | training, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        if method not in found:
            lines.append(f"| `{method}` | not measured yet | | | | | | |")
            continue
        _, result = found[method]
        paper = {name: paper_value(DATA, MODEL, method, name) for name in ("accuracy", "ece", "mean_jsd", "mean_dis")}
        cells = [
            f"`{method}`",
            with_paper(result["accuracy"], paper["accuracy"], ".2f", 100),
            with_paper(result["ece"], paper["ece"], ".3f"),
            f"{result['nll']:.3f}",
            f"{result['brier']:.3f}",
            *(
                "–" if result[name] is None else with_paper(result[name], paper[name], ".3f")
                for name in ("mean_jsd", "mean_dis")
            ),
            f"{result['training_seconds']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_samples(found: dict[str, tuple[RunConfig, dict[str, Any]]]) -> list[str]:
    """Accuracy and ECE against the number of samples."""
    counts = (*SAMPLE_COUNTS, SAMPLES)
    lines = [f"| accuracy, % / ECE at | {' | '.join(map(str, counts))} samples |", "|---" * (len(counts) + 1) + "|"]
    for method in METHODS:
        curve = {entry["samples"]: entry for entry in found[method][1]["by_samples"]} if method in found else {}
        if curve:
            curve[SAMPLES] = found[method][1]
            cells = [f"{100 * curve[count]['accuracy']:.2f} / {curve[count]['ece']:.4f}" for count in counts]
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def scaled(found: dict[str, tuple[RunConfig, dict[str, Any]]]) -> list[str]:
    """What temperature scaling did, apart from the paper's rows; empty if no run was calibrated."""
    entries = {
        method: (RunFolder.of(config, RUNS).read("calibration") or {}).get(KEY) for method, (config, _) in found.items()
    }
    made = {method: entry for method, entry in entries.items() if entry is not None}
    if not made:
        return []
    images = next(iter(made.values()))["data"]["count"]
    lines = [
        "",
        f"After temperature scaling (two-fold cross-fit on the {images:,} test images; not in the paper): each half is "
        "scaled by the temperature fitted on the other half, from the stored probabilities, which are rounded to half "
        "precision (so the NLL before differs a little from the one above); before → after.",
        "",
        "| method | temperatures | accuracy, % (unchanged) | ECE | NLL | Brier |",
        "|---|---|---|---|---|---|",
    ]
    for method, entry in made.items():
        before, after = entry["before"], entry["after"]
        cells = [
            f"`{method}`",
            ", ".join(f"{one:.2f}" for one in entry["temperatures"]),
            f"{100 * after['accuracy']:.2f}",
            *(f"{before[score]:.3f} → {after[score]:.3f}" for score in ("ece", "nll", "brier")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def corrupted_sets(config: RunConfig, root: Path = RUNS) -> dict[tuple[str, int], dict[str, Any]]:
    """What a run was measured to be on each corrupted test set."""
    kept = RunFolder.of(config, root).read("shift") or {"rows": []}
    return {(row["corruption"], row["severity"]): row for row in kept["rows"]}


def shifted(found: dict[str, tuple[RunConfig, dict[str, Any]]]) -> list[str]:
    """Means over the corrupted test sets that all of the methods measured so far have in common."""
    rows = {method: sets for method, (config, _) in found.items() if (sets := corrupted_sets(config))}
    if not rows:
        return []
    common = set.intersection(*(set(sets) for sets in rows.values()))
    every = len(CORRUPTIONS) * len(SEVERITIES)
    asked = sorted({row["samples_asked"] for sets in rows.values() for row in sets.values() if row["samples_asked"]})
    lines = [
        "",
        f"Under corruptions ({len(CORRUPTIONS)} kinds in {len(SEVERITIES)} severities, "
        f"{', '.join(map(str, asked))} samples): means over the "
        f"{len(common)} sets that all of these rows have.{shifted_again(rows, common)}",
        "",
        "| method | sets measured | accuracy, % | ECE | NLL | Brier | AURC |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, sets in rows.items():
        means = {name: mean(sets[one][name] for one in common) for name in SHIFTED_SCORES}
        scores = [f"{100 * means['accuracy']:.2f}", *(f"{means[name]:.3f}" for name in SHIFTED_SCORES[1:])]
        lines.append(f"| {' | '.join([f'`{method}`', f'{len(sets)} of {every}', *scores])} |")
    return lines


def shifted_again(methods: Iterable[str], common: set[tuple[str, int]]) -> str:
    """The same means over all runs of a method, whatever their seed; empty if no method has several."""
    texts = []
    for method in methods:
        configs = [Settings().config(DATA, MODEL, method, seed) for seed in SEEDS]
        runs = [corrupted_sets(config, root) for root in (RUNS, *sorted(RERUNS.glob("*"))) for config in configs]
        runs = [sets for sets in runs if common <= sets.keys()]
        if len(runs) > 1:
            means = {name: sorted(mean(sets[one][name] for one in common) for sets in runs) for name in SHIFTED_SCORES}
            accuracy, ece, nll = ((means[name][0], means[name][-1]) for name in ("accuracy", "ece", "nll"))
            texts.append(
                f" The {len(runs)} runs of `{method}` range from {100 * accuracy[0]:.2f} to {100 * accuracy[1]:.2f} % "
                f"of accuracy, from {ece[0]:.3f} to {ece[1]:.3f} of ECE, and from {nll[0]:.3f} to {nll[1]:.3f} of NLL."
            )
    return "".join(texts)


def other_seeds() -> str:
    """Mean and deviation of methods that were trained with several seeds; empty if none was."""
    texts = []
    for method in METHODS:
        results = [RunFolder.of(Settings().config(DATA, MODEL, method, seed), RUNS).read("results") for seed in SEEDS]
        found = [one[KEY] for one in results if one is not None and KEY in one]
        if len(found) > 1:
            accuracy, ece = ([one[name] for one in found] for name in ("accuracy", "ece"))
            texts.append(
                f"`{method}` over {len(found)} seeds {100 * mean(accuracy):.2f} ± {100 * stdev(accuracy):.2f} % and "
                f"{mean(ece):.3f} ± {stdev(ece):.3f}"
            )
    return f" With other seeds: {', '.join(texts)} (mean and standard deviation)." if texts else ""


def reruns() -> str:
    """What rows of the table gave when they were trained again; empty if none was."""
    again: dict[str, list[str]] = {}
    for folder in sorted(RERUNS.glob("*")):
        for method, (_, one) in measured(folder).items():
            again.setdefault(method, []).append(f"{100 * one['accuracy']:.2f} % and {one['ece']:.3f}")
    if not again:
        return ""
    texts = [f"`{method}` {'; '.join(ones)}" for method, ones in again.items()]
    return (
        f" Trained again with the same seed: {', '.join(texts)} (`results/reruns`). Sums on a GPU have no fixed order; "
        "one seed is not one outcome. The table has the runs whose weights were still there when the corrupted images "
        "were measured."
    )


def section() -> str:
    """The whole part of README."""
    found = measured()
    config, result = next(iter(found.values()))
    facts, recipe = result["environment"], config.recipe
    images, shared = result["data"]["count"], side_by_side(config for config, _ in found.values())
    error = 100 * math.sqrt(result["accuracy"] * (1 - result["accuracy"]) / images)
    commits = sorted({str(entry["environment"]["commit"])[:7] for _, entry in found.values()})
    text = [
        START,
        f"CIFAR-10, ResNet-18, {recipe.epochs} epochs, batch {recipe.batch}, the paper's recipe in bfloat16 autocast, "
        f"seed 0, {SAMPLES} samples in float16: ours, with the paper's value and the difference in brackets. One run a "
        f"row; the standard error of an accuracy from {images:,} test images is {error:.2f} points.{other_seeds()}"
        f"{reruns()}",
        "",
        *comparison(found),
        "",
        *by_samples(found),
        *shifted(found),
        *scaled(found),
        "",
        f"{facts['gpu']}, torch {facts['torch']}, stream {facts['stream_version']}, commit {', '.join(commits)}. "
        f"Training time counts compiling and saving; {shared} networks were trained side by side and share it, some of "
        "them beside other work, so it says little about one method. `python docs/build_results.py` renders "
        f"this from `results/runs`; `rbue paper run table1-cifar10 --models {MODEL} --methods METHOD` reruns a row; "
        f"`rbue paper report --runs results/runs --models {MODEL}` makes the page with everything measured so far.",
        END,
    ]
    return "\n".join(text)


def main() -> int:
    """Write README or check it."""
    path = ROOT / "README.md"
    before = path.read_text()
    head, rest = before.split(START, 1)
    after = head + section() + rest.split(END, 1)[1]
    if "--check" in sys.argv[1:]:
        return int(before != after)
    path.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
