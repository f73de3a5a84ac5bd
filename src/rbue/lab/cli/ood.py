"""``rbue ood``: how well trained runs tell images from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.lab.cli.options import (
    RUN_HELP,
    Augment,
    DeviceName,
    Draws,
    RunsFolder,
    Samples,
    device_named,
    find_all,
    labels_for,
)
from rbue.lab.cli.output import AsJson, as_markup, data_progress, methods_table, number, percent, print_json, say

if TYPE_CHECKING:
    from rbue.lab.data.outside import Outside
    from rbue.lab.runs.folders import RunConfig

_MEASURES: dict[str, Callable[[float], str]] = {"AUROC": number, "AUPR": number, "FPR95": percent}
_SETS = "with commas: registered names, or folder:PATH."


@dataclass(frozen=True)
class Measured:
    """One run and what it came to."""

    label: str
    config: RunConfig
    folder: Path
    groups: dict[str, list[str]]
    entry: dict[str, Any]


def ood(
    where: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    near: Annotated[
        str, typer.Option(help=f"Sets like that of the run, {_SETS}", show_default="the usual ones of CIFAR")
    ] = "",
    far: Annotated[str, typer.Option(help=f"Sets unlike it, {_SETS}", show_default="the usual ones of CIFAR")] = "",
    samples: Samples = 100,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    images: Annotated[int, typer.Option(min=1, help="Most test images of each set, evenly spaced.")] = 10_000,
    training_images: Annotated[
        int | None, typer.Option(min=1, help="Most training images to fit detectors on.", show_default="all")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Which nearest training image counts.")] = 50,
    draws: Draws = "independent",
    augment: Augment = "",
    runs: RunsFolder = Path("runs"),
    device: DeviceName = None,
    json: AsJson = False,
) -> None:
    """Measure how well trained runs tell images from elsewhere: nine scores, each with AUROC, AUPR and FPR95.

    Images from elsewhere are resized to those of the run and normalised as those. Classes that both sets have are left
    out. The distances of the last two scores are those to training images, in the features before the classifier, for
    methods whose samples share one. Results are kept in the run folders. Under torchrun every process predicts its part
    of the images.
    """
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.out_of_distribution import OodSetting, measure_outside, sets_for

    setting = OodSetting(samples, sample_seed, None, draws, augment, images, training_images, k)
    place = device_named(device)
    found = find_all(where, runs)
    chosen = [sets_for(config, _names(near), _names(far)) for config, _ in found]
    labels = labels_for([config for config, _ in found])
    outcome: list[Measured] = []
    opened: dict[tuple[str, str], Outside] = {}
    with data_progress() as progress:
        for (config, root), label, (close, apart) in zip(found, labels, chosen, strict=True):
            entry = measure_outside(config, root, place, [*close, *apart], setting, progress, opened)
            groups = {name: sets for name, sets in (("near", close), ("far", apart)) if sets}
            outcome.append(Measured(label, config, RunFolder.of(config, root).path, groups, entry))
    if json:
        print_json({"runs": [_document(run) for run in outcome]})
        return
    for name in dict.fromkeys(run.config.data for run in outcome):
        _show([run for run in outcome if run.config.data == name])
    for run in outcome:
        say(run.folder / "ood.json")


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _document(run: Measured) -> dict[str, Any]:
    from rbue.lab.runs.out_of_distribution import means

    return {
        "run": run.folder,
        "label": run.label,
        "config": run.config.as_json(),
        **run.groups,
        "means": {group: means(run.entry, sets) for group, sets in run.groups.items()},
        "result": run.entry,
    }


def _show(runs: Sequence[Measured]) -> None:
    from rbue.lab.data.outside import short_name
    from rbue.lab.runs.out_of_distribution import means

    groups = runs[0].groups
    several = [name for names in groups.values() if len(names) > 1 for name in names]  # one alone is its own mean

    def scores(run: Measured) -> Iterator[list[str]]:
        of_groups = [means(run.entry, names) for names in groups.values()]
        for score in of_groups[0]:
            cells = [show(mean[score][measure.lower()]) for mean in of_groups for measure, show in _MEASURES.items()]
            each = [number(run.entry["sets"][name]["scores"][score]["auroc"]) for name in several]
            yield [score.replace("_", " "), *cells, *each]

    names = [as_markup(short_name(name)) for name in several]
    headings = ["score", *(f"{measure} {group}" for group in groups for measure in _MEASURES), *names]
    first = runs[0].entry
    counted = [f"{short_name(name)} ({found['images']:,})" for name, found in first["sets"].items()]
    methods_table(
        f"{runs[0].config.data} ({first['data']['count']:,} test images) against {', '.join(counted)}",
        headings,
        [(run.label, scores(run)) for run in runs],
        less_important=[*(f"AUPR {group}" for group in groups), *names],
        left=["score"],
        note="images from elsewhere are the positives" + ("; a set has its AUROC" if several else ""),
        parted=True,
    )
