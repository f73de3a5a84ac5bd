"""Write what was measured into README and docs/results.md from ``results/runs``: ``python docs/build_results.py``.

With ``--check`` nothing is written, and the exit status says whether both are up to date (the figures aside).
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from result_tables import ROOT, RUNS, SAMPLES, Study

from rbue.files import read_json, write_bytes
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.paper.experiments import DIVERSE, METHODS, SIX
from rbue.lab.paper.results import Measured
from rbue.lab.paper.settings import Settings
from rbue.lab.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

START, END = "<!-- results -->", "<!-- /results -->"
PAGE, IMAGES = ROOT / "docs" / "results.md", ROOT / "docs" / "images"

MAIN = Study("cifar10", "resnet18")
OTHERS = {
    "CIFAR-10, VGG-13": Study(
        "cifar10", "vgg13", ("single", "mc-dropout:0.2", "deep-ensemble:4", "mc-rrelu", "mc-droprelu:0.9")
    ),
    "CIFAR-10, DenseNet-121": Study("cifar10", "densenet121", ("single", "mc-droprelu:0.95")),
    "CIFAR-100, ResNet-18": Study(
        "cifar100",
        "resnet18",
        ("single", "mc-dropout:0.2", "deep-ensemble:4", "mc-droprelu:0.8", "mc-droprelu:0.9", "mc-droprelu:0.95"),
    ),
}
"""What the paper has besides, as far as it is planned to be measured."""

PAGE_TEXT = """# More results

