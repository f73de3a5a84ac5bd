"""``rbue evaluate``, ``calibrate`` and ``predict``: what trained runs make of test images, and of a user's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import check_writable, write_bytes
from rbue.lab.cli.options import (
    DRAWS,
    RUN_HELP,
    Augment,
    DeviceName,
    Draws,
    EngineName,
    MethodName,
    RunsFolder,
    Samples,
    Selection,
    Split,
    TaskOptions,
    device_named,
    find_all,
    find_run,
    given_settings,
    labels_for,
    was_typed,
)
from rbue.lab.cli.output import (
    AsJson,
    complain,
    data_progress,
    duration,
    facts,
    methods_table,
    number,
    percent,
    print_json,
    remark,
    say,
    table,
    working,
)

if TYPE_CHECKING:
    from rbue.lab import data
    from rbue.lab.data.images import Bytes
    from rbue.lab.runs.folders import RunConfig
    from rbue.lab.runs.scoring import Scored

    Run = tuple[RunConfig, Path]

_of_many = partial(typer.Option, rich_help_panel="Many images (-o NAME.parquet)")
SCORES = {"ECE": "ece", "NLL": "nll", "Brier": "brier"}


def evaluate(
    ctx: typer.Context,
    selection: Selection,
    run: Annotated[str | None, typer.Argument(help=f"{RUN_HELP} Or give the settings it was trained with.")] = None,
    method: MethodName = "single",
    samples: Samples = 100,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    split: Split = "test",
    draws: Draws = "independent",
    augment: Augment = "",
    json: AsJson = False,
) -> None:
    """Measure a trained run: accuracy, calibration, proper scores, diversity. The result is kept in its folder.

    Under torchrun every process predicts its part of the images.
    """
    from rbue.lab.runs.folders import RunFolder, settings_and_root
    from rbue.lab.runs.measuring import evaluate_run

    device = device_named(selection.device)
    if run is None:
        config, root = selection.config(method), selection.runs
    else:
        typed = given_settings(ctx)
        if typed:
            raise InvalidInput(
                f"the settings of {run} are in its folder; leave out {', '.join(typed)} "
                "(--sample-seed is the seed of the random passes)."
            )
        config, root = settings_and_root(find_run(run, selection.runs))
    with working(f"evaluating {config.method} on {config.data}"):
        asked = {"samples": samples, "seed": sample_seed, "split": split, "draws": draws, "augment": augment}
        result = evaluate_run(config, root, device, **asked)  # type: ignore[arg-type]
    folder = RunFolder.of(config, root).path
    if json:
        print_json({"run": folder, "config": config.as_json(), "result": result})
        return
    say(f"{config.method} · {config.model} on {config.data}, {result['data']['count']:,} {split} images\n")
    plain = ", of plain passes" if result.get("augment") and result["mean_jsd"] is not None else ""
    facts(
        [
            ("accuracy", percent(result["accuracy"])),
            ("ECE", number(result["ece"])),
            ("NLL", number(result["nll"])),
            ("Brier score", number(result["brier"])),
            ("AURC", number(result["aurc"])),
            ("mean entropy", number(result["entropy"])),
            ("mean mutual information", number(result["mutual_information"])),
            ("Mean-JSD", number(result["mean_jsd"]) + plain),
            ("Mean-DIS", number(result["mean_dis"]) + plain),
            ("samples", f"{result['samples']} {result.get('draws', 'independent')} (seed {result['seed']})"),
            *([("augmentations", result["augment"])] if result.get("augment") else []),
            ("parameters", f"{result['parameters']:,}"),
            ("training time", duration(result["training_seconds"])),
        ]
    )
    say("")
    say(folder)


def calibrate(
    where: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    runs: RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Say what one temperature would do to measured runs; no network is needed. The paper does not do this.

    The log of the stored mean probabilities is divided by a temperature. Each half of the test images gets the one
    that fits the other half best (a two-fold cross-fit), so accuracy stays as it is and no image is scaled by its own
    label. Scores before and after are kept in the run folder. A run that cannot be calibrated is named, and the others
    are all the same. Networks of a run given here need not be measured themselves.
    """
    from rbue.lab.report.tables import counted
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.temperatures import at_a_bound, calibrate_run

    found, beside = _without_unmeasured_networks(find_all(where, runs))
    if beside:
        remark(f"note: left out, as never measured alone: {counted(beside, 'network')} of these runs.")
    made: list[Calibrated] = []
    errors: dict[Path, RbueError] = {}
    for (config, root), label in zip(found, labels_for([config for config, _ in found]), strict=True):
        folder = RunFolder.of(config, root).path
        try:
            with working(f"calibrating {config.method} on {config.data}"):
                made.append(Calibrated(config, folder, label, *calibrate_run(config, root)))
        except RbueError as error:
            errors[folder] = error
    if made and json:
        documents = [
            {"run": one.folder, "config": one.config.as_json(), "measurement": one.key, "calibration": one.entry}
            for one in made
        ]
        failed = [{"run": folder, "error": str(error)} for folder, error in errors.items()]
        print_json({"runs": documents, **({"failed": failed} if failed else {})})
    elif made:
        for name in dict.fromkeys(one.config.data for one in made):
            rows = [(one.shown, [_row(one.entry)]) for one in made if one.config.data == name]
            title = f"{name} after temperature scaling (two-fold cross-fit on the test set; not in the paper)"
            methods_table(title, ("temperatures", "accuracy", *SCORES), rows, less_important=("Brier", "accuracy"))
        for one in made:
            if at_a_bound(one.entry):
                low, high = one.entry["bounds"]
                remark(f"note: no temperature from {low:g} to {high:g} is best for {one.label}; a bound is used.")
        for one in made:
            say(one.folder / "calibration.json")
    if errors:
        *earlier, last = errors.values()
        for before in earlier:
            complain(str(before))
        raise last


