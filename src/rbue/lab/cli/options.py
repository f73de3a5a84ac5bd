"""What users type: the settings of a run or the run itself, a device.

The modules of the command import torch, and what of the laboratory needs it, only inside functions: ``--help`` and the
completion of a shell read declarations alone, and torch would take longer than all the rest.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rbue.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from rbue.lab.executors import Executor
    from rbue.lab.runs.folders import RunConfig, RunFolder
    from rbue.lab.training import Recipe

ENGINES = "auto, plain, captured, compiled"
"""What ``--engine`` can be, for help texts; a test compares it with the engines there are."""
RUN_HELP = "A run folder, or the eight-digit id at its end."
RECIPE = "Recipe (what is left out follows its name and the data set)"

RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder of all runs.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="cpu or cuda (left out: cuda if there is one).")]
Samples = Annotated[
    int, typer.Option("--samples", min=1, help="Random passes for each image; members of an ensemble share them.")
]
DRAWS = typer.Option(
    "--draws",
    help="independent, or balanced: fewer passes for the same error of the mean.",
    show_default="balanced where the method has them",
)
Draws = Annotated[str, typer.Option("--draws", help=DRAWS.help)]
Augment = Annotated[
    str, typer.Option("--augment", help="What each pass does to its images: a list of flip, shift:2, crop:0.8.")
]
Split = Annotated[
    str, typer.Option("--split", help="Images to measure on: 'test', or 'validation', those of --holdout.")
]
_of_data = partial(typer.Option, rich_help_panel="Data")
_of_tasks = partial(
    typer.Option, rich_help_panel="Several processes, or a Ray cluster whose machines see the same folders"
)
EngineName = Annotated[
    str,
    _of_tasks(
        "--engine",
        help="Where tasks run: local, one by one; processes, several here; or ray (the extra ray brings it).",
    ),
]
MethodName = Annotated[str, typer.Option("--method", help="Short text of a method; `rbue methods` lists them.")]


def _recipe(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=RECIPE, show_default=False, **more)


@dataclass(frozen=True)
class Selection:
    """Everything of a run but its method; each field is an option of the command line."""

    data: Annotated[str, _of_data(help="Name of a data set, folder:PATH or folder:PATH:SIZE.")] = "digits"
    holdout: Annotated[int, _of_data(min=0, help="Training images set aside for validation.")] = 0
    holdout_seed: Annotated[int, _of_data(min=0, help="Which ones.")] = 0
    model: Annotated[str, typer.Option(help="Name of a network, or package.module:factory.")] = "small_cnn"
    width: Annotated[float, typer.Option(help="Factor on the network's channels.")] = 1.0
    seed: Annotated[int, typer.Option(help="Seed of initialisation and training.")] = 0
    runs: RunsFolder = Path("runs")
    device: DeviceName = None
    recipe: Annotated[
        str,
        typer.Option(
            help="Its name: 'paper', the paper's; or 'strong', which has weight decay 5e-4 and SWA from 80 % of the "
            "epochs on, at half the learning rate.",
            rich_help_panel=RECIPE,
        ),
    ] = "paper"
    epochs: Annotated[int | None, _recipe("Passes over the training images.")] = None
    batch: Annotated[int | None, _recipe("Images in a step, over all processes.")] = None
    rate: Annotated[float | None, _recipe("Learning rate at the start.")] = None
    milestones: Annotated[str | None, _recipe("Fractions of the epochs where it drops: 0.45,0.9.")] = None
    factor: Annotated[float | None, _recipe("What it is multiplied by there.")] = None
    momentum: Annotated[float | None, _recipe("Momentum of SGD.")] = None
    nesterov: Annotated[bool | None, _recipe("Nesterov's form of it.")] = None
    weight_decay: Annotated[float | None, _recipe("Weight decay.")] = None
    padding: Annotated[int | None, _recipe("Pixels around an image before a random crop.")] = None
    flip: Annotated[bool | None, _recipe("Random horizontal flips.")] = None
    average: Annotated[
        str | None,
        _recipe(
            "Average of the weights: 'swa', at the ends of epochs, after a cosine from --rate to --average-rate in "
            "place of drops; 'ema', at every step; or 'none'. BatchNorm statistics are estimated again for it."
        ),
    ] = None
    average_start: Annotated[
        float | None, _recipe("Where it starts: a fraction below 1, or epochs (swa 0.8, ema 0).")
    ] = None
    average_rate: Annotated[float | None, _recipe("Learning rate of swa from there on (half of --rate).")] = None
    average_decay: Annotated[float | None, _recipe("What ema keeps at a step (0.999).")] = None
    label_smoothing: Annotated[float | None, _recipe("Part of a label spread over all classes (0).")] = None
    cutout: Annotated[int | None, _recipe("Side of a square of the mean colour at a random place (0).")] = None
    mixup: Annotated[
        float | None, _recipe("Images and labels mixed in pairs, with parts from Beta(MIXUP, MIXUP) (0: not).")
    ] = None
    noise: Annotated[
        float | None,
        _recipe("Gaussian noise on half of the images: its largest standard deviation, where pixels are 0 to 1 (0)."),
    ] = None
    augmix: Annotated[
        float | None, _recipe("Part of the images that get AugMix, without its consistency loss (0).")
    ] = None
    sync_batchnorm: Annotated[
        bool | None, _recipe("BatchNorm over the whole batch of several processes, on GPUs (each has its own part's).")
    ] = None

    def config(self, method: str) -> RunConfig:
        """The run of a method with these settings."""
        from rbue.lab.runs.folders import RunConfig
        from rbue.lab.training import Recipe

        changes: dict[str, Any] = {"learning_rate": self.rate, "average_learning_rate": self.average_rate}
        changes["milestones"] = fractions(self.milestones, "--milestones", "0.45,0.9")
        changes |= {part.name: getattr(self, part.name) for part in fields(Recipe) if part.name not in changes}
        return RunConfig(
            data=self.data,
            model=self.model,
            method=method,
            seed=self.seed,
            width=self.width,
            holdout=self.holdout,
            holdout_seed=self.holdout_seed,
            recipe=self._recipe(changes),
        )

    def _recipe(self, changes: dict[str, Any]) -> Recipe:
        """The recipe with some parts changed; what is wrong with one is said of its option."""
        from rbue.lab.training import recipe_for

        try:
            return recipe_for(self.data, self.recipe, **changes)
        except InvalidInput as error:
            named = re.sub(r"^\w+|\baverage\w*", lambda found: _option_of(found[0], changes), str(error))
            raise InvalidInput(named) from error


@dataclass(frozen=True)
class TaskOptions:
    """How tasks are spread where ``--engine`` says; each field is an option of the command line."""

    workers: Annotated[
        int | None,
        _of_tasks(min=1, help="Processes of this machine (left out: as many as have --cpus cores each; 4 a GPU)."),
    ] = None
    address: Annotated[
        str | None,
        _of_tasks(
            help="A cluster that is there: auto or HOST:PORT (left out: one on this machine, for this command only)."
        ),
    ] = None
    cpus: Annotated[
        int | None, _of_tasks(min=1, help="Cores, and threads, of a task (left out: 1 on Ray, else its part).")
    ] = None
    gpus: Annotated[
        float | None,
        _of_tasks(min=0.0, help="GPUs of a task on Ray; 0.5: two share one (left out: 1 if there is any)."),
    ] = None

    def on(self, engine: str, device: str | None) -> AbstractContextManager[Executor]:
        """Where tasks run, by these options, ``--engine`` and ``--device``."""
        from rbue.lab.executors import executor

        if engine == "ray" and device not in (None, "cpu", "cuda"):
            raise InvalidInput(f"--device must be cpu or cuda for tasks on a cluster, not {device!r}.")
        return executor(engine, lambda: device_named(device), forced=device, **vars(self))


def takes_bundles(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option for each field of its parameters that are dataclasses, such as :class:`Selection`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(verb, eval_str=True).parameters
    bundles: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
    options = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for bundle in bundles.values()
        for hints in [get_type_hints(bundle, include_extras=True)]
        for field in fields(bundle)
    ]
    others = [parameter.replace(kind=keyword) for name, parameter in own.items() if name not in bundles]

    def call(**values: Any) -> None:
        made = {
            name: bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
            for name, bundle in bundles.items()
        }
        verb(**made, **values)

    parameters = sorted([*others, *options], key=lambda one: one.default is not inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    return call


def given_settings(ctx: typer.Context) -> list[str]:
    """The settings of a run that were typed, as opposed to left at their default."""
    names = {field.name for field in fields(Selection)} - {"runs", "device"} | {"method"}
    return [_option(name) for name in sorted(names) if was_typed(ctx, name)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option_of(word: str, parts: Iterable[str]) -> str:
    """What a part of a recipe is called on the command line; any other word as it is."""
    return _option(word.replace("learning_rate", "rate")) if word in parts else word


def was_typed(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line."""
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"


