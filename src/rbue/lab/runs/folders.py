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
        calibration.json     scores before and after temperature scaling, under the same names as results.json

Every file is written whole or not at all. The same settings lead to the same folder, so a second command continues the
run or finds it done, and an ensemble finds members that were trained before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rbue import random_stream
from rbue.errors import InvalidInput, RbueError
from rbue.files import read_json, write_json
from rbue.lab.methods import Method, parse, spec_of
from rbue.lab.training.checkpoint import INDEX, ONE_FILE
from rbue.lab.training.recipe import Recipe, real_number, whole_number


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

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that differ when any setting does."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:8]

    def members(self) -> list[RunConfig]:
        """The runs that train the networks of this one: itself, or the members of an ensemble, of consecutive seeds."""
        method = self.parsed
        if method.networks == 1:
            return [self]
        member = spec_of(method.member)
        return [replace(self, method=member, seed=self.seed + number) for number in range(method.networks)]

    def as_json(self) -> dict[str, Any]:
        """For ``config.json``."""
        return {**asdict(self), "recipe": self.recipe.as_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RunConfig:
        """The inverse of :meth:`as_json`."""
        try:
            return cls(**{**content, "recipe": Recipe.from_json(content["recipe"])})
        except (KeyError, TypeError) as error:
            raise RbueError(f"this config.json was written by another version of rbue ({error}).") from error


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
        parts = [_as_name(config.data), _as_name(config.model)]
        return cls(root.joinpath(*parts, f"{_as_name(config.method)}-seed{config.seed}-{config.id}"))

    @property
    def state(self) -> Path:
        """The checkpoint."""
        return self.path / "state.safetensors"

    @property
    def has_weights(self) -> bool:
        """Whether a trained network is here."""
        return (self.path / ONE_FILE).exists() or (self.path / INDEX).exists()

    @property
    def has_results(self) -> bool:
        """Whether it was measured, on clean or on damaged images; the files need not be readable."""
        return any((self.path / name).exists() for name in ("results.json", "shift.json"))

    @property
    def log(self) -> Path:
        """One JSON line an epoch."""
        return self.path / "log.jsonl"

    @property
    def probs(self) -> Path:
        """Mean probabilities of the test images."""
        return self.path / "probs.npy"

    def config(self) -> RunConfig:
        """The settings written in the folder."""
        return RunConfig.from_json(read_json(self._config, "the command that trained this run writes it anew"))

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

    def read(self, name: str) -> Any:
        """The content of ``<name>.json``, or None if it is not there."""
        path = self.path / f"{name}.json"
        content = read_json(path) if path.exists() else None
        if content is not None and not (isinstance(content, dict) and _ALWAYS_THERE.get(name, set()) <= content.keys()):
            raise RbueError(f"{path} has another form; remove it to have it made again.")
        return content

    def entries(self, name: str) -> dict[str, dict[str, Any]]:
        """The content of a ``<name>.json`` that holds an object under each name; none if it is not there."""
        found: dict[str, dict[str, Any]] = self.read(name) or {}
        if not all(isinstance(entry, dict) for entry in found.values()):
            raise RbueError(f"{self.path / name}.json has another form; remove it to have it made again.")
        return found

    def write(self, name: str, content: Any) -> None:
        """Write ``<name>.json``."""
        write_json(self.path / f"{name}.json", content)


def find_runs(root: Path) -> Iterator[RunFolder]:
    """Every run folder below ``root``, in order of their names."""
    for config in sorted(root.glob("**/config.json")):
        yield RunFolder(config.parent)


def result_key(samples: int, seed: int = 0) -> str:
    """The name of a measurement in ``results.json`` and ``calibration.json``."""
    return f"samples={samples},seed={seed}"


def other_stream(config: RunConfig, measured: Mapping[str, Any]) -> str:
    """The random streams of a measurement and of today, in words; empty if they agree or nothing random was drawn."""
    version = measured.get("stream_version", random_stream.VERSION)
    if config.parsed.limit is not None or version == random_stream.VERSION:
        return ""
    return f"version {version} of the random stream, while this is version {random_stream.VERSION}"


def _as_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)
