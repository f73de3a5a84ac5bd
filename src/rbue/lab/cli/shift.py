"""``rbue shift`` and ``rbue corrupt``: trained runs on damaged images, and a picture of the damage."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError, RbueWarning, warn
from rbue.files import check_writable, write_bytes
from rbue.lab.cli.options import (
    RUN_HELP,
    Augment,
    DeviceName,
    Draws,
    EngineName,
    RunsFolder,
    Samples,
    TaskOptions,
    device_named,
    find_all,
    labels_for,
)
from rbue.lab.cli.output import AsJson, data_progress, methods_table, number, percent, print_json, remark, say, working
from rbue.lab.cli.runs import write_page
from rbue.lab.processes import is_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rbue.lab.data.images import Bytes
    from rbue.lab.executors import Executor
    from rbue.lab.report.run_records import Record
    from rbue.lab.runs.folders import RunConfig, RunFolder
    from rbue.lab.shift import Row, Setting

DOTS_PER_INCH = 200
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
LONGEST_SIDE = 512


@dataclass(frozen=True)
class Measured:
    """One run and what it came to."""

    label: str
    config: RunConfig
    folder: RunFolder
    rows: list[Row]
    clean: dict[str, Any] | None
    split: str = "test"

    @property
    def images(self) -> str:
        """What was damaged, in words."""
        return self.config.data if self.split == "test" else f"{self.config.data} ({self.split})"


def shift(
    tasks: TaskOptions,
    where: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    corruptions: Annotated[str | None, typer.Option(help="Names with commas.", show_default="all 19")] = None,
    severities: Annotated[str, typer.Option(help="Numbers from 1 to 5 with commas.")] = "1,2,3,4,5",
    samples: Samples = 100,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Stop for an image when its answer has settled.")
    ] = False,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    split: Annotated[
        str, typer.Option(help="Images to damage: those of 'test', or of 'validation', kept by --holdout.")
    ] = "test",
    draws: Draws = "independent",
    augment: Augment = "",
    cache: Annotated[bool, typer.Option(help="Keep generated images for the next time.")] = True,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = Path("shift"),
    page: Annotated[
        Path | None, typer.Option(help="Write the page of these runs, damaged images included, to an .html file too.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    device: DeviceName = None,
    engine: EngineName = "local",
    json: AsJson = False,
) -> None:
    """Measure trained runs on damaged images: 19 corruptions at severities 1 to 5.

    Published sets (CIFAR-10-C, CIFAR-100-C, Tiny-ImageNet-C) are used where they lie beside the data; otherwise the
    images are made here. Results are kept in the run folders, so a second command continues where one was stopped.
    Under torchrun every process measures its part of the damaged sets.
    """
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.shift import Setting, clean_result, shift_runs
    from rbue.lab.shift.rows import clean_otherwise
    from rbue.sampling.adaptive import Adaptive

    names, levels = names_in(corruptions), levels_in(severities)
    if page is not None and page.suffix != ".html":
        raise InvalidInput(f"the page cannot be written to {page}; end its name in .html.")
    if page is not None and split != "test":
        raise InvalidInput(f"a page is about test images; leave out --page {page} or --split {split}.")
    if page is not None:
        check_writable(page)
    setting = Setting(samples, sample_seed, Adaptive() if adaptive else None, draws, augment)
    found = find_all(where, runs)
    if page is not None and not any(RunFolder.of(config, root).read("results") for config, root in found):
        raise InvalidInput("--page has clean images beside the damaged ones; measure them first: rbue evaluate RUN.")
    by_root = {root: [config for config, its_root in found if its_root == root] for _, root in found}
    how: dict[str, Any] = {"severities": levels, "cache": cache, "split": split}
    how |= {"samples": samples, "seed": sample_seed, "adaptive": setting.adaptive, "draws": draws, "augment": augment}
    with tasks.on(engine, device) as executor:
        if engine != "local":  # what is measured there is found measured below
            _spread(by_root, executor, names, how)
    place = device_named(None if engine == "ray" else device)
    rows: dict[tuple[RunConfig, Path], list[Row]] = {}
    with data_progress() as progress:
        for root, configs in by_root.items():
            measured = shift_runs(configs, root, place, corruptions=names, progress=progress, **how)
            rows.update({(config, root): its_rows for config, its_rows in zip(configs, measured, strict=True)})
    if not is_first():
        return
    labels = labels_for([config for config, _ in found])
    outcome = []
    for (config, root), label in zip(found, labels, strict=True):
        folder = RunFolder.of(config, root)
        clean = clean_result(config, folder, setting, split)
        if words := clean_otherwise(config, folder, setting, split):
            remark(f"note: no clean row for {label}: {words}.")
        outcome.append(Measured(label, config, folder, rows[config, root], clean, split))
    for of_one_set in _by_data(outcome):
        _warn_of_different_images(of_one_set)
    figures = write_figures(outcome, output)
    if page is not None:
        try:
            write_page([_as_measured(run, setting) for run in outcome], page, place)
            figures = [*figures, page]
        except RbueError as error:  # such as runs that were never measured on clean images
            remark(f"no page: {error}")
    if json:
        print_json(
            {
                "samples": samples,
                "adaptive": adaptive,
                "seed": sample_seed,
                "draws": draws,
                **({} if split == "test" else {"split": split}),
                **({"augment": setting.augment} if augment else {}),
                **_document(outcome, figures),
            }
        )
        return
    for of_one_set in _by_data(outcome):
        _show(of_one_set)
    for path in figures:
        say(path)


def _as_measured(run: Measured, setting: Setting) -> Record:
    """A run for a page about what was just measured, with the clean images that belong to it, if those were."""
    from rbue.lab.report.run_records import read_records

    (record,) = read_records([run.folder])
    clean = next((key for key, result in record.results.items() if result == run.clean), "")
    return replace(record.measured_as(clean), damaged=setting)


def _spread(
    by_root: Mapping[Path, Sequence[RunConfig]], executor: Executor, names: Sequence[str], how: dict[str, Any]
) -> None:
    """Measure runs by tasks, each of which makes the images of one corruption, once, and measures all runs on them."""
    from rbue.lab.executors import in_order
    from rbue.lab.runs.folders import has_weights

    items = [(root.absolute(), name) for root in by_root for name in names]
    # What others lack, of all corruptions together, is for the command itself to say.
    configs = {root.absolute(): [one for one in some if has_weights(one, root)] for root, some in by_root.items()}
    task = partial(_measure, configs=configs, how={**how, "device": executor.device, "helpers": executor.helpers})
    done = 0
    with data_progress() as progress, closing(executor.each(task, in_order(items))) as ended:
        for _, _, error in ended:
            if error is not None:
                raise error
            done += 1
            progress("corruptions measured", done, len(items))


def _measure(item: tuple[Path, str], configs: Mapping[Path, Sequence[RunConfig]], how: dict[str, Any]) -> None:
    from rbue.lab.shift import shift_runs

    root, name = item
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)  # the command itself warns of what all corruptions came to
        shift_runs(configs[root], root, corruptions=[name], **how)


def names_in(text: str | None) -> list[str]:
    """The corruptions that a list with commas names."""
    from rbue.lab.corruptions import CORRUPTIONS

    if text is None:
        return list(CORRUPTIONS)
    names = text.replace(",", " ").split()
    if not names:
        raise InvalidInput(f"--corruptions names none; there are {', '.join(CORRUPTIONS)}.")
    return names


def levels_in(text: str) -> list[int]:
    """The severities that a list with commas names."""
    from rbue.lab.corruptions import SEVERITIES

    parts = text.replace(",", " ").split()
    if not parts or not all(part.isdecimal() and int(part) in SEVERITIES for part in parts):
        raise InvalidInput(
            f"--severities must be numbers from 1 to 5 with commas, such as 1,3,5, not {text!r}; "
            "`rbue evaluate` measures the clean images, which are severity 0."
        )
    return [int(part) for part in parts]


def write_figures(outcome: Sequence[Measured], folder: Path) -> list[Path]:
    """The paper's box plots and curves of every data set, as SVG and PNG; none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        remark("no figures: matplotlib is not here; `pip install 'rbue[lab]'` brings it.")
        return []
    from rbue.lab.report.figure_style import svg

    written = []
    for runs in _by_data(outcome):
        data = runs[0].folder.path.parents[1].name + ("" if runs[0].split == "test" else f"-{runs[0].split}")
        for name, figure in _figures(runs).items():
            drawing = io.BytesIO()
            figure.savefig(drawing, format="png", dpi=DOTS_PER_INCH)
            for suffix, content in ((".svg", svg(figure).encode()), (".png", drawing.getvalue())):
                written.append(folder / f"{data}-{name}{suffix}")
                write_bytes(written[-1], content)
    return written


