"""What answers requests: arrays of images in, arrays of a prediction out, by torch or by onnxruntime.

Nothing here imports torch, so that an ONNX file is served without it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import InvalidInput, RbueError, one_name_each

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Sampling:
    """How a request wants its samples.

    Attributes:
        samples: how many; the most, if it may stop early.
        seed: of the draws.
        tolerance: stop when the mean is known within it (:class:`rbue.Adaptive`); None: do not stop early.
        deadline: stop at this time of ``time.monotonic``; None: whatever it takes.
        keep: whether the sampled probabilities are wanted too.
    """

    samples: int
    seed: int = 0
    tolerance: float | None = None
    deadline: float | None = None
    keep: bool = False

    @property
    def stops_early(self) -> bool:
        """Whether the number of samples depends on what is drawn, or on the clock."""
        return self.tolerance is not None or self.deadline is not None


@dataclass(frozen=True, eq=False)
class Answers:
    """The prediction of some images.

    Attributes:
        probs: mean class probabilities ``(B, C)``.
        entropy: of the mean, in nats, ``(B,)``.
        mutual_information: what the samples disagree about, in nats, ``(B,)``.
        samples_used: ``(B,)``.
        std: standard deviation of the sampled probabilities ``(B, C)``; None if they are not known.
        votes: how many samples had each class as their most probable one, ``(B, C)``; likewise.
        samples: the sampled probabilities ``(B, S, C)`` if they were asked for.
        out_of_time: whether the clock stopped the sampling of one of them.
    """

    probs: Numbers
    entropy: Numbers
    mutual_information: Numbers
    samples_used: Numbers
    std: Numbers | None = None
    votes: Numbers | None = None
    samples: Numbers | None = None
    out_of_time: bool = False

    def __getitem__(self, rows: slice) -> Answers:
        return replace(self, **{name: value[rows] for name, value in self._arrays().items()})

    def _arrays(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """One from those of consecutive images, all drawn in one way."""
        names = parts[0]._arrays()
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return Answers(**arrays)


@dataclass(frozen=True)
class Inputs:
    """What an engine takes: bytes ``(H, W, C)``, or numbers of any shape just as the network takes them.

    Attributes:
        shape: of one image.
        bytes: whether they are bytes from 0 to 255.
        mean, std: of each channel, where pixels are 0 to 1: how the pixels of an image file become the numbers
            ``(C, H, W)``. None: the engine takes arrays alone.
    """

    shape: tuple[int, ...]
    bytes: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a normalisation that does not fit."""
        if self.mean is None and self.std is None:
            return
        channels = self.shape[0] if len(self.shape) == 3 else 0
        for name, values in (("mean", self.mean), ("std", self.std)):
            if channels not in (1, 3) or values is None or len(values) not in (1, channels):
                raise InvalidInput(
                    f"{name} is {values} for inputs of shape {self.shape}; give mean and std of each channel, for a "
                    "network that takes (C, H, W) with one channel or three."
                )
        if not all(np.isfinite([*(self.mean or ()), *(self.std or ())])) or min(self.std or (0,)) <= 0:
            raise InvalidInput(f"mean {self.mean} and std {self.std} must be finite, and std positive.")

    @property
    def takes_images(self) -> bool:
        """Whether image files can be given."""
        return self.bytes or self.mean is not None

    @property
    def picture(self) -> tuple[str, tuple[int, int]]:
        """The mode of an image file, and its width and height."""
        height, width, channels = self.shape if self.bytes else (*self.shape[1:], self.shape[0])
        return "L" if channels == 1 else "RGB", (width, height)

    @property
    def words(self) -> str:
        """What an array has to be."""
        shape = ", ".join(map(str, self.shape))
        return f"whole numbers from 0 to 255 of shape (N, {shape})" if self.bytes else f"numbers of shape (N, {shape})"

    def of_pixels(self, pixels: NDArray[np.uint8]) -> Numbers:
        """One image ``(1, ...)`` from the pixels ``(H, W, C)`` of a file."""
        if self.bytes:
            return pixels[None]
        mean, std = (np.asarray(values, np.float32) for values in (self.mean, self.std))
        out = np.empty((1, *self.shape), np.float32)
        out[0] = ((pixels.astype(np.float32) / np.float32(255) - mean) / std).transpose(2, 0, 1)
        return out

    def of_array(self, array: Numbers, name: str) -> Numbers:
        """Images ``(N, ...)`` from an array of them or of one.

        Raises:
            InvalidInput: it has another shape, holds something that is no number, or no byte where bytes are taken.
        """
        if array.dtype.kind not in "uif":
            raise InvalidInput(f"{name} holds {array.dtype}, not numbers; give {self.words}.")
        if array.shape == self.shape:
            array = array[None]
        if array.shape[1:] != self.shape or not len(array):
            raise InvalidInput(f"{name} has shape {array.shape}; give {self.words}.")
        if not np.isfinite(array).all():
            raise InvalidInput(f"{name} holds NaN or infinity; clean the input.")
        if not self.bytes:
            with np.errstate(over="ignore"):
                out = array.astype(np.float32)
            if not np.isfinite(out).all():
                raise InvalidInput(f"{name} holds numbers too large for float32; scale the input.")
            return out
        if array.dtype != np.uint8 and not ((array >= 0) & (array <= 255) & (array == np.floor(array))).all():
            raise InvalidInput(f"{name} holds numbers that are no bytes; give {self.words}.")
        return array.astype(np.uint8)

    def noise(self, count: int) -> Numbers:
        """So many images of noise, always the same."""
        random = np.random.default_rng(0)
        if self.bytes:
            return random.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        return random.standard_normal((count, *self.shape), dtype=np.float32)


