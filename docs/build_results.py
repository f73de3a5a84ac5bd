"""Write what was measured into README.md and the pages of docs/ from ``results/``: ``python docs/build_results.py``.

A part is what stands between ``<!-- name -->`` and ``<!-- /name -->``; the rest of a page is written by hand. With
``--check`` nothing is written, and the exit status says whether all parts are up to date (the figures aside).
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import label_next
import one_training
import related_work
import scaling_page
from result_picture import against_outside, against_q, picture
from result_tables import EARLY, RERUNS, ROOT, RUNS, SAMPLES, SETTINGS, Study, table
from tutorial_pictures import webp

from rbue.files import read_json, write_bytes
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.paper.claims import judge_all
from rbue.lab.paper.experiments import DIVERSE, METHODS, POSITIONS, RELATED, SIX, SWEEP
from rbue.lab.paper.judging import is_shortened
from rbue.lab.paper.results import Measured
from rbue.lab.paper.settings import last_settings
from rbue.lab.report import figures, severity_figures

README, PAGE, IMAGES = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "images"
ONE_TRAINING = ROOT / "docs" / "one-training.md"
SEARCH = ROOT / "docs" / "one-training-search.md"
DECISIONS = ROOT / "docs" / "decisions.md"
CHOOSING_Q = ROOT / "docs" / "choosing-q.md"
SCALING = ROOT / "docs" / "scaling.md"

MAIN = Study("cifar10", "resnet18")
OTHERS = {
    f"{data}-{model}": Study(data, model)
    for data, model in (
        *(("cifar10", "vgg13"), ("cifar10", "densenet121"), ("cifar100", "resnet18")),
        *(("tiny-imagenet", "resnet18"), ("tiny-imagenet", "vgg13")),
    )
}
"""What the paper has besides, as far as it was measured."""
SWEPT = Study("cifar10", "resnet18", (*SWEEP, "single"))
EVERY = Study("cifar10", "resnet18", tuple(dict.fromkeys((*METHODS, *SWEEP, *POSITIONS, *RELATED))))
PLACES = {f"places-{data}": Study(data, "resnet18", ("single", *POSITIONS)) for data in ("cifar10", "tiny-imagenet")}
"""Random ReLUs with every ``q``, these beside the ten rows, and random ReLUs at one place only."""
LABELS = label_next.comparison(label_next.measured())

SHORT = {
    "single": "Single",
    "mc-dropout:0.5": "MC-Dropout, p = 0.5",
    "mc-droprelu:0.9": "**MC-DropReLU, q = 0.9**",
    "mc-droprelu:0.95": "**MC-DropReLU, q = 0.95**",
    "swag": "SWAG, 23 networks stored",
    "deep-ensemble:4": "Deep Ensemble of 4",
}
"""The rows of README."""


def parts() -> dict[Path, dict[str, Iterable[str]]]:
    """The generated parts of each page."""
    page = {
        "comparison": _comparison(),
        "related": related_work.part(),
        "samples": MAIN.by_samples(),
        "shift": [*_corrupted_images(), "", *MAIN.shifted()],
        "scaled": EVERY.scaled(),
        "claims": _claims(),
        "spent": _spent(),
        "timed": _timed_training(),
        "reruns": MAIN.reruns(),
        "reruns-shift": MAIN.differences_on_corrupted(),
        **{name: study.comparison() for name, study in PLACES.items()},
    }
    return {
        README: {"results": [*related_work.STUDY.short(SHORT), *one_training.headline(MAIN)]},
        DECISIONS: {"ood": MAIN.detected(), "active": label_next.part(LABELS)},
        PAGE: page | {name: _other(study) for name, study in OTHERS.items()},
        ONE_TRAINING: {
            "brief": one_training.brief(MAIN),
            "one-training": one_training.clean(MAIN),
            "one-training-damaged": one_training.damaged(MAIN),
            "temperatures": one_training.temperatures(MAIN),
            "elsewhere": one_training.elsewhere([OTHERS["cifar100-resnet18"], OTHERS["cifar10-vgg13"]]),
        },
        SEARCH: {
            "search": one_training.search(),
            "stages": one_training.stages(),
            "earlier": one_training.clean(MAIN, EARLY),
            "earlier-damaged": one_training.damaged(MAIN, EARLY),
            "shared": one_training.shared(MAIN),
        },
        SCALING: {
            "costs": scaling_page.costs(),
            "predicting": scaling_page.predicting(),
            "storing": scaling_page.storing(),
            "training": scaling_page.training(),
            "failing": scaling_page.failing(),
        },
        CHOOSING_Q: {"q-cifar10": SWEPT.by_q(), "q-cifar100": OTHERS["cifar100-resnet18"].by_q(), "q-tuned": _tuned()},
    }


def filled(text: str, contents: Mapping[str, Iterable[str]]) -> str:
    """A page with its parts made anew."""
    for name, lines in contents.items():
        marked = re.compile(f"<!-- {name} -->.*<!-- /{name} -->", flags=re.DOTALL)
        if not marked.search(text):
            raise SystemExit(f"the page has no <!-- {name} --> ... <!-- /{name} -->.")
        inside = "\n".join(["", *lines, ""])
        text = marked.sub(lambda _, name=name, inside=inside: f"<!-- {name} -->{inside}<!-- /{name} -->", text)
    return text


def _comparison() -> list[str]:
    config, result = MAIN.measured()["single"]
    images, accuracy = result["data"]["count"], result["accuracy"]
    error = 100 * math.sqrt(accuracy * (1 - accuracy) / images)
    return [
        f"{config.recipe.epochs} epochs, batch {config.recipe.batch}, the paper's recipe in bfloat16 autocast, seed 0, "
        f"{SAMPLES} samples in float16. The standard error of an accuracy from {images:,} test images is {error:.2f} "
        f"points.{MAIN.other_seeds()} {MAIN.origin()}",
        f"Training time counts compiling and saving. {MAIN.side_by_side()} networks were trained side by side and "
        "share it, so it says little about one method.",
        "",
        *MAIN.comparison(times=True),
    ]


def _corrupted_images() -> list[str]:
    _, result = MAIN.measured()["single"]
    return [
        f"{len(CORRUPTIONS)} kinds of corruption in {len(SEVERITIES)} severities, {MAIN.samples_on_corrupted()} "
        f"samples an image, {result['data']['count']:,} images a set."
    ]


def _timed_training() -> list[str]:
    """The training that a benchmark timed is one more."""
    run = read_json(ROOT / "results" / "full_training.json")["whole_run"]
    return [
        f"The `mc-droprelu:0.9` that `benchmarks/full_training.py` trained last came to {100 * run['accuracy']:.2f} % "
        f"and an ECE of {run['ece']:.4f}; earlier ones were not kept."
    ]


def _claims() -> list[str]:
    """How many sentences of the paper hold, by its own numbers and by what was measured."""
    judged = judge_all(Measured(RUNS, last_settings(RUNS, SETTINGS)))
    paper, here = (Counter(getattr(one, side).holds for one in judged) for side in ("paper", "measured"))
    alone = sum(one.measured.holds is not None and one.measured.fewest_runs == 1 for one in judged)
    shortened = sum(map(is_shortened, judged))
    return [
        f"Of {len(judged)} sentences of the paper that can be checked, {here[True]} hold here, {here[False]} do not, "
        f"and {here[None]} lack numbers. {alone} of these verdicts rest on a single run of some method, "
        f"{shortened} on [networks with fewer epochs](#tinyimagenet) than the paper's. By its own "
        f"tables {paper[True]} hold and {paper[False]} do not (`rbue paper claims --why`)."
    ]


def _spent() -> list[str]:
    """The time on GPUs that all of this took, by the clocks of the trainings."""
    folders = (path for root in (RUNS, RERUNS, related_work.COSTS) for path in root.rglob("training.json"))
    kept = [one["seconds"] for one in map(read_json, folders) if one["device"] == "cuda"]
    tried = [one["training_seconds"] for one in read_json(ROOT / "results" / "search.json")]
    return [
        f"The {len(kept)} networks behind these pages took {sum(kept):,.0f} s on a GPU by the clocks of their "
        f"trainings, the {len(tried)} of the [search](one-training-search.md) {sum(tried):,.0f} s. Trainings in "
        "several processes at once count in full, so the GPU was busy for less; measuring is not counted."
    ]


def _other(study: Study) -> list[str]:
    if not study.measured():
        return study.comparison()
    scaled = ["", "After temperature scaling, as above:", "", *study.scaled()]
    samples = study.samples_on_corrupted()
    damaged = ["", f"Under corruptions, {samples} samples an image:", "", *study.shifted()] if samples else []
    about = f"{study.shortened()}{study.origin()}{study.other_seeds()}"
    return [about, "", *study.comparison(), *scaled, *damaged]


def _tuned() -> list[str]:
    """What ``rbue.tune`` tried on networks that were trained plainly, by their held-out images."""
    rows = []
    for run in read_json(ROOT / "results" / "tuning.json")["runs"][:2]:
        for one in run["searches"]["random ReLUs"]["tried"]:
            scores = f"{100 * one['accuracy']:.2f}", f"{one['nll']:.3f}", f"{one['scaled_nll']:.4f}"
            rows.append([f"`{run['config']['model']}`", one["where"], f"{one['q']:g}", *scores])
    return table(["network", "where", "`q`", "accuracy, %", "NLL", "NLL with temperature"], rows)


def draw() -> None:
    """The figures of the page."""
    measured = Measured(RUNS, SETTINGS)
    place = (MAIN.data, MAIN.model)

    def corrupted(methods: tuple[str, ...], measure: str) -> dict[str, dict[int, list[float]]]:
        by_method = {method: measured.corrupted(*place, method, measure) for method in methods}
        return {
            method: {severity: list(sets.values()) for severity, sets in table.items()}
            for method, table in by_method.items()
        }

    matrices = {method: measured.matrix(*place, method, "dis") for method in DIVERSE}
    drawn = {
        "accuracy-nll": picture(MAIN),
        "one-training": one_training.picture(MAIN),
        "by-corruption": one_training.by_corruption(MAIN),
        "outside": against_outside(MAIN),
        "related": related_work.picture(),
        "scaling": scaling_page.picture(),
        "choosing-q": against_q({"CIFAR-10": SWEPT, "CIFAR-100": OTHERS["cifar100-resnet18"]}),
        "shift-ece": severity_figures.severity_boxes(corrupted(SIX, "ece"), "ECE"),
        "shift-accuracy": severity_figures.severity_boxes(corrupted(SIX, "accuracy"), "accuracy", percent=True),
        "shift-medians": severity_figures.severity_medians(corrupted(METHODS, "ece"), "ECE"),
        "disagreement": figures.heat_maps({name: one for name, one in matrices.items() if one is not None}, "DIS"),
        label_next.IMAGE: label_next.picture(LABELS),
    }
    for name, figure in drawn.items():
        write_bytes(IMAGES / f"{name}.webp", webp(figure))


def main() -> int:
    """Write the pages or check them."""
    wanted = {path: filled(path.read_text(), contents) for path, contents in parts().items()}
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text() != text for path, text in wanted.items()))
    for path, text in wanted.items():
        path.write_text(text)
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
