"""Run folders as they are found, whatever state they are in, and in groups that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbue.errors import RbueError, warn
from rbue.lab.data.outside import short_name
from rbue.lab.data.registry import FOLDER_PREFIX
from rbue.lab.report.figure_style import METHOD_COLOURS, method_name
from rbue.lab.report.tables import counted
from rbue.lab.runs.folders import RunConfig, RunFolder, outdated
from rbue.lab.training import recipe_for
from rbue.lab.training.trainer import read_log

if TYPE_CHECKING:
    from rbue.lab.shift.rows import Setting

NEEDED = {"accuracy", "ece", "samples", "seed"}
"""What every measurement must have to be reported."""


@dataclass(frozen=True)
class Record:
    """One run folder as it was found.

    Attributes:
        folder: where it lies.
        config: its settings; None if they cannot be read.
        results: its measurements in the order they were made; the stored probabilities belong to the last one.
        environment: where it was trained.
        trouble: why it has no measurement; empty if it has one.
        damaged: how its damaged images were measured that are reported; None for as its last measurement was.
    """

    folder: RunFolder
    config: RunConfig | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] | None = None
    trouble: str = ""
    damaged: Setting | None = None

    @property
    def result(self) -> dict[str, Any]:
        """The last measurement."""
        return list(self.results.values())[-1]

    def measured_as(self, key: str) -> Record:
        """The same run with the measurement of this name for its last one, if it has it."""
        if key not in self.results:
            return self
        others = {name: one for name, one in self.results.items() if name != key}
        return replace(self, results={**others, key: self.results[key]})

    @property
    def settings(self) -> RunConfig:
        """The settings of a run that could be read."""
        assert self.config is not None
        return self.config

    @property
    def name(self) -> str:
        """Data, model and folder: the same on every machine."""
        return "/".join(self.folder.path.absolute().parts[-3:])

    @property
    def anchor(self) -> str:
        """What names the run in a page."""
        return f"run-{self.folder.path.name.rpartition('-')[2]}"

    @property
    def root(self) -> Path | None:
        """The folder of all runs, in which members of an ensemble lie too; None if this one was moved."""
        folder = RunFolder(self.folder.path.resolve())
        return folder.root if self.config and RunFolder.of(self.config, folder.root).path == folder.path else None

    @cached_property
    def trained_on(self) -> str:
        """Checksums of the images that its networks were trained on, in words; empty if none are noted here."""
        config, root = self.settings, self.root
        own = config.trainings() == [config]
        folders = [self.folder] if own else [RunFolder.of(one, root) for one in config.trainings() if root is not None]
        found = set()
        for folder in folders:
            with suppress(RbueError):  # one that cannot be read is as good as none
                found.add(_images_in(folder.read("training") or {}))
        return " and ".join(sorted(found - {""}))

    @property
    def measured_on(self) -> str:
        """The same of the images of its last measurement."""
        return _images_in(self.result)


@dataclass(frozen=True)
class RunGroup:
    """Measured runs of one network on one data set with one recipe; they differ in method and seed.

    They share their images too. Where runs with the same settings were trained or measured on others, ``images`` says
    on which, and the recipe ends with it.

    Where some were measured with augmented passes and others not, ``methods`` names them: ``single (augmented: flip)``.
    So it does where seeds of one method were measured with other numbers of samples or other draws, which no mean over
    seeds may mix: ``mc-rrelu (20 samples, balanced)``.
    """

    title: str
    recipe: str
    methods: dict[str, list[Record]]
    images: str = ""

    @cached_property
    def records(self) -> list[Record]:
        """All of them."""
        return [record for records in self.methods.values() for record in records]


def read_records(folders: Iterable[RunFolder]) -> list[Record]:
    """Read folders; one that cannot be read is a record too, which says why.

    Warns of measurements that another version of the random stream drew, for they stand beside those of this one, and
    of those of networks that were trained again since.
    """
    records = [_read(folder) for folder in folders]
    for record in records:
        words = (outdated(record.settings, record.root, one) for one in record.results.values())
        if how := next(filter(None, words), ""):
            warn(
                f"{record.name} was measured {how}, so its numbers are others now; `rbue evaluate` measures it again "
                "where its weights are."
            )
    return records


def group_records(records: Sequence[Record]) -> list[RunGroup]:
    """Put measured runs together by data, model, recipe and images, in the order they were found.

    A run that does not note its images is taken for one of the first that it can be of.
    """
    found: dict[RunConfig, list[list[Record]]] = {}
    for record in records:
        if record.results:
            parts = found.setdefault(replace(record.settings, method="single", seed=0), [])
            part = next((part for part in parts if all(_share_images(record, one) for one in part)), None)
            if part is None:
                parts.append(part := [])
            part.append(record)
    return [_group(shared, part, _images(part, parts)) for shared, parts in found.items() for part in parts]


def _images_in(noted: Mapping[str, Any]) -> str:
    checksums = dict(noted.get("data") or {}).get("sha256") or {}
    return ", ".join(f"{name} {checksum[:8]}" for name, checksum in checksums.items())


def _share_images(one: Record, other: Record) -> bool:
    pairs = ((one.trained_on, other.trained_on), (one.measured_on, other.measured_on))
    return all(a == b or not (a and b) for a, b in pairs)


def _images(part: Sequence[Record], parts: Sequence[Sequence[Record]]) -> str:
    """On which images runs were trained and measured, in words, as far as those of other parts have others."""
    kinds: tuple[tuple[str, Callable[[Record], str]], ...] = (
        ("trained", lambda record: record.trained_on),
        ("measured", lambda record: record.measured_on),
    )
    words = []
    for verb, images in kinds:
        own = next(filter(None, map(images, part)), "")
        if own and {images(record) for some in parts for record in some} - {"", own}:
            words.append(f"{verb} on {own}")
    return ", ".join(words)


def apart(groups: Sequence[RunGroup]) -> list[str]:
    """One sentence for each network and data set whose runs do not share their images."""
    return [
        f"the runs of {title} do not share their images: each section has those that were trained and measured on the "
        "same, and nothing compares runs of different sections."
        for title in dict.fromkeys(group.title for group in groups if group.images)
    ]


def _group(shared: RunConfig, records: Sequence[Record], images: str) -> RunGroup:
    recipe, methods = recipe_words(shared), dict[str, list[Record]]()
    augments = {record.result.get("augment", "") for record in records}
    if len(augments) == 1 and any(augments):
        recipe += f", augmented: {augments.pop()}"
    for record in records:
        augment, method = record.result.get("augment", ""), record.settings.method
        alike = [one for one in records if (one.settings.method, one.result.get("augment", "")) == (method, augment)]
        words = [f"augmented: {augment}"] * (len(augments) > 1 and bool(augment))
        words += [_drawn(record)] * (len({_drawn(one) for one in alike}) > 1)
        methods.setdefault(f"{method} ({', '.join(words)})" if words else method, []).append(record)
    recipe += f", {images}" if images else ""
    ordered = dict(sorted(methods.items(), key=_in_paper_order))
    return RunGroup(f"{shared.model} on {_titled(shared.data)}", recipe, ordered, images)


def _drawn(record: Record) -> str:
    balanced = ", balanced" if record.result.get("draws") == "balanced" else ""
    return counted(record.result["samples"], "sample") + balanced


def missing(records: Sequence[Record]) -> list[str]:
    """One sentence for each run without a measurement; members of an ensemble that is there need none."""
    members = {
        member.id
        for record in records
        if record.config is not None
        for member in record.config.trainings()
        if member != record.config
    }
    return [
        f"`{record.name}`: {record.trouble}"
        for record in records
        if record.trouble and not (record.config is not None and record.config.id in members)
    ]


def without_copies(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Each run once, measured where there is a choice, and a sentence for each copy that was left out."""
    kept: dict[str, Record] = {}
    copies = []
    for record in sorted(records, key=lambda one: not one.results):
        name = record.config.id if record.config is not None else str(record.folder.path)
        if kept.setdefault(name, record) is not record:
            copies.append(f"`{record.name}`: lies in two of the folders; one of them is reported.")
    return [record for record in records if any(record is one for one in kept.values())], copies