def check_engine(name: str, *others: str) -> None:
    """Refuse an unknown engine, also where nothing is left to train; ``others`` can be named beside those."""
    from rbue.lab.training.engines import ENGINES

    if name not in (*others, *ENGINES):
        raise InvalidInput(f"--engine must be one of {', '.join((*others, *ENGINES))}, not {name!r}.")


def place_and_steps(engine: str) -> tuple[str, str]:
    """Where tasks run and how training steps do, of an option that says one of the two."""
    from rbue.lab.executors import ENGINES as PLACES

    check_engine(engine, *PLACES)
    return (engine, "auto") if engine in PLACES else ("local", engine)


def device_named(name: str | None) -> torch.device:
    """The device to compute on, or why it cannot be used."""
    import torch

    from rbue.lab.environment import default_device

    if name is None:
        return default_device()
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidInput(f"there is no device {name!r}; give cpu or cuda.") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InvalidInput(f"there is no GPU for --device {name} here; give cpu or leave it out.")
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"--device {name} is not supported; give cpu or cuda.")
    return device


def fractions(text: str | None, option: str, example: str) -> tuple[float, ...] | None:
    """The numbers that an option lists with commas; None if it was left out."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidInput(f"{option} must be numbers with commas, such as {example}, not {text!r}.") from None


def find_run(text: str, root: Path) -> RunFolder:
    """The one run that a text names."""
    from rbue.lab.runs.folders import RunFolder, find_runs

    path = Path(text).expanduser()
    if (path / "config.json").is_file():
        return RunFolder(path)
    found = [run for run in find_runs(root) if text and run.path.name.endswith(f"-{text}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInput(f"{text!r} names {len(found)} runs in {root}; give the folder of one of them.")
    if path.is_file():
        raise InvalidInput(
            f"{text} is a file and no run; give the folder of a run, or read a file of rbue.save with rbue.load or "
            "`rbue serve`."
        )
    raise InvalidInput(f"there is no run {text!r}, neither as a folder nor as an id in {root}; see `rbue runs list`.")


def find_all(texts: Sequence[str], runs: Path) -> list[tuple[RunConfig, Path]]:
    """The settings and roots of the runs that some texts name, each once; a root is as it was typed first."""
    from rbue.lab.runs.folders import settings_and_root

    named = [settings_and_root(find_run(text, runs)) for text in texts]
    roots = {root.resolve(): root for _, root in reversed(named)}
    return list(dict.fromkeys((config, roots[root.resolve()]) for config, root in named))


def labels_for(configs: Sequence[RunConfig]) -> list[str]:
    """A name for each run: its method, and as much more as it takes to tell the runs of one data set apart."""
    parts = [(config.model, f"seed {config.seed}", config.id) for config in configs]
    for count in range(4):  # from none of the three to all
        labels = [
            config.method + (f" ({', '.join(more[:count])})" if count else "")
            for config, more in zip(configs, parts, strict=True)
        ]
        if len({(config.data, label) for config, label in zip(configs, labels, strict=True)}) == len(configs):
            return labels
    return [f"{label[:-1]}, {place})" for place, label in enumerate(labels, 1)]  # the same run in two roots