@dataclass(frozen=True)
class Calibrated:
    """A run after temperature scaling; ``key`` is the measurement, ``entry`` what came of it."""

    config: RunConfig
    folder: Path
    label: str
    key: str
    entry: dict[str, Any]

    @property
    def shown(self) -> str:
        """What it is called in the table."""
        augment = self.key.partition(",augment=")[2]
        return f"{self.label} (augmented: {augment})" if augment else self.label


def _without_unmeasured_networks(found: Sequence[Run]) -> tuple[list[Run], int]:
    """Runs but those that only trained networks of others among them, as members of an ensemble; and how many not."""
    from rbue.lab.runs.folders import RunFolder

    networks = {(one, root) for config, root in found for one in config.trainings() if one != config}
    kept = [
        (config, root)
        for config, root in found
        if (config, root) not in networks or (RunFolder.of(config, root).path / "results.json").exists()
    ]
    return kept, len(found) - len(kept)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    before, after = entry["before"], entry["after"]
    temperatures = ", ".join(f"{one:.3f}" for one in entry["temperatures"])
    scores = (f"{before[key]:.4f} → {after[key]:.4f}" for key in SCORES.values())
    return (temperatures, percent(after["accuracy"]), *scores)


def predict(
    tasks: TaskOptions,
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help=RUN_HELP)],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE...", help="Image files of the data set's size, folders of them, or Parquet files."
        ),
    ],
    samples: Samples = 100,
    seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    draws: Annotated[str | None, DRAWS] = None,
    augment: Augment = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a .csv file too; or a .parquet folder, for any number of images."),
    ] = None,
    device: DeviceName = None,
    runs: RunsFolder = Path("runs"),
    column: Annotated[
        str | None, _of_many(help="Column of images in Parquet files.", show_default="the one that can be")
    ] = None,
    block: Annotated[int, _of_many(min=1, help="Images in a file of answers, at least.")] = 2000,
    engine: EngineName = "local",
    json: AsJson = False,
) -> None:
    """Say what is on images, and how sure that is.

    Entropy (in nats) is the whole uncertainty; mutual information is the part that comes from the model not knowing.

    Of a folder, all images in it and in the folders below are taken, sorted by path; other files are left out. An image
    that cannot be read is named at the end, and the exit code is 1 then; the others are predicted all the same.

    With -o NAME.parquet images are predicted in blocks, a file each, and the same command continues where it stopped.
    """
    import numpy as np

    from rbue.lab.report.tables import counted
    from rbue.lab.runs.folders import settings_and_root
    from rbue.lab.runs.measuring import predict_images
    from rbue.lab.runs.networks import load_networks, trained_on
    from rbue.lab.runs.passes import Passes, best_draws
    from rbue.lab.runs.scoring import score, scoring_of

    many = output is not None and output.suffix.lower() == ".parquet"
    if output is not None and not many and output.suffix.lower() != ".csv":
        raise InvalidInput(f"predictions cannot be written to {output}; its name must end in .csv or .parquet.")
    if output is not None and not many:
        check_writable(output)
    needs_many = [f"--engine {engine}"] if engine != "local" else []
    of_many = ("column", "block", *vars(tasks))
    needs_many += [f"--{name}" for name in of_many if was_typed(ctx, name)]
    needs_many += ["Parquet files"] if any(path.suffix.lower() == ".parquet" for path in images) else []
    if needs_many and not many:
        what = ", ".join(needs_many)
        raise InvalidInput(f"{what}: the answers go to a folder of Parquet files; give -o NAME.parquet.")
    config, root = settings_and_root(find_run(run, runs))
    passes = Passes(samples, seed, draws=draws or best_draws(config), augment=augment).of(config)
    if output is not None and many:
        with tasks.on(engine, device) as executor:
            scoring = scoring_of(config, root, output, passes, executor.device, block)
            started = time.monotonic()
            with data_progress() as progress:
                scored = score(scoring, images, executor, column, progress)
        _show_scored(scored, output, time.monotonic() - started, json)
        return
    place = device_named(device)
    known = trained_on(config, root)
    read, unreadable = read_images(images, known)
    # One that cannot be read keeps its place, black, so that the answers about the others do not depend on it.
    black = np.zeros(known.images.shape[1:], np.uint8)
    pixels = np.stack([black if found is None else found for found in read.values()])
    unlabelled = known.unlabelled(pixels)
    with working(f"predicting with {config.method}"):
        networks = load_networks(config, root, place)
        prediction = predict_images(config, networks, unlabelled, passes, place)
    rows: list[dict[str, Any]] = [
        {
            "image": str(path),
            "label": known.classes[int(prediction.label[index])],
            "confidence": float(prediction.confidence[index]),
            "entropy": float(prediction.entropy[index]),
            "mutual_information": float(prediction.mutual_information[index]),
            "samples": int(prediction.samples_used[index]),
            "probabilities": dict(zip(known.classes, prediction.probs[index].tolist(), strict=True)),
        }
        for index, (path, found) in enumerate(read.items())
        if found is not None
    ]
    if output is not None:
        write_bytes(output, _comma_separated(rows).encode())
    if json:
        asked = {"seed": seed, "draws": passes.draws, **({"augment": passes.augment} if passes.augment else {})}
        failed = [{"image": str(path), "error": sentence} for path, sentence in unreadable.items()]
        print_json({"run": run, "method": config.method, **asked, "predictions": rows, "unreadable": failed})
    else:
        numbers = ("confidence", "entropy", "mutual information")
        cells = []
        for row in rows:
            information = number(row["mutual_information"] if row["samples"] > 1 else None)
            shown = percent(row["confidence"]), number(row["entropy"]), information
            cells.append((row["image"], row["label"], *shown))
        title = f"{config.method} · {config.model} on {config.data}, {counted(rows[0]['samples'], 'sample')}"
        table(title, ("image", "label", *numbers), cells, right=numbers)
        if output is not None:
            say(output)
    if unreadable:
        for sentence in unreadable.values():
            complain(sentence)
        remark(f"{len(unreadable)} of {len(rows) + len(unreadable)} images could not be predicted.")
        raise typer.Exit(1)


