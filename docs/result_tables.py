"""Tables of measured results in Markdown, from the runs in ``results/runs``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.data.outside import USUAL
from rbue.lab.paper.budget import read_budget
from rbue.lab.paper.experiments import METHODS
from rbue.lab.paper.numbers import as_printed, paper_value
from rbue.lab.paper.results import shift_rows
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunConfig, RunFolder, result_key
from rbue.lab.runs.measuring import SAMPLE_COUNTS
from rbue.lab.runs.out_of_distribution import SCORES, means
from rbue.lab.training.recipe import recipe_for

ROOT = Path(__file__).parent.parent
RUNS, RERUNS = ROOT / "results" / "runs", ROOT / "results" / "reruns"
SETTINGS = Settings(budget=read_budget(RUNS))
SAMPLES = 100
SEEDS = range(10)
KEY = result_key(SAMPLES)

ROBUST = "strong, AugMix 0.5"
RECIPES = ("paper", "strong", ROBUST)
EARLY = ("strong, from 60 %", "strong, from 60 %, AugMix 0.5")
"""The recipes that tables have names for; the strong ones as they were before the second search come last."""
TITLES = {
    "single": "Single",
    "mc-dropout:0.2": "MC-Dropout 0.2",
    "mc-dropout:0.5": "MC-Dropout 0.5",
    "deep-ensemble:4": "Deep Ensemble of 4",
    "svi": "SVI",
    "mc-rrelu": "MC-RReLU",
    **{f"mc-droprelu:{q}": f"MC-DropReLU {q}" for q in (0.8, 0.85, 0.9, 0.95)},
    **{f"mc-droprelu:{q},all,channel": f"MC-DropReLU {q} by channel" for q in (0.98, 0.99)},
    "mc-droprelu:0.995,all,channel[single]": "Single, drawn with 0.995 by channel",
}
"""Methods in words."""
OPENOOD = {"max_probability": {"near": 88.03, "far": 90.73}, "nearest": {"near": 90.64, "far": 92.96}}
"""AUROC of ResNet-18 on CIFAR-10 in the tables of OpenOOD v1.5, whose far sets are four."""

Found = dict[str, tuple[RunConfig, dict[str, Any]]]
"""method -> its run and what was measured of it"""
Set = tuple[str, int]
"""a corruption and its severity"""
Sets = dict[Set, dict[str, Any]]
"""corrupted test set -> what a run was measured to be on it"""


@dataclass(frozen=True)
class Study:
    """One network on one data set under some methods, with the paper's settings."""

    data: str
    model: str
    methods: tuple[str, ...] = METHODS

    def config(self, method: str, seed: int = 0) -> RunConfig:
        """The run of one row."""
        return SETTINGS.config(self.data, self.model, method, seed)

    def measured(self, root: Path = RUNS) -> Found:
        """The result of each method's first run."""
        found = {}
        for method in self.methods:
            config = self.config(method)
            results = RunFolder.of(config, root).read("results") or {}
            if KEY in results:
                found[method] = config, results[KEY]
        return found

    def folders(self, root: Path = RUNS) -> Iterator[tuple[str, str, RunFolder]]:
        """Every run with a recipe that has a name here, or the paper's made shorter, with that name and its method."""
        paper, now = self.config("single").recipe, recipe_for(self.data, "strong")
        strong = [replace(one, augmix=part) for one in (now, replace(now, average_start=0.6)) for part in (0.0, 0.5)]
        names = dict(zip((paper, *strong), RECIPES + EARLY, strict=True))
        for path in sorted((root / self.data / self.model).iterdir()):
            folder = RunFolder(path)
            config = RunConfig.from_json(folder.read("config"))
            name = names.get(config.recipe)
            if name is None and replace(config.recipe, epochs=paper.epochs) == paper:
                name = f"paper, {config.recipe.epochs} epochs"
            if name is not None and not config.holdout:
                yield name, config.method, folder

    def outside(self, root: Path = RUNS) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
        """What runs were measured to be against images from elsewhere, by recipe, method and kind of passes."""
        near, far = USUAL[self.data]
        found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for recipe, method, folder in self.folders(root):
            for entry in folder.entries("ood").values():
                if {*near, *far} <= entry["sets"].keys():
                    passes = "augmented" if "augment" in entry else "plain"
                    found.setdefault((recipe, method, passes), []).append(entry)

        def place(row: tuple[str, str, str]) -> tuple[str, int]:
            return row[0], METHODS.index(row[1]) if row[1] in METHODS else len(METHODS)

        return {row: found[row] for row in sorted(found, key=place)}

    def detected(self) -> list[str]:
        """AUROC and FPR95 of every score against images from elsewhere: tables for near and far sets, by recipe."""
        found, lines = self.outside(), []
        for group, sets in zip(("near", "far"), USUAL[self.data], strict=True):
            columns: dict[str, dict[str, list[str]]] = {}
            for (recipe, method, passes), entries in found.items():
                measured = [means(entry, sets) for entry in entries]
                cells = [_detected([one[score] for one in measured if score in one]) for score in SCORES]
                more = ["augmented passes"] * (passes == "augmented") + [f"{len(entries)} seeds"] * (len(entries) > 1)
                columns.setdefault(recipe, {})[", ".join([TITLES.get(method, f"`{method}`"), *more])] = cells
            for recipe, found_of_it in columns.items():
                names = [score.replace("_", "\N{NO-BREAK SPACE}") for score in SCORES]
                lines += [f"{self.model} on {self.data} against {group} sets ({', '.join(sets)}); recipe: {recipe}", ""]
                lines += [*table(["", *found_of_it], zip(names, *found_of_it.values(), strict=True)), ""]
            if self.data == "cifar10" and self.model == "resnet18":
                published = (f"{score.replace('_', ' ')} {one[group]:.1f}" for score, one in OPENOOD.items())
                lines += [f"Published by OpenOOD v1.5 against its {group} sets, AUROC: {', '.join(published)}.", ""]
        return lines[:-1]

    def comparison(self, times: bool = False) -> list[str]:
        """Ours beside the paper's, one line a method, with the time of its training if asked, and what is missing."""
        heads = ["method", "accuracy, %", "ECE", "NLL", "Brier", "Mean-JSD", "Mean-DIS", *["training, s"] * times]
        found, rows = self.measured(), []
        for method, (_, result) in found.items():
            accuracy, ece, jsd, dis = (
                _with_paper(name, result[name], paper_value(self.data, self.model, method, name))
                for name in ("accuracy", "ece", "mean_jsd", "mean_dis")
            )
            scores = [accuracy, ece, f"{result['nll']:.3f}", f"{result['brier']:.3f}", jsd, dis]
            rows.append([f"`{method}`", *scores, *[f"{result['training_seconds']:.0f}"] * times])
        absent = ", ".join(f"`{method}`" for method in self.methods if method not in found)
        return [*table(heads, rows), *(["", f"Not measured: {absent}."] if absent else [])]

    def short(self, methods: dict[str, str]) -> list[str]:
        """A small table of some methods, which have titles here."""
        lines = ["| | accuracy, % | ECE | NLL | trainings | samples |", "|---" * 6 + "|"]
        for method, title in methods.items():
            config, result = self.measured()[method]
            scores = f"{100 * result['accuracy']:.2f} | {result['ece']:.3f} | {result['nll']:.3f}"
            lines.append(f"| {title} | {scores} | {len(config.members())} | {result['samples']} |")
        return lines

    def by_samples(self) -> list[str]:
        """Accuracy and ECE against the number of samples."""
        counts = (*SAMPLE_COUNTS, SAMPLES)
        rows = []
        for method, (_, result) in self.measured().items():
            if result["by_samples"]:
                curve = {entry["samples"]: entry for entry in result["by_samples"]} | {SAMPLES: result}
                cells = [f"{100 * curve[count]['accuracy']:.2f} / {curve[count]['ece']:.4f}" for count in counts]
                rows.append([f"`{method}`", *cells])
        *few, most = map(str, counts)
        return table(["accuracy, % / ECE at", *few, f"{most} samples"], rows)

    def scaled(self) -> list[str]:
        """What temperature scaling did."""
        rows = []
        for method, (config, _) in self.measured().items():
            entry = (RunFolder.of(config, RUNS).read("calibration") or {}).get(KEY)
            if entry is None:
                continue
            before, after = entry["before"], entry["after"]
            cells = [
                f"`{method}`",
                ", ".join(f"{one:.2f}" for one in entry["temperatures"]),
                f"{100 * after['accuracy']:.2f}",
                *(f"{before[score]:.3f} → {after[score]:.3f}" for score in ("ece", "nll", "brier")),
            ]
            rows.append(cells)
        return table(["method", "temperatures", "accuracy, % (unchanged)", "ECE", "NLL", "Brier"], rows)

    def shifted(self) -> list[str]:
        """Means over the corrupted test sets that all of the methods have in common."""
        rows = {method: sets for method, (config, _) in self.measured().items() if (sets := _corrupted_sets(config))}
        common = set.intersection(*(set(sets) for sets in rows.values()))
        noise = {one for one in common if one[0].endswith("_noise")}
        singles = self._runs_under(common, "single")
        heads = ["method", "sets measured", "accuracy, %", "ECE", "NLL", "NLL under noise", "NLL elsewhere"]
        heads += ["sets with a lower NLL than every run of `single`", "Brier", "AURC"]
        lines = []
        every = len(CORRUPTIONS) * len(SEVERITIES)
        for method, sets in rows.items():
            lower = sum(all(sets[one]["nll"] < single[one]["nll"] for single in singles) for one in common)
            cells = [
                f"`{method}`",
                f"{len(sets)} of {every}",
                f"{100 * _mean(sets, common, 'accuracy'):.2f}",
                f"{_mean(sets, common, 'ece'):.3f}",
                *(f"{_mean(sets, some, 'nll'):.3f}" for some in (common, noise, common - noise)),
                "–" if method == "single" else str(lower),
                *(f"{_mean(sets, common, name):.3f}" for name in ("brier", "aurc")),
            ]
            lines.append(cells)
        words = [f"Means over the {len(common)} sets that all of these rows have.", *self._shifted_again(rows, common)]
        return [*words, self._under_noise(noise), "", *table(heads, lines)]

    def by_q(self) -> list[str]:
        """MC-DropReLU from many random ReLUs to none: clean, after a temperature, and corrupted where that is there."""
        found = {method: one for method, one in self.measured().items() if kept_with(method) is not None}
        sets = {method: _corrupted_sets(config) for method, (config, _) in found.items()}
        corrupted = [set(one) for one in sets.values() if one]
        common = set.intersection(*corrupted) if corrupted else set()
        noise = {one for one in common if one[0].endswith("_noise")}
        heads = ["`q`", "accuracy, %", "ECE", "NLL", "NLL with temperature", "disagreement of two samples"]
        heads += ["corrupted: ECE", "NLL, noise", "NLL, others"] if common else []
        rows = []
        for method, (config, result) in sorted(found.items(), key=lambda one: kept_with(one[0]) or 0):
            scaled = RunFolder.of(config, RUNS).read("calibration")[KEY]["after"]
            cells = [
                "1, plain" if method == "single" else f"{kept_with(method)}",
                f"{100 * result['accuracy']:.2f}",
                *(f"{value:.3f}" for value in (result["ece"], result["nll"], scaled["nll"])),
                "–" if result["mean_dis"] is None else f"{100 * result['mean_dis']:.1f} %",
            ]
            if ours := sets[method]:
                cells += [f"{_mean(ours, common, 'ece'):.3f}"]
                cells += [f"{_mean(ours, kinds, 'nll'):.2f}" for kinds in (noise, common - noise)]
            rows.append(cells + ["–"] * (len(heads) - len(cells)))
        return table(heads, rows)

    def samples_on_corrupted(self) -> str:
        """How many samples each corrupted image got."""
        rows = [row for config, _ in self.measured().values() for row in _corrupted_sets(config).values()]
        return ", ".join(map(str, sorted({row["samples_asked"] for row in rows if row["samples_asked"]})))

    def _runs_under(self, common: set[Set], method: str) -> list[Sets]:
        """What each run of a method that has all of these corrupted sets was on them, whatever its seed."""
        configs = [self.config(method, seed) for seed in SEEDS]
        runs = [_corrupted_sets(config, root) for root in (RUNS, *sorted(RERUNS.glob("*"))) for config in configs]
        return [sets for sets in runs if common <= sets.keys()]

    def _shifted_again(self, methods: Iterable[str], common: set[Set]) -> list[str]:
        """The same means over all runs of a method; empty if no method has several."""
        texts = []
        for method in methods:
            runs = self._runs_under(common, method)
            if len(runs) > 1:
                means = {
                    name: [_mean(sets, common, name) for sets in runs] for name in ("accuracy", "ece", "nll", "brier")
                }
                accuracy, ece, nll, brier = ((min(values), max(values)) for values in means.values())
                texts.append(
                    f"The {len(runs)} runs of `{method}` range from {100 * accuracy[0]:.2f} to {100 * accuracy[1]:.2f} "
                    f"% of accuracy, {ece[0]:.3f} to {ece[1]:.3f} of ECE, {nll[0]:.3f} to {nll[1]:.3f} of NLL and "
                    f"{brier[0]:.3f} to {brier[1]:.3f} of Brier."
                )
        return texts

    def _under_noise(self, noise: set[Set]) -> str:
        """The range of the NLL under noise over all runs of MC-DropReLU and of Single."""
        texts = []
        for name, methods in {
            "MC-DropReLU": [m for m in self.methods if "droprelu" in m],
            "`single`": ["single"],
        }.items():
            found = [_mean(sets, noise, "nll") for method in methods for sets in self._runs_under(noise, method)]
            texts.append(f"{min(found):.1f} to {max(found):.1f} in {len(found)} runs of {name}")
        return f"Under noise the NLL is {', and '.join(texts)}."

    def other_seeds(self) -> str:
        """Mean and standard deviation of methods that were trained with several seeds; empty if none was."""
        texts = []
        for method in self.methods:
            results = [RunFolder.of(self.config(method, seed), RUNS).read("results") for seed in SEEDS]
            found = [one[KEY] for one in results if one is not None and KEY in one]
            if len(found) > 1:
                accuracy, ece = ([one[name] for one in found] for name in ("accuracy", "ece"))
                accuracy_text = f"{100 * mean(accuracy):.2f} ± {100 * stdev(accuracy):.2f} %"
                ece_text = f"{mean(ece):.3f} ± {stdev(ece):.3f}"
                texts.append(f" Over {len(found)} seeds `{method}` has {accuracy_text} and an ECE of {ece_text}.")
        return "".join([*texts, *[" These are means and standard deviations."] * bool(texts)])

    def reruns(self) -> list[str]:
        """Every run of the rows that were trained more than once with one seed."""
        roots = [RUNS, *sorted(RERUNS.glob("*"))]
        runs = {method: [root for root in roots if method in self.measured(root)] for method in self.methods}
        lines = ["| method, seed 0 | accuracy, % / ECE / NLL in the table | again |", "|---|---|---|"]
        for method, where in runs.items():
            if len(where) > 1:
                results = [self.measured(root)[method][1] for root in where]
                cells = [f"{100 * one['accuracy']:.2f} / {one['ece']:.4f} / {one['nll']:.3f}" for one in results]
                lines.append(f"| `{method}` | {cells[0]} | {'; '.join(cells[1:])} |")
        return lines

    def differences_on_corrupted(self) -> list[str]:
        """How far a run of each row and the same row trained again lie apart under corruptions."""
        texts = []
        for method, (config, _) in self.measured().items():
            first = _corrupted_sets(config)
            for root in sorted(RERUNS.glob("*")):
                again = _corrupted_sets(config, root)
                common = first.keys() & again.keys()
                if common:
                    ours, theirs = (
                        [_mean(sets, common, name) for name in ("accuracy", "ece", "nll")] for sets in (first, again)
                    )
                    cells = [f"{100 * one[0]:.2f} / {one[1]:.3f} / {one[2]:.3f}" for one in (ours, theirs)]
                    texts.append(f"| `{method}` | {len(common)} | {' | '.join(cells)} |")
        return ["| method, seed 0 | sets in common | in the table | again |", "|---|---|---|---|", *texts]

    def shortened(self) -> str:
        """How much shorter than the paper's the trainings were; empty if they were not."""
        paper = recipe_for(self.data).epochs
        (ours,) = {config.recipe.epochs for config, _ in self.measured().values()}
        return "" if ours == paper else f"{ours} epochs where the paper has {paper}, with its schedule in proportion. "

    def origin(self) -> str:
        """Where the numbers come from."""
        found = self.measured()
        environments = [result["environment"] for _, result in found.values()]
        began = [folder.read("environment") for folder in self._members()]
        stated = {key: sorted({str(one[key]) for one in environments}) for key in ("gpu", "torch", "stream_version")}
        gpu, torch, stream = (", ".join(words) for words in stated.values())
        measured, trained = (
            ", ".join(sorted({str(one["commit"])[:7] for one in some})) for some in (environments, began)
        )
        from_on = "" if measured == trained else f"trained from commit {trained} on, measured with "
        return f"{gpu}, torch {torch}, stream {stream}, {from_on}commit {measured}.{self._combined()}"

    def _members(self) -> list[RunFolder]:
        """The folders of all networks that were trained."""
        return [RunFolder.of(member, RUNS) for config, _ in self.measured().values() for member in config.members()]

    def _combined(self) -> str:
        """Which rows were not measured by running their networks."""
        stored = [method for method, (_, one) in self.measured().items() if one["combined_from"] != "networks"]
        names = ", ".join(f"`{method}`" for method in stored)
        return f" {names} is combined from its members' answers as stored, in half precision." if stored else ""

    def side_by_side(self) -> str:
        """How many networks shared the GPU while these were trained."""
        entries = [folder.read("training") for folder in self._members()]
        return " or ".join(map(str, sorted({entry["side_by_side"] for entry in entries if entry is not None})))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells that are Markdown already as the lines of a table."""
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def kept_with(method: str) -> float | None:
    """The ``q`` of MC-DropReLU at every ReLU, 1 for a plain network; None for another method."""
    name, _, q = method.partition(":")
    return 1.0 if name == "single" else float(q) if name == "mc-droprelu" else None


def _with_paper(measure: str, value: float | None, paper: float | None) -> str:
    """Ours, the paper's as it prints it, and the difference."""
    if value is None:
        return "–"
    scale, digits = (100, 2) if measure == "accuracy" else (1, 3)
    ours = f"{scale * value:.{digits}f}"
    if paper is None:
        return ours
    printed = as_printed(measure)
    theirs = printed(paper) if printed else f"{scale * paper:.{digits}f}"
    difference = round(scale * (value - paper), digits) + 0.0  # no negative zero
    return f"{ours} ({theirs}, {difference:+.{digits}f})"


def _mean(sets: Sets, some: Iterable[Set], score: str) -> float:
    return mean(sets[one][score] for one in some)


def _corrupted_sets(config: RunConfig, root: Path = RUNS) -> Sets:
    """What a run was measured to be on each corrupted test set, with the paper's passes."""
    rows = shift_rows(config, root, SETTINGS.shift_samples_of(config))
    return {(row["corruption"], row["severity"]): row for row in rows}


def _detected(measured: list[dict[str, float]]) -> str:
    """AUROC and FPR95 in percent, means over seeds."""
    if not measured:
        return "–"
    cells = (f"{100 * mean(one[name] for one in measured):.1f}" for name in ("auroc", "fpr95"))
    return "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}".join(cells)
