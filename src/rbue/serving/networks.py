"""A converted network as an engine, by :func:`rbue.predict`, and what it shares with those of the laboratory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rbue import random_stream
from rbue.call_sites import Conversion, conversion_of, innermost
from rbue.errors import InvalidInput, RbueError, one_name_each, reason, whole_number
from rbue.prediction import Prediction, RunningMoments
from rbue.random_stream import INDEPENDENT, Cycle
from rbue.sampling import Adaptive, predict
from rbue.serving.engines import Answers, Engine, Inputs, Numbers, Sampling


@dataclass(frozen=True)
class WithinTime(Adaptive):
    """Stops also when another round would end too late.

    A round draws as many samples as all before it together, so it takes about as long as they did. The first round is
    always drawn.

    Attributes:
        deadline: when the last round has to be over, in the time of ``time.monotonic``; None: when it may be.
        late: is given the number of samples after which the clock stopped images that had not settled.
        by_clock: whether the clock alone stops it, however well the mean is known.
    """

    deadline: float | None = None
    late: list[int] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    by_clock: bool = False

    def settled(self, statistics: RunningMoments, rows: Tensor, looks: int, cycle: Cycle = INDEPENDENT) -> Tensor:
        """For each image of ``rows``, whether it needs, or gets, no more samples."""
        found = super().settled(statistics, rows, looks, cycle)
        if self.by_clock:
            found = torch.zeros_like(found)
        now = time.monotonic()
        if self.deadline is None or now + (now - self.started) <= self.deadline:
            return found
        self.late.extend(statistics.count[rows[~found]].tolist())
        return torch.ones_like(found)


def rule_of(sampling: Sampling) -> WithinTime | None:
    """When to stop drawing; None if a request wants all samples."""
    if not sampling.stops_early:
        return None
    rule = WithinTime(deadline=sampling.deadline, by_clock=sampling.tolerance is None)
    return rule if sampling.tolerance is None else replace(rule, tolerance=sampling.tolerance)


def answers_of(prediction: Prediction, rule: WithinTime | None) -> Answers:
    """The arrays of a prediction."""
    kept = prediction.samples
    return Answers(
        probs=_array(prediction.probs),
        entropy=_array(prediction.entropy),
        mutual_information=_array(prediction.mutual_information),
        samples_used=_array(prediction.samples_used),
        std=_array(prediction.variance.sqrt()),
        votes=_array(prediction.votes),
        samples=None if kept is None else _array(kept.movedim(0, 1)),
        out_of_time=rule is not None and bool(rule.late),
    )


def _array(values: Tensor) -> Numbers:
    return values.cpu().numpy()


class NetworkEngine(Engine):
    """A network made random by :func:`rbue.convert`, with one class an image.

    Args:
        network: the converted network, on its device.
        shape: of one input, ``(C, H, W)`` for images; left out, that of the example of the conversion.
        samples: how many are drawn if a request does not say.
        draws: ``"balanced"`` or ``"independent"``, as in :func:`rbue.predict`.
        outputs: what the network returns, as in :func:`rbue.predict`: ``"logits"``, or ``"binary"``, one logit.
        classes: names of the classes; left out, those kept with the network, or numbers.
        mean: of each channel, to make numbers of image files; left out, arrays alone are taken.
        std: likewise.
        title: what to call it.
        threads: of torch; left out, its own choice.
    """

    def __init__(
        self,
        network: nn.Module,
        shape: Sequence[int] | None = None,
        samples: int = 100,
        draws: str = "balanced",
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        title: str | None = None,
        threads: int | None = None,
        outputs: str = "logits",
    ) -> None:
        self._network, self._threads, self._draws, self._outputs = network, threads, draws, outputs
        inner = innermost(network)
        conversion = conversion_of(inner)
        _refuse_other_inputs(conversion)
        conversion.refuse_augmented("the server")
        if outputs not in ("logits", "binary"):
            raise InvalidInput(f"outputs is {outputs!r}; the server is for 'logits' and 'binary'.")
        tensors = [one for one in inner.parameters() if one.is_floating_point()]
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._type = tensors[0].dtype if tensors else torch.float32
        normal = (None if values is None else tuple(map(float, values)) for values in (mean, std))
        shape = _shape_of(conversion.example) if shape is None else shape
        if not isinstance(shape, Iterable):
            raise InvalidInput(f"shape is {shape!r}; give the sizes of one input, such as (20,) or (3, 32, 32).")
        self.inputs = Inputs(tuple(whole_number(size, "a size in shape") for size in shape), False, *normal)
        self.samples = samples
        self.title = title or f"{type(inner).__name__} ({conversion.activation!r})"
        self.facts = {"draws": draws, "stream_version": random_stream.VERSION, "temperature": conversion.temperature}
        try:
            probs = self.predict(self.inputs.noise(1), np.zeros(1, np.int64), Sampling(samples)).probs
        except RbueError:
            raise
        except Exception as error:  # whatever a network does with what does not fit
            raise InvalidInput(
                f"the network fails for an array of shape {(1, *self.inputs.shape)} ({reason(error)}); give shape= of "
                "one input, such as (3, 32, 32)."
            ) from error
        if probs.ndim != 2:
            raise InvalidInput(f"the network gives outputs of shape {probs.shape}; the server is for one class each.")
        names = conversion.classes if classes is None else classes
        self.classes = tuple(map(str, range(probs.shape[1]) if names is None else names))
        one_name_each(self.classes, probs.shape[1])

    def predict(self, x: Numbers, index: NDArray[np.int64], sampling: Sampling) -> Answers:
        """What :func:`rbue.predict` says."""
        rule = rule_of(sampling)
        # Convolutions choose the order of their sums by the strides, and an array may have any for a size of 1.
        rows = torch.empty(x.shape, dtype=self._type).copy_(torch.from_numpy(x))
        prediction = predict(
            self._network,
            rows.to(self._device),
            samples=sampling.samples,
            seed=sampling.seed,
            index=torch.from_numpy(index),
            adaptive=rule,
            return_samples=sampling.keep,
            draws=self._draws,
            outputs=self._outputs,
        )
        return answers_of(prediction, rule)

    def begin_thread(self) -> None:
        """Give the thread its number of threads, which torch keeps for each."""
        set_threads(self._threads)


def set_threads(threads: int | None) -> None:
    """How many threads torch uses for calls from this one; None leaves it."""
    if threads is not None:
        torch.set_num_threads(threads)


def _refuse_other_inputs(conversion: Conversion) -> None:
    """The server has one array of floating-point numbers for a network."""
    example = _the_only(conversion.example)
    if conversion.inputs != 1 or isinstance(example, dict):
        takes = "inputs by name" if isinstance(example, dict) else f"{conversion.inputs} inputs"
    elif isinstance(example, Tensor) and example.dtype in (torch.int32, torch.int64):
        takes = "whole numbers, such as tokens"
    else:
        return
    raise InvalidInput(
        f"the network takes {takes}, and the server gives it one array of floating-point numbers; convert and serve a "
        "module that makes its inputs of one array."
    )


def _the_only(example: Any) -> Any:
    """What an example of one argument has."""
    return example[0] if isinstance(example, (tuple, list)) and len(example) == 1 else example


def _shape_of(example: Any) -> tuple[int, ...]:
    """The shape of one input from the example of a conversion."""
    given = _the_only(example)
    if not isinstance(given, Tensor) or given.dim() < 2:
        raise InvalidInput("the network does not say what one input looks like; give shape=, such as (3, 32, 32).")
    return tuple(given.shape[1:])
