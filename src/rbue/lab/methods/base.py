"""What a method is, and how a short text names one.

A method says how to prepare a fresh network, what to minimise, how many networks to train and how to draw samples from
them. It is a frozen dataclass below :class:`Method`, whose fields are its settings, and is chosen everywhere by a short
text, its name and its settings in order: ``single``, ``mc-dropout:0.2``, ``mc-droprelu:0.8,last``. A new one is one new
file in this folder, or a class of one's own named by ``package.module:Name``, with its settings after a further colon:
``my_methods:Mine:0.5,last``. Brackets hold the text of another method, which trains the networks:
``deep-ensemble:4[mc-droprelu:0.95]``, or ``mc-droprelu:0.98,all,channel[single]``, random ReLUs in the network of
``single``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from traceback import walk_tb
from types import CodeType
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue.activations import Randomness
from rbue.call_sites import convert
from rbue.call_sites.tracing import OF_ANY_LAYERS, OF_MORE_KINDS
from rbue.errors import ConversionError, InvalidInput, RbueError, did_you_mean, reason
from rbue.lab.own_code import find_own
from rbue.random_stream import INDEPENDENT, Cycle
from rbue.sampling.collect import SampleStream
from rbue.sampling.passes import class_scores
from rbue.sampling.stacking import StackedPasses, is_out_of_memory, release_cached

PASS_PIXELS = {"cpu": 500 << 10, "cuda": 2000 << 10}
"""Pixels of the images in one pass of a whole network: 2,000 of CIFAR's on a GPU, or 40 photographs of 224x224."""


@dataclass(frozen=True)
class TrainingProgress:
    """How far training has come, for losses that change on the way.

    Attributes:
        fraction: part of all training steps done, from 0 to 1; a tensor, so that captured steps see it change.
        images: number of training images.
    """

    fraction: Tensor
    images: int


Loss = tuple[Tensor, Tensor]
"""What to minimise, and the class scores it came from."""

TrainingBatches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Gives the images, augmented as in training, and the labels of one epoch, batch by batch."""


class Method:
    """One plain network trained by cross-entropy, with one pass as its only sample; subclasses say what differs.

    Attributes:
        name: what its short text begins with.
        shown: how many of its settings are always written in the short text.
        trains_alone: whether training draws from torch's one generator, which networks side by side would share.
        one_classifier: whether a sample is a pass of a network whose one last layer makes the class scores, so that
            what goes into it are the features of an image.
        undecayed: names of its own parameters, such as ``weight_rho`` of any layer, that are not decayed.
    """

    name: ClassVar[str]
    shown: ClassVar[int] = 0
    trains_alone: ClassVar[bool] = False
    one_classifier: ClassVar[bool] = True
    undecayed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.name = f"{cls.__module__}:{cls.__qualname__}"

    @property
    def networks(self) -> int:
        """How many networks have to be trained."""
        return 1

    @property
    def member(self) -> Method:
        """The method of each of them."""
        return self

    @property
    def trained(self) -> Method:
        """The method that trains each of them."""
        return self

    @property
    def limit(self) -> int | None:
        """How many different samples there are; None if there is no end to them."""
        return 1

    @property
    def draws_samples(self) -> bool:
        """Whether samples are draws of one distribution, as those of an endless method are, and no members."""
        return self.limit is None

    @property
    def balances(self) -> bool:
        """Whether it has balanced draws."""
        return False

    @property
    def cycle(self) -> Cycle:
        """How its balanced draws balance each other, as far as early stopping may count on it."""
        return INDEPENDENT

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Change a fresh network, in place, into the one to train."""
        return network

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """What one training step minimises, and the class scores.

        ``y`` are labels; under label smoothing or mixup they are probabilities of classes, ``(B, classes)``, which
        cross-entropy takes as well.
        """
        logits = class_scores(network(x))
        return F.cross_entropy(logits, y), logits

    def check_training(self, epochs: int, average: str | None) -> None:
        """Refuse to begin what cannot be done: with so many epochs, such an average of weights, a missing package."""

    def learning_rate(self, start: float, epochs: int, at: float) -> float | None:
        """The learning rate ``at`` so many epochs, 3.5 say, of a method with a schedule of its own; else None.

        ``start`` is the recipe's, whose milestones do not count then.
        """
        return None

    def weight_noise(self, learning_rate: float, momentum: float, images: int, epochs: int, at: float) -> float:
        """The standard deviation of normal noise on all weights after the step ``at`` so many epochs.

        Only a method with a schedule of its own is asked. The noise is torch's, so that it should train alone.
        """
        return 0.0

    def end_epoch(self, network: nn.Module, epoch: int, epochs: int, batches: TrainingBatches) -> None:
        """Take what is needed of the network after ``epoch`` of ``epochs``, into tensors of its own state.

        A checkpoint and the stored weights then hold that too.
        """

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """Draw samples from the trained networks for inputs shaped like ``x``; ``draws`` as in :func:`rbue.predict`."""

        def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
            if samples.tolist() != [0]:
                raise InvalidInput(f"a plain network has one sample, number 0, not {samples.tolist()}.")
            yield slice(0, len(x)), slice(0, 1), outputs_of(networks[0], x).unsqueeze(0)

        return draw


