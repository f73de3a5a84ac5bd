"""The run folder: one trained network with everything that made it, named by its settings.

    RUNS/<data>/<model>/<method>-seed<seed>-<id>/
        config.json          what was asked for; the id is a hash of it
        environment.json     versions, hardware, commit
        state.safetensors    weights, momentum and progress, to continue from
        weights.safetensors  weights of the trained network; or weights-*-of-*.safetensors with weights.index.json
        log.jsonl            one line an epoch; tensorboard/ holds the same for TensorBoard, when installed
        training.json        what training came to; its presence says that training is done
        results.json         measurements, one entry for each number of samples and seed
        probs.npy            mean probabilities of the test images, float16, of the last entry of results.json
        validation.json      measurements on the images that were held out, with validation_probs.npy, in the same form
        calibration.json     scores before and after temperature scaling, under the same names as results.json
        shift.json, shift/   measurements on corrupted images (:mod:`rbue.lab.shift`); validation_shift is the same for
                             those that were held out
        ood.json             how well scores tell images from elsewhere (:mod:`rbue.lab.runs.out_of_distribution`)
        checksums.json       of training.json and the files of measurements
        .lock                there while a process writes

Every file is written whole or not at all, by one process at a time. The same settings lead to the same folder, so a
second command continues the run or finds it done, and an ensemble finds members that were trained before.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rbue import random_stream
from rbue.errors import InvalidInput, RbueError, reason, shown
from rbue.files import checksum, checksum_of, json_bytes, read_json, write_bytes, write_json
from rbue.lab.methods import Method, parse, spec_of
from rbue.lab.own_code import NotNamed, named_by, refuse_unnamed
from rbue.lab.runs.forms import EACH, FORMS, misfit
from rbue.lab.training.checkpoint import INDEX, ONE_FILE, STATE, WAIT_FOR_ROOM
from rbue.lab.training.recipe import Recipe, real_number, whole_number
from rbue.locks import Lock, locked


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a trained network.

    Attributes:
        data: name of the data set.
        model: name of the network, or ``package.module:factory``.
        method: short text of the method, in its canonical form.
        seed: seed of the initialisation and of training.
        width: factor on the network's channels.
        holdout: training images set aside for validation.
        holdout_seed: which ones.
        recipe: the training recipe.
    """

    data: str = "digits"
    model: str = "small_cnn"
    method: str = "single"
    seed: int = 0
    width: float = 1.0
    holdout: int = 0
    holdout_seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        for name, kind, meaning in (
            ("data", str, "the name of a data set, or folder:PATH"),
            ("model", str, "the name of a network, or package.module:factory"),
            ("recipe", Recipe, "a Recipe, such as recipe_for('digits')"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} must be {meaning}, not {getattr(self, name)!r}.")
        if ":" in self.model:
            refuse_unnamed(self.model)  # before training, which notes what the user has named
        self._set("method", _canonical(self.method))
        self._set("seed", random_stream.check_seed(self.seed))
        for name in ("holdout", "holdout_seed"):
            self._set(name, whole_number(name, getattr(self, name), 0))
        width = real_number(self.width)
        if width is None:
            raise InvalidInput(f"width must be a number, not {self.width!r}.")
        self._set("width", width)
        last = self.seed + self.parsed.networks - 1
        if last >= 1 << 64:
            raise InvalidInput(
                f"the last network of {self.method} with seed {self.seed} would have the seed {last}, and seeds must "
                "lie in [0, 2**64); choose a smaller one."
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def parsed(self) -> Method:
        """The method itself."""
        return parse(self.method)

    @cached_property
    def id(self) -> str:
        """Eight hexadecimal digits that differ when any setting does."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:8]

    def members(self) -> list[RunConfig]:
        """The runs whose samples this one has: itself, or the members of an ensemble, of consecutive seeds."""
        method = self.parsed
        if method.networks == 1:
            return [self]
        member = spec_of(method.member)
        return [replace(self, method=member, seed=self.seed + number) for number in range(method.networks)]

    def trainings(self) -> list[RunConfig]:
        """The runs that train its networks: its members, or those that these draw from."""
        return [replace(member, method=spec_of(member.parsed.trained)) for member in self.members()]

    def as_json(self) -> dict[str, Any]:
        """For ``config.json``."""
        return {**asdict(self), "recipe": self.recipe.as_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any], file: object = "this config.json") -> RunConfig:
        """The inverse of :meth:`as_json`; code of one's own that the ``file`` names is not run for it.

        Raises:
            NotNamed: it names code that the user has not named (:mod:`rbue.lab.own_code`).
            RbueError: it holds no such settings.
        """
        try:
            with named_by(file):
                return cls(**{**content, "recipe": Recipe.from_json(content["recipe"])})
        except NotNamed:
            raise
        except (KeyError, TypeError) as error:
            raise RbueError(f"{file} was written by another version of rbue ({reason(error)}).") from error
        except (RbueError, OverflowError) as error:
            kind = InvalidInput if isinstance(error, InvalidInput) else RbueError
            raise kind(f"{file} holds settings that cannot be used: {shown(error, 1000)}") from error


def _canonical(method: Any) -> str:
    """The short text of a method that is given as a text or as itself."""
    text = spec_of(method) if isinstance(method, Method) else method
    if not isinstance(text, str):
        raise InvalidInput(f"method must be the short text of a method, such as 'mc-droprelu:0.9', not {method!r}.")
    return spec_of(parse(text))


_ALWAYS_THERE = {"training": {"seconds"}}
"""What every version has written into a file whose presence means something, by its name."""


@dataclass(frozen=True)
class RunFolder:
    """The place of one run."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig, root: Path) -> RunFolder:
        """Where a run with these settings lives."""
        parts = [as_name(config.data), as_name(config.model)]
        return cls(root.joinpath(*parts, f"{as_name(config.method)}-seed{config.seed}-{config.id}"))

    @property
    def root(self) -> Path:
        """The folder of all runs, if this one lies where it was made."""
        parents = self.path.absolute().parents
        return parents[min(2, len(parents) - 1)]

    @property
    def state(self) -> Path:
        """The checkpoint."""
        return self.path / STATE

    @property
    def has_weights(self) -> bool:
        """Whether a trained network is here."""
        return (self.path / ONE_FILE).exists() or (self.path / INDEX).exists()

    @property
    def is_trained(self) -> bool:
        """Whether nothing is left to train; weights that are lost come back from the checkpoint, if that is here."""
        return self.read("training") is not None and (self.has_weights or not self.state.exists())

    @property
    def stored_bytes(self) -> int:
        """What the trained network takes, in one file or in several."""
        return sum(file.stat().st_size for file in self.path.glob(ONE_FILE.replace(".", "*.")))

    @property
    def has_results(self) -> bool:
        """Whether it was measured, on clean, damaged or other images; the files need not be readable."""
        return any((self.path / name).exists() for name in ("results.json", "shift.json", "ood.json"))

    @property
    def log(self) -> Path:
        """One JSON line an epoch."""
        return self.path / "log.jsonl"

    @property
    def probs(self) -> Path:
        """Mean probabilities of the test images."""
        return self.path / "probs.npy"

    @property
    def validation_probs(self) -> Path:
        """Mean probabilities of the images that were held out."""
        return self.path / "validation_probs.npy"

    def config(self) -> RunConfig:
        """The settings written in the folder."""
        content = read_json(self._config, "the command that trained this run writes it anew")
        return RunConfig.from_json(content, self._config)

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    def open(self, config: RunConfig, environment: dict[str, Any]) -> None:
        """Make the folder and note what is to run in it; settings that cannot be read are written anew."""
        if not self._config.exists():
            write_json(self.path / "environment.json", environment)
        try:
            noted = self.read("config")
        except RbueError:
            noted = None
        if noted is None:
            write_json(self._config, config.as_json())

    def locked(self, wait: float = 600.0) -> AbstractContextManager[Lock]:
        """As :func:`locked_folder`.

        To add a result takes no time, so that is worth to wait for; a training, which takes hours, is not.
        """
        return locked_folder(self.path, wait)

    def read(self, name: str) -> Any:
        """The content of ``<name>.json``, or None if it is not there."""
        path = self.path / f"{name}.json"
        if not path.exists():
            return None
        content = read_json(path)
        if not (isinstance(content, dict) and _ALWAYS_THERE.get(name, set()) <= content.keys()):
            raise RbueError(f"{path} has another form; remove it to have it made again.")
        self._refuse_damage(path)
        wrong = misfit(content, FORMS.get(name, {}))
        if wrong:
            raise RbueError(f"{path} has another form at {wrong[:100]!r}; remove it to have it made again.")
        return content

    def entries(self, name: str) -> dict[str, dict[str, Any]]:
        """The content of a ``<name>.json`` that holds an object under each name; none if it is not there."""
        return self.read(name) or {}

    def write(self, name: str, content: Any, numbers_in_line: bool = False) -> None:
        """Write ``<name>.json``; the folder should be locked for it.

        Its checksum comes first, beside that of the file it replaces: whenever this is stopped, the file has one of the
        two.
        """
        path, text, noted = self.path / f"{name}.json", json_bytes(content, numbers_in_line), self._checksums()
        here = [checksum_of(path)] if path.exists() else []
        kept = [one for one in noted.get(path.name, here) if one in here]
        write_json(self._noted, {**noted, path.name: [*kept, checksum(text)]}, WAIT_FOR_ROOM)
        write_bytes(path, text, WAIT_FOR_ROOM)

    @property
    def _noted(self) -> Path:
        return self.path / "checksums.json"

    def _checksums(self) -> dict[str, list[str]]:
        """The checksums that files may have, by name; runs from before they were noted have none."""
        content = read_json(self._noted, "remove it") if self._noted.exists() else {}
        if misfit(content, {EACH: [lambda one: isinstance(one, str)]}):
            raise RbueError(f"{self._noted} has another form; remove it.")
        return content

    def _refuse_damage(self, path: Path) -> None:
        seen: list[str] | None = []
        while (noted := self._checksums().get(path.name)) != seen:
            if noted is None or checksum_of(path) in noted:
                return
            seen = noted  # to look again, as another process may just have written both files
        raise RbueError(
            f"{path} cannot be read (it does not have the checksum that {self._noted.name} notes); remove it to have "
            f"it made again, or {self._noted} if it was changed on purpose."
        )


@contextmanager
def locked_folder(path: Path, wait: float = 0.0) -> Iterator[Lock]:
    """Be the only process that writes into a folder, or raise :class:`rbue.locks.InUse`; left empty, it goes again."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with locked(path / ".lock", wait) as lock:
            yield lock
    finally:
        for folder in made:
            with suppress(OSError):  # something is in it; another command may be there by now
                folder.rmdir()


def find_runs(root: Path) -> Iterator[RunFolder]:
    """Every run folder below ``root``, in order of their names; none if that is not there."""
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is a file; give the folder that holds the runs.")
    for config in sorted(root.glob("**/config.json")):
        yield RunFolder(config.parent)


def result_key(samples: int, seed: int = 0, draws: str = "independent", augment: str = "") -> str:
    """The name of a measurement in ``results.json`` and ``calibration.json``; what is as in the paper needs no mention.

    >>> result_key(100), result_key(20, draws="balanced", augment="flip")
    ('samples=100,seed=0', 'samples=20,seed=0,draws=balanced,augment=flip')
    """
    more = {"draws": "" if draws == "independent" else draws, "augment": augment}
    return f"samples={samples},seed={seed}" + "".join(f",{name}={value}" for name, value in more.items() if value)


def other_stream(config: RunConfig, measured: Mapping[str, Any]) -> str:
    """The random streams of a measurement and of today, in words; empty if they agree or nothing random was drawn."""
    version = measured.get("stream_version", random_stream.VERSION)
    if config.parsed.limit is not None or version == random_stream.VERSION:
        return ""
    return f"version {version} of the random stream, while this is version {random_stream.VERSION}"


def training_seconds(config: RunConfig, root: Path) -> float | None:
    """How long the trainings behind a run took, by their clocks; None if one of them is not noted here."""
    trained = [RunFolder.of(one, root).read("training") for one in config.trainings()]
    return None if None in trained else sum(one["seconds"] for one in trained)


def trained_again(measured: Mapping[str, Any], seconds: float | None) -> str:
    """That the networks of a measurement were trained again since, in words; empty if not, as far as is known.

    ``seconds`` are those of today's (:func:`training_seconds`). Clocks that show nanoseconds tell trainings apart.
    Their sum has other last bits in other versions of Python.
    """
    noted = measured.get("training_seconds")
    again = noted is not None and seconds is not None and not math.isclose(noted, seconds, rel_tol=1e-12)
    return "before its networks were trained again" if again else ""


def outdated(config: RunConfig, root: Path | None, measured: Mapping[str, Any]) -> str:
    """How a measurement was made otherwise than it would be now, in words after "was measured"; empty if it was not.

    Of a run without its folder of runs, None, nothing is known of its trainings.
    """
    streams = other_stream(config, measured)
    seconds = None if root is None else training_seconds(config, root)
    return f"with {streams}" if streams else trained_again(measured, seconds)


def as_name(text: str) -> str:
    """A text as a part of the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)


def has_weights(config: RunConfig, root: Path) -> bool:
    """Whether all networks of a run are here."""
    return all(RunFolder.of(one, root).has_weights for one in config.trainings())


def settings_and_root(run: RunFolder) -> tuple[RunConfig, Path]:
    """The settings of a run and the folder of all runs it lies in, where members of an ensemble lie too."""
    config = run.config()
    path = run.path.resolve()
    root = RunFolder(path).root
    expected = RunFolder.of(config, root).path
    if path != expected:
        raise RbueError(
            f"{run.path} was renamed or its config.json changed: these settings belong into "
            f".../{expected.relative_to(root)}; move it there."
        )
    if not run.path.is_absolute() and root.is_relative_to(Path.cwd()):
        root = root.relative_to(Path.cwd())  # as it was given
    return config, root