def _titled(data: str) -> str:
    return f"folder {short_name(data)}" if data.startswith(FOLDER_PREFIX) else data


def _in_paper_order(entry: tuple[str, list[Record]]) -> tuple[int, str]:
    order = list(METHOD_COLOURS)
    name = method_name(entry[0])
    return (order.index(name) if name in order else len(order), entry[0])


def _read(folder: RunFolder) -> Record:
    try:
        config = folder.config()
        results = folder.read("results") or {}
        environment = folder.read("environment")
        trouble = "" if results else _trouble(folder, config)
        if not all(isinstance(one, dict) and one.keys() >= NEEDED for one in dict(results).values()):
            raise RbueError("its results.json was written by another version of rbue.")
    except (RbueError, TypeError, ValueError, AttributeError) as error:
        return Record(folder, trouble=f"cannot be read: {error}")
    return Record(folder, config, results, environment, trouble)


def _trouble(folder: RunFolder, config: RunConfig) -> str:
    if folder.read("validation"):
        return "measured on its held-out images only; a report is about test images."
    how = f"`rbue evaluate {folder.path.name.rpartition('-')[2]}` does that."
    if config.parsed.networks > 1:
        return f"an ensemble of {config.parsed.networks} networks, not measured; {how}"
    if folder.read("training") is not None or config.trainings() != [config]:
        return f"trained but not measured; {how}"
    epochs = len(read_log(folder.log))
    return f"training stopped after {epochs} of {config.recipe.epochs} epochs; the same `rbue train` continues it."


def recipe_words(config: RunConfig) -> str:
    """The recipe of a run in a few words: its length, and whatever differs from that of its data set."""
    recipe = config.recipe
    parts = [counted(recipe.epochs, "epoch"), f"batch {recipe.batch}", f"learning rate {recipe.learning_rate:g}"]
    if recipe.average is not None:
        parts.append(f"{recipe.average.upper()} after {recipe.average_from} epochs")
    parts += recipe_changes(config)
    if config.width != 1:
        parts.append(f"width {config.width:g}")
    if config.holdout:
        seed = f" with seed {config.holdout_seed}" if config.holdout_seed else ""
        parts.append(f"{config.holdout:,} images held out{seed}")
    return ", ".join(parts)


def recipe_changes(config: RunConfig) -> list[str]:
    """What differs from the recipe of a data set, but for length, batch, learning rate and the kind of an average."""
    recipe, named = config.recipe, ("epochs", "batch", "learning_rate", "average_start")
    shown = {name: getattr(recipe, name) for name in named}
    usual = asdict(recipe_for(config.data, average=recipe.average or "none", **shown))
    return [setting_words(name, value) for name, value in asdict(recipe).items() if value != usual[name]]


def setting_words(name: str, value: Any) -> str:
    """One setting of a recipe.

    >>> setting_words("weight_decay", 0.0005), setting_words("flip", False), setting_words("milestones", [0.5, 0.75])
    ('weight decay 0.0005', 'no flip', 'milestones 0.5 0.75')
    """
    words = name.replace("_", " ")
    if value is None or isinstance(value, bool):
        return words if value else f"no {words}"
    many = value if isinstance(value, tuple | list) else [value]
    return " ".join([words, *(f"{one:g}" if isinstance(one, float) else str(one) for one in many)])