class RandomSites(Method):
    """A method that makes call sites random; ``where`` says which.

    They are random at training and at test time; or at test time alone, in the network that the method ``of`` trains.
    """

    limit = None
    balances = True
    where: str
    of: str = ""

    def __post_init__(self) -> None:
        self.activation()  # refuses settings out of range
        if self.of:
            trained = self.trained
            if trained.limit != 1 and not (isinstance(trained, RandomSites) and not trained.of):
                raise InvalidInput(
                    f"{self.name} draws from a network that single or another method with random sites trains, not "
                    f"{self.of}."
                )
            object.__setattr__(self, "of", spec_of(trained))

    @property
    def trained(self) -> Method:
        """The method ``of``, if there is one."""
        return parse(self.of) if self.of else self

    def activation(self) -> Randomness:
        """What takes the place of the activations."""
        raise NotImplementedError

    @property
    def cycle(self) -> Cycle:
        """That of its activation."""
        return self.activation().cycle

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make the chosen call sites random."""
        try:
            return convert(network, self.activation(), where=self.where, example=example)
        except ConversionError as error:
            named = str(error).replace(OF_MORE_KINDS, "mc-dropactivation:q").replace(OF_ANY_LAYERS, "mc-dropout:p")
            raise ConversionError(named) from error

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """Random passes of the network."""
        return StackedPasses(networks[0], x, seed, draws=draws)


def outputs_of(network: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """The class scores of a batch, in as many passes as its size needs; each has rows of its own, to change at will.

    Where memory is short they are halved until they fit.
    """
    rows = max(1, PASS_PIXELS.get(x.device.type, PASS_PIXELS["cpu"]) // math.prod(x.shape[2:]))
    while True:
        try:
            with torch.no_grad():
                return torch.cat([class_scores(network(piece.clone())) for piece in x.split(rows)])
        except Exception as error:
            rows = min(rows, len(x))
            if rows < 2 or not is_out_of_memory(error):
                raise
        rows //= 2  # here the error, and with it what the failed pass held, is gone
        release_cached(x.device)


@contextmanager
def naming_own(*methods: Method, anywhere: bool = False) -> Iterator[None]:
    """Say in one sentence what failed in the code of a user's own method, and where.

    What is refused there is no mistake of the caller's. With ``anywhere`` an unexpected error of other code counts too.
    """
    try:
        yield
    except Exception as error:
        if (isinstance(error, RbueError) and not isinstance(error, InvalidInput)) or is_out_of_memory(error):
            raise
        parts = (part for one in methods for part in (one, one.trained, one.member, one.member.trained))
        own = {kind: part.name for part in parts for kind in type(part).__mro__[:-1] if not _is_ours(kind)}
        steps = [(frame.f_globals.get("__name__"), frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
        places = [(name, step) for kind, name in own.items() if (step := _step_inside(kind, steps))]
        if not places and own and anywhere and not isinstance(error, (InvalidInput, OSError)):
            places = [(next(iter(own.values())), steps[-1])]
        if not places:
            raise
        name, (_, code, line) = places[0]
        raise RbueError(
            f"{name} failed with {type(error).__name__}: {reason(error)} (line {line} of {code.co_filename}); mend it."
        ) from error


_Step = tuple[str | None, CodeType, int]
"""Module, code and line."""


def _step_inside(kind: type, steps: Iterable[_Step]) -> _Step | None:
    """The last step in the module of a class, if the class itself was come through."""
    inside = [step for step in steps if step[0] == kind.__module__]
    through = any(f"{code.co_qualname}.".startswith(f"{kind.__qualname__}.") for _, code, _ in inside)
    return inside[-1] if through else None


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "rbue"


_methods: dict[str, type[Method]] = {}
_Class = TypeVar("_Class", bound=type[Method])


def register(name: str, shown: int = 0) -> Callable[[_Class], _Class]:
    """Make a method available under a name, with that many settings always shown in its short text."""

    def add(method: _Class) -> _Class:
        method.name, method.shown = name, shown
        _methods[name] = method
        return method

    return add


def list_methods() -> list[str]:
    """The names of all methods."""
    return sorted(_methods)


def parse(spec: str) -> Method:
    """The method that a short text names.

    >>> parse("mc-droprelu:0.95")
    MCDropReLU(q=0.95, where='all', mask='element', of='')
    >>> parse("deep-ensemble:4[mc-droprelu:0.95]") == parse("deep-ensemble:4,mc-droprelu:0.95")
    True
    """
    outer, bracket, inner = spec.strip().partition("[")
    if bracket and not inner.endswith("]"):
        raise InvalidInput(f"{spec!r} opens a bracket; close it at the end, as in deep-ensemble:4[mc-droprelu:0.95].")
    name, kind, rest = _kind(outer, spec)
    kinds = _settings(kind)  # type: ignore[arg-type]
    fields = list(kinds)
    if bracket and not _holds_method(fields):
        raise InvalidInput(f"{name} holds no other method, so {spec!r} must have no brackets.")
    if bracket and not inner[:-1].strip():
        raise InvalidInput(f"the brackets of {spec!r} are empty; put a method there, such as single.")
    # The text of a method that is held has commas of its own.
    texts = [text.strip() for text in rest.split(",", len(fields) - 1 if _holds_method(fields) else -1)] if rest else []
    if len(texts) > len(fields) - bool(bracket):
        names = ", ".join(fields) or "no settings"
        raise InvalidInput(f"{spec!r} has {len(texts) + bool(bracket)} settings, but {name} takes {names}.")
    given = dict(zip(fields, texts, strict=False))
    if bracket:
        given[fields[-1]] = inner[:-1].strip()
    settings = {field: _read(spec, field, kinds[field], text) for field, text in given.items()}
    try:
        found = kind(**settings)
    except RbueError:
        raise
    except Exception as error:  # of a class of one's own
        raise InvalidInput(f"{spec!r} cannot be made: {type(error).__name__}: {reason(error)}; mend {name}.") from error
    if found.name != name:  # a class of one's own keeps the way that was typed to it
        object.__setattr__(found, "name", name)
    return found


@cache
def _settings(kind: type[Method]) -> dict[str, Any]:
    """The settings of a method with their types, which Python compiles from text each time they are asked for."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def _holds_method(settings: Sequence[str]) -> bool:
    """Whether the last setting is the short text of another method."""
    return settings[-1:] == ["of"]


