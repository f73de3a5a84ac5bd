"""All verbs together, and what becomes of errors.

Exit codes: 0 for success, 2 for a mistake in what was typed, 1 for anything else that can go wrong (missing data, a
folder that cannot be written, some of the images of `rbue predict` that cannot be read), 130 for an interruption.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer

from rbue._version import __version__
from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.lab import own_code
from rbue.lab.cli import active, compare, demo, inventory, measure, ood, paper, runs, serve, shift, train
from rbue.lab.cli.options import takes_bundles
from rbue.lab.cli.output import Flowing, complain, remark
from rbue.lab.processes import alone, is_reported_elsewhere

DEBUG, TRUST = "--debug", "--trust"
SEVERAL = ("train", "evaluate", "compare", "shift", "ood")
"""The verbs that divide their work between the processes of ``torchrun``."""


class Verbs(Flowing):
    """The verbs, with errors turned into one sentence and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--debug`` and ``--trust NAME`` stand anywhere on the line."""
        end = args.index("--") if "--" in args else len(args)
        words, common, others = iter(args[:end]), list[str](), list[str]()
        for word in words:
            ours = word in (DEBUG, TRUST) or word.startswith(f"{TRUST}=")
            (common if ours else others).append(word)
            if word == TRUST:
                common += islice(words, 1)
        return super().parse_args(ctx, [*common, *others, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _short(warnings.showwarning)
                warnings.filterwarnings("ignore", "Image size .* decompression bomb")  # Pillow's; we refuse such images
                return super().invoke(ctx)
        except KeyboardInterrupt:
            remark("stopped; what was finished is kept, and the same command continues from there.")
            raise typer.Exit(130) from None
        except (RbueError, OSError, RuntimeError, MemoryError) as error:
            expected = isinstance(error, (RbueError, OSError)) or _lacks_memory(error)  # torch's is a RuntimeError
            if isinstance(error, BrokenPipeError) or not expected:
                raise
            if ctx.params.get("debug"):
                traceback.print_exc()
            if not is_reported_elsewhere(error):
                _complain_of(error)
            raise typer.Exit(2 if isinstance(error, InvalidInput) else 1) from error


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: rbue compare --data digits --methods single,mc-droprelu:0.9,deep-ensemble:4",
)
_VERBS: dict[Callable[..., None], tuple[str, ...]] = {
    demo.demo: ("rbue demo",),
    train.train: ("rbue train --data digits --model small_cnn --method mc-droprelu:0.9",),
    measure.evaluate: (
        "rbue evaluate --data digits --method mc-droprelu:0.9 --samples 100",
        "rbue evaluate runs/digits/small_cnn/single-seed0-4f9d2c1a",
    ),
    compare.compare: (
        "rbue compare --data digits --methods single,mc-droprelu:0.9,deep-ensemble:4 -o table.md",
        "rbue compare --methods 'mc-droprelu:0.9,all mc-droprelu:0.9,last'",
    ),
    measure.calibrate: ("rbue calibrate runs/digits/small_cnn/*", "rbue calibrate 4f9d2c1a 0b1e55d2"),
    shift.shift: (
        "rbue shift runs/cifar10/resnet18/* -o figures",
        "rbue shift 4f9d2c1a 0b1e55d2 --corruptions shot_noise,fog --severities 1,5",
    ),
    ood.ood: (
        "rbue ood runs/cifar10/resnet18/*",
        "rbue ood 4f9d2c1a --near cifar100,tiny-imagenet --far svhn,folder:textures:32 --samples 20",
    ),
    active.active: (
        "rbue active --method mc-droprelu:0.95 --acquire random,bald --seeds 3",
        "rbue active --data cifar10 --model resnet18 --acquire bald --start 500 --take 250 --rounds 10 --seed 3",
    ),
    active.active_report: ("rbue active-report runs/active -o active.html",),
    measure.predict: (
        "rbue predict runs/digits/small_cnn/mc-droprelu-0.9-seed0-4f9d2c1a seven.png unknown.png",
        "rbue predict 4f9d2c1a photos more/one.png -o predictions.csv",
        "rbue predict 4f9d2c1a photos images.parquet -o scores.parquet --engine ray",
    ),
    serve.serve: (
        "rbue serve runs/digits/small_cnn/mc-droprelu-0.9-seed0-4f9d2c1a --conformal 0.9",
        "rbue serve net.onnx --mean 0.49,0.48,0.45 --std 0.25,0.24,0.26 --port 9000",
    ),
    runs.report: ("rbue report runs -o report.html", "rbue report runs/digits/small_cnn -o table.tex"),
    shift.corrupt: (
        "rbue corrupt 7 --data cifar10 -o sheet.png",
        "rbue corrupt cat.png --corruption shot_noise -o strip.png",
    ),
    inventory.models: ("rbue models",),
    inventory.methods: ("rbue methods",),
    inventory.sites: ("rbue sites resnet18 --shape 3,64,64",),
    inventory.env: ("rbue env",),
}
"""The verbs that stand alone, in the order of the help, with examples."""

for verb, examples in _VERBS.items():
    app.command(epilog="\n\n".join(f"Example: {example}" for example in examples))(takes_bundles(verb))
app.add_typer(inventory.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(paper.app, name="paper")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(TRUST, metavar="NAME", help="Run this code, package.module:name, where a run asks for it."),
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Honest uncertainty for image classifiers: train, measure and compare methods on your own data."""
    if ctx.invoked_subcommand not in SEVERAL:
        alone(f"rbue {ctx.invoked_subcommand}")
    own_code.look_in(os.getcwd())  # for --model my_networks:make
    if trust:
        own_code.trust(trust)
        os.environ[own_code.TRUST] = ",".join([*trust, os.environ.get(own_code.TRUST, "")])  # processes inherit it


def main() -> None:
    """The entry point of the command."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal may lack the dash of a table, or a letter of a path
        app(prog_name="rbue")
    except OSError as error:  # of help, which is shown before a verb begins
        _complain_of(error)
        sys.exit(1)


def _complain_of(error: BaseException) -> None:
    complain(_sentence(error))
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = None  # or Python tries again when it ends, and says more


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's; naming it imports torch
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # torch's, too


def _sentence(error: BaseException) -> str:
    if _lacks_memory(error):
        gpu = type(error).__name__ == "OutOfMemoryError"
        where, way_out = ("the GPU", "--device cpu") if gpu else ("this machine", "--width")
        return f"{where} has not enough memory for this; choose a smaller --batch or {way_out}."
    if isinstance(error, OSError) and not isinstance(error, RbueError):
        unnamed = "the output" if error.errno in (errno.ENOSPC, errno.EIO) else "a file"  # files of ours have names
        return f"{error.filename or unnamed}: {error.strerror or error}."
    return str(error)


def _short(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Show warnings of this package as one sentence, each once, others as usual."""
    said = set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, RbueWarning):
            if str(message) in said:
                return
            said.add(str(message))
            remark(f"note: {message}")
        else:
            usual(message, category, *place, **more)

    return show