def _figures(runs: Sequence[Measured]) -> dict[str, Figure]:
    from rbue.lab.report.severity_figures import severity_boxes, severity_medians
    from rbue.lab.shift import by_severity

    damaged = {name: {run.label: by_severity(run.rows, name) for run in runs} for name in ("accuracy", "ece")}
    with_clean = {run.label: by_severity(run.rows, "ece", run.clean) for run in runs}
    data = runs[0].images
    return {
        "accuracy-boxes": severity_boxes(damaged["accuracy"], "accuracy", percent=True, title=f"{data}: accuracy"),
        "ece-boxes": severity_boxes(damaged["ece"], "ECE", title=f"{data}: calibration error"),
        "ece-medians": severity_medians(with_clean, "ECE", title=f"{data}: calibration error"),
    }


def _by_data(outcome: Sequence[Measured]) -> list[list[Measured]]:
    names = dict.fromkeys(run.config.data for run in outcome)
    return [[run for run in outcome if run.config.data == name] for name in names]


def _document(outcome: Sequence[Measured], figures: Sequence[Path]) -> dict[str, Any]:
    from rbue.lab.shift import summarise

    runs = [
        {
            "run": run.folder.path,
            "label": run.label,
            "config": run.config.as_json(),
            "clean": run.clean,
            "by_severity": [asdict(summary) for summary in summarise(run.rows)],
            "rows": run.rows,
        }
        for run in outcome
    ]
    return {"runs": runs, "figures": figures}