def _kind(text: str, spec: str) -> tuple[str, type[Method], str]:
    """The name, the class and the settings in a short text without brackets."""
    name, _, rest = text.partition(":")
    if name in _methods:
        return name, _methods[name], rest
    own, _, settings = rest.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), own)):
        hint = did_you_mean(name, _methods)
        raise InvalidInput(f"there is no method {name!r}{hint}; there are {', '.join(list_methods())}.")
    kind = find_own(name, own, spec)
    if not (isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)):
        raise InvalidInput(f"{name}:{own} is no method; it must be a frozen dataclass below rbue.lab.methods.Method.")
    return f"{name}:{own}", kind, settings


def _read(spec: str, name: str, kind: Any, text: str) -> Any:
    if not text:
        raise InvalidInput(f"{name} in {spec!r} is empty; give it a value, or leave out the comma.")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidInput(f"{name} in {spec!r} must be true or false, not {text!r}.")
        return text.lower() == "true"
    convert_to = kind if kind in (int, float) else str
    try:
        return convert_to(text)
    except ValueError:
        raise InvalidInput(f"{name} in {spec!r} must be a number ({kind.__name__}), not {text!r}.") from None


def spec_of(method: Method) -> str:
    """A short text that :func:`parse` reads as this method; trailing settings at their default are left out.

    >>> spec_of(parse("mc-droprelu")), spec_of(parse("deep-ensemble")), spec_of(parse("deep-ensemble:2,mc-rrelu"))
    ('mc-droprelu:0.9', 'deep-ensemble:4', 'deep-ensemble:2[mc-rrelu]')
    """
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    values = [getattr(method, field.name) for field in fields]
    while len(values) > method.shown and values[-1] == fields[len(values) - 1].default:
        values.pop()
    is_whole = len(values) == len(fields)
    held = f"[{values.pop()}]" if is_whole and _holds_method([field.name for field in fields]) else ""
    return method.name + (f":{','.join(map(str, values))}" if values else "") + held


def split_specs(text: str) -> list[str]:
    """The short texts in a list, separated by spaces, semicolons or commas; settings have commas too.

    A piece between commas is a setting of the method before it unless it looks like a method. So in a list an ensemble
    of another method is written with brackets; ``deep-ensemble:4,mc-rrelu`` are two methods.

    >>> split_specs("single,mc-droprelu:0.9,last,deep-ensemble:4[mc-droprelu:0.8,last] svi")
    ['single', 'mc-droprelu:0.9,last', 'deep-ensemble:4[mc-droprelu:0.8,last]', 'svi']
    """
    specs: list[str] = []
    for group in re.findall(r"(?:[^\s;\[]|\[[^\]]*\]?)+", text):
        first = len(specs)
        for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", group):
            looks_like_one = ":" in piece or difflib.get_close_matches(piece.partition("[")[0], _methods, n=1)
            if len(specs) > first and ":" in specs[-1] and not looks_like_one:
                specs[-1] += f",{piece}"
            else:
                specs.append(piece)
    return specs
