"""``rbue evaluate``: measure a trained run on the test images."""

from __future__ import annotations

from typing import Annotated

import typer

from rbue.errors import InvalidInput
from rbue.lab.cli.finding import HELP, find_run, settings_and_root
from rbue.lab.cli.options import MethodName, Samples, Selection, device_named, given_settings, takes_selection
from rbue.lab.cli.output import AsJson, duration, facts, number, percent, print_json, say
from rbue.lab.cli.progress import working
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.measuring import evaluate_run

EXAMPLE = (
    "Example: rbue evaluate --data digits --method mc-droprelu:0.9 --samples 100\n\n"
    "Example: rbue evaluate runs/digits/small_cnn/single-seed0-4f9d2c1a"
)


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(takes_selection(evaluate))


def evaluate(
    ctx: typer.Context,
    selection: Selection,
    run: Annotated[str | None, typer.Argument(help=f"{HELP} Or give the settings it was trained with.")] = None,
    method: MethodName = "single",
    samples: Samples = 100,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    json: AsJson = False,
) -> None:
    """Measure a trained run: accuracy, calibration, proper scores, diversity. The result is kept in its folder."""
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
        result = evaluate_run(config, root, device, samples=samples, seed=sample_seed)
    folder = RunFolder.of(config, root).path
    if json:
        print_json({"run": folder, "config": config.as_json(), "result": result})
        return
    say(f"{config.method} · {config.model} on {config.data}, {result['data']['count']:,} test images\n")
    facts(
        [
            ("accuracy", percent(result["accuracy"])),
            ("ECE", number(result["ece"])),
            ("NLL", number(result["nll"])),
            ("Brier score", number(result["brier"])),
            ("AURC", number(result["aurc"])),
            ("mean entropy", number(result["entropy"])),
            ("mean mutual information", number(result["mutual_information"])),
            ("Mean-JSD", number(result["mean_jsd"])),
            ("Mean-DIS", number(result["mean_dis"])),
            ("samples", f"{result['samples']} (seed {result['seed']})"),
            ("parameters", f"{result['parameters']:,}"),
            ("training time", duration(result["training_seconds"])),
        ]
    )
    say(f"\n{folder}")
