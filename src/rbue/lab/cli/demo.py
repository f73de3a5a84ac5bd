"""``rbue demo``: the paper's methods on clean and damaged digits, a page, and three sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbue.lab.cli.options import DeviceName, RunsFolder, Selection, device_named
from rbue.lab.cli.output import AsJson, data_progress, print_json, remark, say, table, working
from rbue.lab.cli.runs import write_page
from rbue.lab.cli.train import trained

if TYPE_CHECKING:
    from rbue.lab.demo import Findings

_SHOWN = {"accuracy": ("accuracy", lambda value: f"{100 * value:.1f} %"), "nll": ("NLL", "{:.2f}".format)}


def demo(
    runs: RunsFolder = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of initialisation and training.")] = 0,
    device: DeviceName = None,
    json: AsJson = False,
) -> None:
    """Train the paper's methods on digits, measure them on clean and damaged ones, and say what one sees.

    Needs no download, and less than three minutes on two cores. It ends with three sentences, which follow from what
    was measured, and a page to look at, beside the runs.
    """
    from rbue.lab import demo as demonstration
    from rbue.lab.report.run_records import read_records
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.measuring import evaluate_run
    from rbue.lab.shift import shift_runs

    place = device_named(device)
    samples = demonstration.SAMPLES
    selection = Selection(
        data=demonstration.DATA, model=demonstration.MODEL, epochs=demonstration.EPOCHS, seed=seed, runs=runs
    )
    configs = [selection.config(method) for method in demonstration.METHODS]
    for turn, config in enumerate(configs, 1):
        remark(f"{turn} of {len(configs)}: {config.method}")
        trained(config, runs, place)
        with working(f"evaluating {config.method}"):
            evaluate_run(config, runs, place, samples=samples)
    damage = demonstration.CORRUPTIONS, demonstration.SEVERITIES
    with data_progress() as progress:
        shift_runs(configs, runs, place, *damage, samples, progress=progress, cache=False)
    found = demonstration.find(configs, runs)
    said = demonstration.sentences(found)
    page = runs / "comparison.html"
    write_page(read_records(RunFolder.of(config, runs) for config in configs), page, place, lead="\n\n".join(said))
    if json:
        print_json({"sentences": said, "page": page, "runs": [RunFolder.of(config, runs).path for config in configs]})
        return
    _show(found)
    for sentence in said:
        say(f"\n{sentence}")
    say("")
    say(page)


def _show(found: Findings) -> None:
    headings = [f"{name}, {images}" for name, _ in _SHOWN.values() for images in ("clean", "damaged")]
    rows = []
    for method in found.clean.confidence:
        cells = [
            text(answered.value(measure, method))
            for measure, (_, text) in _SHOWN.items()
            for answered in (found.clean, found.damaged)
        ]
        rows.append((method, *cells))
    table("Digits: accuracy (more is better) and NLL (less is better)", ("method", *headings), rows, right=headings)
