"""``rbue paper``: every table and figure of the paper from one command."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbue.errors import InvalidInput
from rbue.lab.cli.options import (
    ENGINES,
    DeviceName,
    RunsFolder,
    TaskOptions,
    device_named,
    place_and_steps,
    takes_bundles,
    was_typed,
)
from rbue.lab.cli.output import (
    AsJson,
    Flowing,
    complain,
    data_lines,
    data_progress,
    duration,
    print_json,
    remark,
    say,
    stdout,
    table,
    training_lines,
    training_progress,
    working,
)
from rbue.lab.cli.paper_extent import All, Extent, Ids, Methods, Only, Shift, check_methods, selected
from rbue.lab.report.tables import counted

if TYPE_CHECKING:
    from rbue.lab.paper.experiments import Experiment
    from rbue.lab.paper.runner import Outcome, TimeBudget
    from rbue.lab.paper.settings import Settings

_ROOM_FOR_COMMANDS, _ROOM_FOR_TITLES = 110, 150  # columns of a terminal

app = typer.Typer(
    cls=Flowing,
    no_args_is_help=True,
    help="Rerun the paper: list, plan, run and report its tables and figures, and check its claims.",
    epilog="Example: rbue paper run --quick --all",
)

Together = Annotated[int, typer.Option("--together", min=1, help="Networks trained side by side on a GPU.")]


@app.command("list", epilog="Example: rbue paper list")
def list_(ctx: typer.Context, runs: RunsFolder = Path("runs"), json: AsJson = False) -> None:
    """List the tables and figures: which are complete, what the others lack, how long that takes, and its command.

    Judged by its budget and the settings of the last `rbue paper run` in the folder of runs. Tables share runs, so the
    times do not add up: `rbue paper plan --all` counts each once.
    """
    from rbue.lab.paper.budget import read_budget
    from rbue.lab.paper.experiments import EXPERIMENTS
    from rbue.lab.paper.gathering import gather
    from rbue.lab.paper.planning import RECORDED_GPU, RECORDED_SOURCE, RecordedGpu, jobs_for, planned
    from rbue.lab.paper.settings import Settings, last_settings

    _check_runs(ctx, runs)
    settings = last_settings(runs, Settings(budget=read_budget(runs)))
    gathered = [gather(one, settings, runs) for one in EXPERIMENTS]
    gpu = RecordedGpu(runs)
    left = [sum(row.seconds for row in planned(jobs_for([one], settings, runs), settings, gpu)) for one in EXPERIMENTS]
    if json:
        listed = [
            asdict(one.experiment)
            | {"state": one.state, "missing": one.missing, "left_out": one.left_out, "command": one.command}
            | {"gpu_seconds": seconds}
            for one, seconds in zip(gathered, left, strict=True)
        ]
        print_json({"scale": settings.scale.name, "experiments": listed, "gpu": RECORDED_GPU})
        return
    columns = {
        "id": [one.experiment.id for one in gathered],
        "where": [one.experiment.place for one in gathered],
        "what it shows": [one.experiment.title for one in gathered],
        "state": [one.state for one in gathered],
        "on a GPU": [duration(seconds) if seconds else "–" for seconds in left],
        "to do the rest": [one.command if one.missing else "–" for one in gathered],
    }
    if settings.quick:
        del columns["on a GPU"]
    if stdout().width < _ROOM_FOR_TITLES:
        del columns["what it shows"]
    if stdout().width < _ROOM_FOR_COMMANDS:
        del columns["to do the rest"]
    title = f"Experiments of the paper ({settings.scale.name}, in {runs})"
    table(title, tuple(columns), zip(*columns.values(), strict=True), right=("on a GPU",))
    _tell_absent({settings.data_of(name) for one in EXPERIMENTS if (name := one.data)})
    if "on a GPU" in columns:
        remark(f"on a GPU: what the rest takes on one {RECORDED_GPU}, reckoned from {RECORDED_SOURCE}")
    if "to do the rest" not in columns:
        remark(f"to do the rest: `rbue paper run ID{gathered[0].options}` (a wider terminal shows each command)")
    remark("networks, methods and notes on what the paper leaves open: `rbue paper list --json`")


@app.command(epilog="Example: rbue paper plan 'table*' --models resnet18 --epochs 30")
@takes_bundles
def plan(
    extent: Extent,
    ids: Ids = None,
    all_: All = False,
    only: Only = None,
    methods: Methods = None,
    shift: Shift = None,
    together: Together = 1,
    runs: RunsFolder = Path("runs"),
    device: DeviceName = None,
    json: AsJson = False,
) -> None:
    """Show what would run, what is there already, and about how long the rest takes here and on one GPU."""
    from rbue.lab.paper.illustrations import read_illustration
    from rbue.lab.paper.planning import RECORDED_GPU, RECORDED_SOURCE, Estimator, RecordedGpu, jobs_for, planned

    settings = extent.settings(runs, methods, shift)
    experiments, kinds = selected(ids, only)
    check_methods(experiments, settings)
    estimator = Estimator(device_named(device), runs, together=together)
    with working("timing a few steps of each network"):
        jobs = jobs_for(experiments, settings, runs)
        rows = planned(jobs, settings, estimator, kinds)
        small = replace(settings, quick=True, epochs=None, samples=None)
        quickly = (
            0.0 if extent.quick else sum(one.seconds for one in planned(jobs_for(experiments, small), small, estimator))
        )
    recorded = [one.seconds for one in planned(jobs, settings, RecordedGpu(runs), kinds)]
    draw = [one.id for one in experiments if one.illustration and read_illustration(one, settings, runs) is None]
    total = sum(row.seconds for row in rows)
    if json:
        times = {"seconds": total, "gpu_seconds": sum(recorded), "quick_seconds": quickly}
        listed = [asdict(row) | {"gpu_seconds": one} for row, one in zip(rows, recorded, strict=True)]
        print_json({"scale": settings.scale.name, "runs": listed, "draw": draw, **times, "gpu": RECORDED_GPU})
        return
    here = f"on {estimator.device}"
    columns = {
        "method": [row.method for row in rows],
        "data": [row.data for row in rows],
        "network": [row.model for row in rows],
        "seed": [str(row.seed) for row in rows],
        "missing": [row.state for row in rows],
        here: [duration(row.seconds) for row in rows],
        "on a GPU": [duration(one) for one in recorded],
        "used by": [_few(row.experiments) for row in rows],
    }
    if extent.quick:
        del columns["on a GPU"]
    title = f"Plan ({settings.scale.name}), in the order of work"
    numbers = ("seed", here, "on a GPU")
    table(title, tuple(columns), zip(*columns.values(), strict=True), right=numbers, less_important=("used by", here))
    if draw:
        say(f"and data for {', '.join(draw)}")
    _tell_absent({row.data for row in rows if row.missing})
    left = sum(bool(row.missing) for row in rows)
    say(f"{left} of {len(rows)} runs have something missing: about {duration(total)} on {estimator.device}")
    say("  timed here: trainings in the folder of runs, or else a few steps of each network")
    _tell_left_out(experiments, settings, runs)
    if extent.quick or not left:
        return
    say(f"about {duration(sum(recorded))} on one {RECORDED_GPU}")
    say(f"  reckoned from {RECORDED_SOURCE}")
    say(f"about {duration(quickly)} on {estimator.device} with --quick: small stand-ins that fit a laptop, no evidence")
    say(
        "several machines: give each other ids or other --models, then copy their folders of runs into one "
        "(every run has a folder of its own) and make the report there"
    )


@app.command(epilog="Example: rbue paper run table1-cifar10 --models resnet18 --time-budget 25m")
@takes_bundles
def run(
    extent: Extent,
    tasks: TaskOptions,
    ids: Ids = None,
    all_: All = False,
    only: Only = None,
    methods: Methods = None,
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="Begin nothing new after this time: 90s, 25m, 1h30m.")
    ] = None,
    shift: Shift = None,
    together: Together = 1,
    engine: Annotated[
        str,
        typer.Option(
            help="processes: several of this machine do everything; ray: a Ray cluster does. "
            f"Else how training steps run: {ENGINES}."
        ),
    ] = "auto",
    runs: RunsFolder = Path("runs"),
    device: DeviceName = None,
    json: AsJson = False,
) -> None:
    """Train and measure what is missing; the same command continues where it stopped.

    Every run is trained once, however many tables and figures use it, and measured right after its training. After an
    error the rest is done, and the exit code is 1.
    """
    from rbue.lab.paper.runner import Place, TimeBudget, Watch, parse_duration, run_experiments

    where, steps = place_and_steps(engine)
    elsewhere = where != "local"
    settings = extent.settings(runs, methods, shift)
    if not (ids or all_ or only):
        raise InvalidInput("name what to run, or give --all; `rbue paper list` shows the ids.")
    experiments, kinds = selected(ids, only)
    check_methods(experiments, settings)
    budget = TimeBudget(None if time_budget is None else parse_duration(time_budget))
    alone = Watch(training_progress, lambda _: data_progress())
    watch = Watch(training_lines, data_lines) if elsewhere else alone
    with tasks.on(where, device) as executor:
        place = Place(runs.absolute() if elsewhere else runs, executor.device, together, steps, executor.helpers)
        how = {"budget": budget, "kinds": kinds, "tell": remark, "watch": watch, "executor": executor}
        outcome = run_experiments(experiments, settings, place, **how)  # type: ignore[arg-type]
    if json:
        print_json({"scale": settings.scale.name, "seconds": budget.spent(), **asdict(outcome)})
    else:
        _tell_outcome(outcome, budget)
        _tell_left_out(experiments, settings, runs)
        say(runs)
    if outcome.failed:
        for reason, count in _counted(outcome.failed):
            complain(f"{counted(count, 'step')} failed: {reason}.")
        raise typer.Exit(1)


@app.command(epilog="Example: rbue paper report -o paper-report")
@takes_bundles
def report(
    ctx: typer.Context,
    extent: Extent,
    ids: Ids = None,
    methods: Methods = None,
    runs: RunsFolder = Path("runs"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")] = Path("paper-report"),
    json: AsJson = False,
) -> None:
    """Write what was measured beside what the paper prints: one page, LaTeX, Markdown, CSV and the data of figures.

    Without settings, those of its budget and of the last `rbue paper run` in the folder of runs.
    """
    from rbue.lab.paper.experiments import chosen
    from rbue.lab.paper.gathering import gather
    from rbue.lab.paper.page import HTML, page_files
    from rbue.lab.paper.reporting import plain_files, write_report
    from rbue.lab.paper.settings import last_settings

    _check_runs(ctx, runs)
    settings = last_settings(runs, extent.settings(runs, methods))
    gathered = [gather(one, settings, runs) for one in chosen(ids or ())]
    with working("drawing the page"):
        files = write_report(gathered, output, (plain_files, page_files(settings, runs)))
    complete = [one.experiment.id for one in gathered if one.is_complete]
    if json:
        missing = {one.experiment.id: one.missing for one in gathered if one.missing}
        left_out = {one.experiment.id: one.left_out for one in gathered if one.left_out}
        states = {"complete": complete, "missing": missing, "left_out": left_out}
        print_json({"scale": settings.scale.name, **states, "files": files})
        return
    if not any(one.has_something for one in gathered):
        command = f"rbue paper run {' '.join(one.experiment.id for one in gathered) if ids else '--all'}"
        command += " --quick" * settings.quick + gathered[0].options
        remark(f"nothing of this has been measured in {runs} with these settings yet; `{command}` does it.")
    else:
        for one in gathered:
            if not one.is_complete:
                remark(f"{one.experiment.id}: {one.state}" + (f"; `{one.command}`" if one.missing else ""))
    say(f"{len(complete)} of {len(gathered)} experiments complete ({settings.scale.name})")
    say(output / HTML)


@app.command(epilog="Example: rbue paper claims --json")
@takes_bundles
def claims(
    ctx: typer.Context,
    extent: Extent,
    why: Annotated[bool, typer.Option("--why", help="How each sentence is read, and what decides it.")] = False,
    runs: RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Check the sentences of §3.4 and §4 against the paper's own tables and against what was measured here."""
    from rbue.lab.paper.claims import judge_all
    from rbue.lab.paper.judging import CASES, caveats
    from rbue.lab.paper.results import Measured
    from rbue.lab.paper.settings import last_settings

    _check_runs(ctx, runs)
    settings = last_settings(runs, extent.settings(runs))
    judged = judge_all(Measured(runs, settings))
    if json:
        print_json({"scale": settings.scale.name, "claims": [one.as_json() for one in judged]})
        return
    here = "here (quick: no evidence)" if settings.quick else "here"
    columns = {
        "claim": [one.claim.id for one in judged],
        "§": [one.claim.section for one in judged],
        "sentence": [f"“{one.claim.quote}”" for one in judged],
        "by its own numbers": [one.paper.covered_word for one in judged],
        here: [one.measured.covered_word for one in judged],
    }
    if stdout().width < _ROOM_FOR_COMMANDS:
        del columns["sentence"]
    table("Claims of the paper", tuple(columns), zip(*columns.values(), strict=True))
    for note in (CASES, caveats(judged)):
        if note:
            say(note)
    if not why:
        remark("--why tells each sentence, how it is read and what decides it; --json too.")
        return
    for one in judged:
        say(f"\n{one.claim.id}: “{one.claim.quote}”, read as: {one.claim.reading}")
        say(f"  by the paper's own numbers: {one.paper}")
        say(f"  {here}: {one.measured}")


