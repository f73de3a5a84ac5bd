"""``rbue active`` and ``rbue active-report``: what to label next, round by round, and the page of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_bytes
from rbue.lab.cli.options import ENGINES, Samples, Selection, TaskOptions, fractions, place_and_steps
from rbue.lab.cli.output import AsJson, complain, duration, number, percent, print_json, remark, say, table, working
from rbue.lab.cli.train import Together, of_way

if TYPE_CHECKING:
    from rbue.lab.active import ActiveConfig
    from rbue.lab.active.loop import ActiveImages, Round
    from rbue.lab.executors import Executor
    from rbue.lab.runs.folders import RunConfig

_of_labels = partial(typer.Option, rich_help_panel="Labels")
ACQUISITIONS = "random, entropy, margin, variation-ratio, bald, batch-bald, core-set"
STEPS = "2,000"
_SUFFIXES = (".html", ".htm", ".md", ".tex")


def active(
    selection: Selection,
    tasks: TaskOptions,
    method: Annotated[str, typer.Option(help="One or more, with commas; `rbue methods` lists them.")] = "mc-droprelu",
    acquire: Annotated[str, _of_labels(help=f"One or more, with commas: {ACQUISITIONS}.")] = "bald",
    start: Annotated[int, _of_labels(help="Images labelled at first, as many of each class as can be.")] = 20,
    take: Annotated[int, _of_labels(help="Images labelled after each round.")] = 10,
    rounds: Annotated[int, _of_labels(min=0, help="How often; there is one training more, with all labels.")] = 10,
    pool: Annotated[
        int | None,
        _of_labels(help="Choose among so many images, drawn anew each round.", show_default="all without a label"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 1,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of each network in each round; --epochs in its place counts passes over the labelled images.",
            show_default=STEPS,
        ),
    ] = None,
    samples: Samples = 20,
    together: Together = 1,
    engine: Annotated[
        str,
        of_way(
            help="processes: several of this machine do the runs; ray: a Ray cluster does. "
            f"Else how training steps run: {ENGINES}."
        ),
    ] = "auto",
    json: AsJson = False,
) -> None:
    """Learn what to label next: train on few labels, acquire more, and again; accuracy against labels.

    Every round trains new networks for the same number of steps. The first labels, initialisations and batches are the
    same for all methods and acquisitions of a seed. A finished round is kept: the same command continues after a stop,
    and one with more --rounds goes on. Each method, acquisition and seed is a run of its own, which any process may do.
    `rbue active-report` draws the page. Each last line is a folder.
    """
    from rbue.lab.active import ACQUISITIONS, ActiveConfig
    from rbue.lab.active.loop import STEPS
    from rbue.lab.methods import split_specs

    where, steps_by = place_and_steps(engine)
    if steps is not None and selection.epochs is not None:
        raise InvalidInput(f"--steps {steps} and --epochs {selection.epochs} both say how long to train; give one.")
    steps = STEPS if steps is None and selection.epochs is None else steps
    labels = {"start": start, "take": take, "pool": pool, "samples": samples, "steps": steps}
    names = [name for name in acquire.replace(",", " ").split() if name]
    if not names:
        raise InvalidInput(f"--acquire names none; there are {', '.join(ACQUISITIONS)}.")
    configs = [
        ActiveConfig(replace(selection, seed=selection.seed + more).config(spec), name, **labels)  # type: ignore[arg-type]
        for spec in split_specs(method) or [""]
        for name in names
        for more in range(seeds)
    ]
    configs = list(dict.fromkeys(configs))
    with tasks.on(where, selection.device) as executor:
        root = selection.runs if where == "local" else selection.runs.absolute()
        how = {"rounds": rounds, "root": root, "engine": steps_by, "together": together}
        done, errors = _done(configs, executor, where != "local", how)
    found = [(config, done[config]) for config in configs if config in done]
    if json:
        runs = [
            {"run": config.folder(selection.runs).path, "config": config.as_json(), "rounds": done}
            for config, done in found
        ]
        print_json({"runs": runs})
    elif found:
        _show(f"{selection.model} on {selection.data}", found)
        for config, _ in found:
            say(config.folder(selection.runs).path)
    if errors:
        for earlier in errors[:-1]:
            complain(str(earlier))
        raise errors[-1]


def _done(
    configs: Sequence[ActiveConfig], executor: Executor, spread: bool, how: dict[str, Any]
) -> tuple[dict[ActiveConfig, list[Round]], list[RbueError]]:
    """The rounds of every run, and what went wrong. Here an error ends everything; elsewhere other runs go on.

    Elsewhere whole seeds come first, so that a stop leaves curves that compare, and in each the runs that take longest.
    """
    from rbue.lab.active import run_active
    from rbue.lab.executors import in_order

    if spread:
        configs = sorted(configs, key=lambda one: (one.run.seed, -one.run.parsed.networks))
    done: dict[ActiveConfig, list[Round]] = {}
    errors: list[RbueError] = []
    _SHARED.clear()
    task = partial(run_active, device=executor.device, report=_note, load=_loaded, **how)
    with closing(executor.each(task, in_order(configs))) as ended:
        for config, rounds, error in ended:
            if error is None:
                done[config] = rounds
            elif not spread or isinstance(error, InvalidInput):
                raise error
            else:
                errors.append(error)
    return done, errors


_SHARED: dict[tuple[str, int, int], ActiveImages] = {}
"""The images of the last run that this process did for the command."""


def _loaded(run: RunConfig) -> ActiveImages:
    from rbue.lab.active.loop import load_images
    from rbue.lab.runs.training import training_data

    key = training_data(run)
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = load_images(run)
    return _SHARED[key]


def _name(config: ActiveConfig) -> str:
    return f"{config.run.method}, {config.acquire}, seed {config.run.seed}"


def _note(config: ActiveConfig, one: Round, rounds: int) -> None:
    """One line a round."""
    time, labels = duration(sum(one["seconds"].values())), f"{one['labels']:,} labels"
    accuracy = percent(one["accuracy"])
    remark(f"{_name(config)}: round {one['round']}/{rounds}, {labels}, accuracy {accuracy}, {time}")


def _show(title: str, found: Sequence[tuple[ActiveConfig, list[Round]]]) -> None:
    rows = []
    for config, done in found:
        first, last = done[0], done[-1]
        ends = (f"{one['labels']:,}: {percent(one['accuracy'])}" for one in (first, last))
        time = duration(sum(sum(one["seconds"].values()) for one in done))
        rows.append([_name(config), *ends, number(last["nll"]), number(last["ece"]), time])
    numbers = ("first labels", "last labels", "NLL", "ECE", "time")
    table(title, ("run", *numbers), rows, right=numbers, less_important=("time", "NLL"))


def active_report(
    where: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of `rbue active`, or around them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html, .md or .tex.")] = Path(
        "active.html"
    ),
    accuracies: Annotated[
        str | None,
        typer.Option(help="Where to compare labels: fractions with commas, 0.8,0.9.", show_default="round ones"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Draw the page of all rounds of active learning in some folders: curves, labels needed, labels saved.

    Runs are compared where everything but method, acquisition and seed is the same. What is left out is named.
    """
    from rbue.lab.active.curves import as_json, compare, read_runs
    from rbue.lab.active.loop import find_active
    from rbue.lab.active.page import active_page, needed_table

    if output.suffix not in _SUFFIXES:
        raise InvalidInput(f"the page cannot be written to {output}; end its name in {', '.join(_SUFFIXES)}.")
    asked = fractions(accuracies, "--accuracies", "0.8,0.9") or ()
    if not all(0 < one <= 1 for one in asked):
        raise InvalidInput(f"--accuracies must lie above 0 and be at most 1, not {accuracies}.")
    folders = []
    for folder in where:
        inside = find_active(folder)
        if not inside:
            raise InvalidInput(f"there are no rounds of active learning in {folder}; `rbue active` makes them.")
        folders += inside
    runs, trouble = read_runs(list(dict.fromkeys(folders)))
    comparisons, left_out = compare(runs, sorted(set(asked)))
    if not comparisons:
        raise RbueError(f"there is nothing to draw yet: {[*trouble, *left_out][0]}")
    missing = [*trouble, *left_out]
    with working(f"drawing {len(runs)} run{'s' if len(runs) != 1 else ''}"):
        page = active_page(comparisons, missing)
        form: Any = {".md": page.markdown, ".tex": page.latex}.get(output.suffix, page.html)
        write_bytes(output, form().encode())
    if json:
        print_json({"report": output, "missing": missing, "comparisons": as_json(comparisons)})
        return
    for sentence in missing:
        remark(f"missing: {sentence}")
    for group in comparisons:
        found = needed_table(group)
        cells = [[column.value_text(found.cell(row, column)) for column in found.columns] for row in found.rows]
        headings = [column.heading for column in found.columns]
        table(
            found.caption, headings, cells, right=headings[2:], less_important=("seeds", "mean accuracy", "acquisition")
        )
    say(output)