def _warn_of_different_images(runs: Sequence[Measured]) -> None:
    """Say so if a damaged set was not the same for all runs: published for one and made for another, or other frost.

    Or made from other images that were held out.
    """
    from rbue.lab.runs.training import training_data
    from rbue.lab.shift import ShiftStore

    split = runs[0].split
    if split != "test" and len({training_data(run.config) for run in runs}) > 1:
        warn(
            f"these runs on {runs[0].config.data} held out different images, so that their numbers do not compare; "
            "give runs with the same --holdout and --holdout-seed."
        )
    first: dict[tuple[str, int], tuple[Measured, Row]] = {}
    for run in runs:
        for row in run.rows:
            other_run, other = first.setdefault((row["corruption"], row["severity"]), (run, row))
            if row["variant"] != other["variant"]:
                file = ShiftStore(run.folder, split).file
                warn(
                    f"{other_run.label} and {run.label} were not measured on the same damaged images "
                    f"({other['variant']!r} and {row['variant']!r}), so that their numbers do not compare; remove the "
                    f"{file.name} of either, such as {file}, to have that one measured again."
                )
                return


def _made_how(rows: Sequence[Row]) -> str:
    """Where damaged images come from, with the frost that was used: ``generated, frost: drawn ice``."""
    kinds = {row["variant"].split(":")[0] for row in rows}
    frost = {row["variant"].partition(", frost: ")[2].split(",")[0] for row in rows} - {""}
    return ", ".join([*sorted(kinds), *(["frost: " + " and ".join(sorted(frost))] if frost else [])])


def _show(runs: Sequence[Measured]) -> None:
    from rbue.lab.shift import summarise

    methods = []
    for run in runs:
        clean = run.clean
        rows = [] if clean is None else [("clean", percent(clean["accuracy"]), "", number(clean["ece"]), "", "")]
        for one in summarise(run.rows):
            accuracy, ece = percent(one.accuracy), number(one.ece)
            worst = percent(one.worst_accuracy), number(one.worst_ece)
            rows.append((str(one.severity), accuracy, worst[0], ece, worst[1], one.hardest))
        methods.append((run.label, rows))
    kinds = len({row["corruption"] for run in runs for row in run.rows})
    images = _made_how([row for run in runs for row in run.rows])
    methods_table(
        f"{runs[0].images} under {kinds} corruption{'s' if kinds != 1 else ''} ({images})",
        ("severity", "accuracy", "worst", "ECE", "worst", "hardest"),
        methods,
        less_important=("hardest", "worst"),
        left=["hardest"],
        note="mean and worst over the corruptions; hardest: the one of lowest accuracy",
        parted=True,
    )


def corrupt(
    image: Annotated[str, typer.Argument(help="An image file, or the number of a test image of --data.")],
    data_name: Annotated[str, typer.Option("--data", help="Data set of a numbered image.")] = "cifar10",
    corruption: Annotated[
        str | None, typer.Option(help="One corruption, in a row.", show_default="all, on a sheet")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the damage; test sets have 0.")] = 0,
    tile: Annotated[int, typer.Option(min=16, max=1024, help="Pixels an image gets in the picture.")] = 96,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .png, .jpg or .webp.")] = Path(
        "corruptions.png"
    ),
) -> None:
    """Show one image under all 19 corruptions at severities 1 to 5, or under one at severities 0 to 5."""
    from rbue.lab.corruptions import contact_sheet, severity_strip
    from rbue.lab.corruptions.corrupting import find

    if output.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"the picture cannot be written to {output}; end its name in {', '.join(SUFFIXES)}.")
    if corruption is not None:
        find(corruption)
    index = int(image) if image.isdecimal() else 0
    pixels = numbered_image(data_name, index) if image.isdecimal() else small_image(Path(image))
    with working("corrupting"):
        if corruption is None:
            picture = contact_sheet(pixels, seed=seed, index=index, tile=tile)
        else:
            picture = severity_strip(pixels, corruption, seed=seed, index=index, tile=tile)
    content = io.BytesIO()
    picture.save(content, SUFFIXES[output.suffix.lower()])
    write_bytes(output, content.getvalue())
    say(output)


def numbered_image(name: str, index: int) -> Bytes:
    """The pixels of a test image."""
    import numpy as np

    from rbue.lab import data
    from rbue.lab.shift.corrupted_sets import check_size

    images = data.load(name, "test")
    check_size(images)
    if index >= len(images):
        raise InvalidInput(f"there is no test image {index} of {name}; its {len(images):,} are numbered from 0.")
    return np.asarray(images.images[index])


def small_image(path: Path) -> Bytes:
    """The pixels of an image file, RGB."""
    import numpy as np

    from rbue.image_decoding import open_image

    with open_image(path) as image:
        if max(image.size) > LONGEST_SIDE:
            raise InvalidInput(
                f"{path} has {image.size[0]}x{image.size[1]} pixels; the corruptions are those of small images, "
                f"make it at most {LONGEST_SIDE} pixels high and wide first."
            )
        return np.asarray(image.convert("RGB"))