def _check_runs(ctx: typer.Context, runs: Path) -> None:
    """Refuse a folder that was named and is not there; without a name, nothing may have been run yet."""
    if was_typed(ctx, "runs") and not runs.is_dir():
        raise InvalidInput(f"there is no folder {runs}; give --runs with the folder that `rbue paper run` wrote into.")


def _tell_absent(names: set[str]) -> None:
    from rbue.lab.paper.planning import data_is_here

    for name in sorted(names):
        if not data_is_here(name):
            remark(f"{name} is not on this machine and would be left out; `rbue data fetch {name}` brings it.")


def _tell_left_out(experiments: tuple[Experiment, ...], settings: Settings, runs: Path) -> None:
    """Say what the budget leaves out of what was asked for, and how to have it."""
    from rbue.lab.paper.gathering import budget_sentences
    from rbue.lab.paper.results import as_measured

    said = (budget_sentences(one, as_measured(one, settings, runs)) for one in experiments)
    left_out = dict.fromkeys(line for lines in said for line in lines if line.startswith("Left out"))
    for line in left_out:
        remark(f"{line} --seeds 1 has them all the same.")


def _few(names: tuple[str, ...]) -> str:
    return " ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def _tell_outcome(outcome: Outcome, budget: TimeBudget) -> None:
    done, before = counted(len(outcome.done), "step"), outcome.already
    say(f"{done} done in {duration(budget.spent())}; runs that were complete before: {before}")
    for reason, count in _counted(outcome.skipped):
        remark(f"{counted(count, 'step')} left out: {reason}.")
    if outcome.left:
        say(f"the time is over; {len(outcome.left)} steps are left, and the same command continues with them:")
        for step in outcome.left[:10]:
            say(f"  {step}")
        if len(outcome.left) > 10:
            say(f"  and {len(outcome.left) - 10} more")


def _counted(steps: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """Each reason once, without the full stop that a message may end in, and how many steps it stopped."""
    return list(Counter(reason.removesuffix(".") for _, reason in steps).items())