What stands in [README](../README.md#does-the-paper-hold), continued. `python docs/build_results.py` writes this page
from `results/runs` and `results/reruns`.

## Under corruptions

CIFAR-10, ResNet-18 (the paper's figure shows DenseNet-121): {kinds} kinds of corruption in {severities} severities,
{samples} samples an image. The corrupted images are computed here from the {images} test images with the published
constants, frost with drawn ice ([how close that comes](shift.md)).
`rbue paper run table1-cifar10 --models {model} --shift` measures them.

{shifted}

Each box has the quartiles over the kinds of corruption, its whiskers the least and the greatest; six methods, with
p=0.2 and q=0.9.

![Box plots of ECE at each severity](images/shift-ece.webp)

![Box plots of accuracy at each severity](images/shift-accuracy.webp)

The medians of the ECE, all ten rows:

![Median ECE at each severity](images/shift-medians.webp)

## How different the samples are

Disagreement of every two of the four members of Deep Ensemble, or of the first four samples:

![Heat maps of disagreement](images/disagreement.webp)

## After temperature scaling

Not in the paper. Two-fold cross-fit on the {images} test images: each half is scaled by the temperature fitted on the
other half, from the stored probabilities, which are rounded to half precision (so the NLL before differs a little from
the one in README, and an accuracy can by an image); before → after. Corrupted images were not scaled.

{scaled}

## Trained again

Sums on a GPU have no fixed order, so one seed is not one outcome; the runs differ in commit and in how many networks
were trained side by side too. Which run stands in README was decided by which could be measured on all corrupted
images, with the answers that an ensemble is combined from, never by its scores; the others are in `results/reruns`.
{timed}

{reruns}

The same runs under corruptions, accuracy in % / ECE / NLL, means over the sets that both have:

{reruns_shifted}
{others}
"""


def section() -> str:
    """The part of README."""
    config, result = next(iter(MAIN.measured().values()))
    images, accuracy = result["data"]["count"], result["accuracy"]
    error = 100 * math.sqrt(accuracy * (1 - accuracy) / images)
    text = [
        START,
        f"CIFAR-10, ResNet-18, {config.recipe.epochs} epochs, batch {config.recipe.batch}, the paper's recipe in "
        f"bfloat16 autocast, seed 0, {SAMPLES} samples in float16: ours, with the paper's value and the difference in "
        f"brackets. One run a row; the standard error of an accuracy from {images:,} test images is {error:.2f} "
        f"points. The paper prints ECE with two digits, so up to 0.005 of a difference can be its rounding. "
        f"Mean-JSD and Mean-DIS compare four samples.{MAIN.other_seeds()}",
        "",
        *MAIN.comparison(),
        "",
        *MAIN.by_samples(),
        "",
        f"{MAIN.origin()} `python docs/build_results.py` renders this from `results/runs`; `rbue paper run "
        f"table1-cifar10 --models {MAIN.model} --methods METHOD` reruns a row; `rbue paper report --runs results/runs "
        f"--models {_measured_models()}` makes the page with everything measured so far. "
        "[More results](docs/results.md): under corruptions, after temperature scaling, trained again, other networks "
        "and data.",
        END,
    ]
    return "\n".join(text)


def _measured_models() -> str:
    """The networks that have numbers, first the one that stands for the others under corruptions."""
    return ",".join(dict.fromkeys([MAIN.model, *(study.model for study in OTHERS.values() if study.measured())]))


def page() -> str:
    """All of docs/results.md."""
    _, result = next(iter(MAIN.measured().values()))
    return PAGE_TEXT.format(
        kinds=len(CORRUPTIONS),
        severities=len(SEVERITIES),
        samples=MAIN.samples_on_corrupted(),
        images=f"{result['data']['count']:,}",
        model=MAIN.model,
        shifted="\n".join(MAIN.shifted()),
        scaled="\n".join(MAIN.scaled()),
        timed=_timed_training(),
        reruns="\n".join(MAIN.reruns()),
        reruns_shifted="\n".join(MAIN.differences_on_corrupted()),
        others="\n".join(_others()),
    )


def _timed_training() -> str:
    """The training that a benchmark timed is one more."""
    run = read_json(ROOT / "results" / "full_training.json")["whole_run"]
    return (
        f"The `mc-droprelu:0.9` that `benchmarks/full_training.py` trained last came to {100 * run['accuracy']:.2f} %\n"
        f"and an ECE of {run['ece']:.4f}; earlier ones were not kept."
    )


def _others() -> Iterator[str]:
    for title, study in OTHERS.items():
        yield from ("", f"## {title}", "")
        if study.measured():
            yield from (f"As in README.{study.other_seeds()} {study.origin()}", "")
        yield from study.comparison()
        if study.measured():
            yield from ("", "After temperature scaling, as above:", "", *study.scaled())


def draw() -> None:
    """The figures of the page."""
    measured = Measured(RUNS, Settings())
    place = (MAIN.data, MAIN.model)

    def corrupted(methods: tuple[str, ...], measure: str) -> dict[str, dict[int, list[float]]]:
        by_method = {method: measured.corrupted(*place, method, measure) for method in methods}
        return {
            method: {severity: list(sets.values()) for severity, sets in table.items()}
            for method, table in by_method.items()
        }

    matrices = {method: measured.matrix(*place, method, "dis") for method in DIVERSE}
    drawn = {
        "shift-ece": figures.severity_boxes(corrupted(SIX, "ece"), "ECE"),
        "shift-accuracy": figures.severity_boxes(corrupted(SIX, "accuracy"), "accuracy", percent=True),
        "shift-medians": figures.severity_medians(corrupted(METHODS, "ece"), "ECE"),
        "disagreement": figures.heat_maps({name: one for name, one in matrices.items() if one is not None}, "DIS"),
    }
    for name, figure in drawn.items():
        _write_picture(figure, IMAGES / f"{name}.webp")


def _write_picture(figure: Figure, path: Path) -> None:
    from PIL import Image

    buffer, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    Image.open(buffer).convert("RGB").save(packed, format="webp", lossless=True, method=6)
    write_bytes(path, packed.getvalue())


def main() -> int:
    """Write both or check them."""
    readme = ROOT / "README.md"
    before = readme.read_text()
    head, rest = before.split(START, 1)
    wanted = {readme: head + section() + rest.split(END, 1)[1], PAGE: page()}
    if "--check" in sys.argv[1:]:
        return int(any(not path.exists() or path.read_text() != text for path, text in wanted.items()))
    for path, text in wanted.items():
        path.write_text(text)
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