class Engine(ABC):
    """A trained network that answers.

    Attributes:
        title: what it is, in a line.
        inputs: what it takes.
        classes: names of the classes.
        samples: how many are drawn if a request does not say.
        facts: what else an answer says of it, such as ``draws`` and ``stream_version``.
        joins: whether images of several requests may go into one call of :meth:`predict`.
        adapts: whether it can stop early, and draws as many samples as a request wants.
        keeps: whether it can give back the samples.
    """

    title: str
    inputs: Inputs
    classes: tuple[str, ...]
    samples: int
    facts: dict[str, Any]
    joins: bool = True
    adapts: bool = True
    keeps: bool = True

    @abstractmethod
    def predict(self, x: Numbers, index: NDArray[np.int64], sampling: Sampling) -> Answers:
        """What the network says of images ``(B, ...)`` that count as ``index`` ``(B,)`` in the random stream."""

    def begin_thread(self) -> None:  # noqa: B027
        """Set up the thread that will call :meth:`predict`."""


class OnnxEngine(Engine):
    """A file of :func:`rbue.export` in onnxruntime, without torch.

    Each image is a run of its own, numbered by ``offset``: always of one shape, so that its answer has the same bits
    whatever else is asked. The samples of an image fill the runtime's batch.

    Args:
        file: the ONNX file.
        mean: of each channel, to make numbers of image files; left out, arrays alone are taken.
        std: likewise.
        threads: of the runtime; left out, its own choice.
    """

    joins = adapts = keeps = False

    def __init__(
        self,
        file: str | Path,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        threads: int | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise RbueError("an ONNX file needs onnxruntime; pip install 'rbue[serve]'.") from error
        path = Path(file)
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}.")
        options = onnxruntime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's errors have no common class
            why = str(error).splitlines()[0][:200]
            raise InvalidInput(f"{path} cannot be loaded as ONNX ({why}); write it with rbue.export.") from error
        note = self._session.get_modelmeta().custom_metadata_map.get("rbue")
        images = [one for one in self._session.get_inputs() if one.name not in ("seed", "offset")]
        if note is None or len(images) != 1 or images[0].type != "tensor(float)":
            raise InvalidInput(f"{path} is no file of rbue.export that takes one float32 tensor; write it with that.")
        note = json.loads(note)
        self._name = images[0].name
        shape = tuple(images[0].shape[1:])
        self.inputs = Inputs(shape, mean=_as_tuple(mean), std=_as_tuple(std))
        self.samples = int(note["samples"])
        self.title = f"{path.name} ({note['activation']})"
        self.facts = {name: note[name] for name in ("draws", "stream_version", "temperature")}
        probs = self._run(self.inputs.noise(1), 0, 0)[0]
        if probs.ndim != 2:
            raise InvalidInput(f"{path} gives outputs of shape {probs.shape}; the server is for one class an image.")
        self.classes = tuple(note["classes"] or map(str, range(probs.shape[1])))
        one_name_each(self.classes, probs.shape[1], path)

    def _run(self, x: Numbers, seed: int, offset: int) -> list[Numbers]:
        signed = seed - (1 << 64) if seed >= 1 << 63 else seed
        return self._session.run(None, {self._name: x, "seed": np.array(signed), "offset": np.array(offset)})

    def predict(self, x: Numbers, index: NDArray[np.int64], sampling: Sampling) -> Answers:
        """One run an image."""
        runs = [self._run(x[k : k + 1], sampling.seed, int(number)) for k, number in enumerate(index)]
        probs, entropy, information = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        if not np.isfinite(probs).all():
            raise InvalidInput("the network returned NaN or infinity; look at the size of the numbers in the input.")
        used = np.full(len(x), self.samples)
        return Answers(probs, entropy, information, used)


def _as_tuple(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)