def _show_scored(scored: Scored, output: Path, seconds: float, json: bool) -> None:
    """What became of many images; of those that could not be read, the first few."""
    from rbue.lab.data.image_files import left_out

    for folder, count in scored.listing.left_out.items():
        remark(f"note: {left_out(scored.listing.examples[folder], folder, count)}")
    if json:
        counts = {"images": scored.images, "unreadable": scored.unreadable, "predicted_now": scored.predicted_now}
        print_json({"output": output, **counts, "seconds": seconds})
    else:
        say(
            f"{scored.images - scored.unreadable:,} of {scored.images:,} images predicted, {scored.predicted_now:,} of "
            f"them now, in {duration(seconds)}"
        )
        say(output)
    if scored.unreadable:
        for sentence in scored.reasons:
            complain(sentence)
        some = f"{scored.unreadable:,} of {scored.images:,}"
        remark(f"{some} images could not be predicted; the column error says why of each.")
        raise typer.Exit(1)


def read_images(paths: Sequence[Path], like: data.ImageSet) -> tuple[dict[Path, Bytes | None], dict[Path, str]]:
    """The pixels of image files and of those in folders, each once, and what is wrong with those that have none.

    Raises:
        InvalidInput: there is no image among them.
    """
    from rbue.lab.data.folder import read_image
    from rbue.lab.data.image_files import image_files, left_out

    read: dict[Path, Bytes | None] = {}
    unreadable: dict[Path, str] = {}
    for given in paths:
        found = [given]
        if given.is_dir():
            found, others = image_files(given)
            if others:
                remark(f"note: {left_out(others, given)}")
            if not found:
                unreadable[given] = f"there is no image in {given}."
        for path in found:
            if path not in read:
                try:
                    read[path] = read_image(path, like)
                except InvalidInput as error:
                    read[path], unreadable[path] = None, str(error)
    if all(found is None for found in read.values()):
        more = f" (and {len(unreadable) - 1} more like it)" if len(unreadable) > 1 else ""
        raise InvalidInput(f"{next(iter(unreadable.values())).rstrip('.')}{more}.")
    return read, unreadable


def _comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """The predictions for a spreadsheet, a column for each class at the end."""
    from rbue.lab.report.tables import csv_rows

    names, classes = [name for name in rows[0] if name != "probabilities"], rows[0]["probabilities"]
    values = ([*(row[name] for name in names), *row["probabilities"].values()] for row in rows)
    return csv_rows([*names, *(f"p({name})" for name in classes)], values)
