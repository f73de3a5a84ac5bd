"""``rbue.predict``: many random passes in, one :class:`~rbue.prediction.Prediction` out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from rbue import random_stream
from rbue.calibration import Temperature
from rbue.call_sites import conversion_of, evaluating, innermost
from rbue.errors import InvalidInput, RbueError, whole_number
from rbue.prediction import Prediction, concatenate
from rbue.random_stream import INDEPENDENT
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.collect import SampleProgress, collect, refuse_infinite_images
from rbue.sampling.stacking import StackedPasses


def predict(
    model: nn.Module,
    x: Tensor | Iterable[Any],
    samples: int = 100,
    seed: int = 0,
    index: Tensor | None = None,
    outputs: str = "logits",
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    progress: bool = False,
    memory: int | None = None,
    draws: str = "balanced",
    temperature: float | Temperature | bool = True,
) -> Prediction:
    """Predict with uncertainty: the mean and the spread of many random passes (paper §3.3).

    The network runs in evaluation mode (BatchNorm uses its running statistics) with its ReLUs random; afterwards
    every module has the training flag it had before. Sample ``k`` of image ``i`` is the same whatever the batch
    size and the memory budget. Memory has a budget, whatever ``samples`` is, unless ``return_samples`` asks for them.

    Args:
        model: a network made random by :func:`rbue.convert`.
        x: a batch ``(B, ...)``, or a loader that yields batches, or tuples whose first entry is one.
        samples: number of passes; with ``adaptive``, the most an image may get.
        seed: 64-bit seed of the draws.
        index: the numbers of the images, shape ``(B,)``. Default 0 to B-1; a loader counts on.
        outputs: what the network returns: ``"logits"`` or ``"probs"``, of shape ``(B, C, ...)``, or an object or
            dict with ``logits``. A single logit is a two-class problem and goes through the sigmoid.
        adaptive: stop early for images whose answer has settled.
        return_samples: keep the raw probabilities ``(S, B, C, ...)`` in ``prediction.samples``.
        progress: show a progress bar; needs rich.
        memory: budget in bytes for activations. Default: 64 MiB on a CPU; on a GPU 8 GiB or a quarter of the
            free memory, whichever is less; less after an out-of-memory error.
        draws: ``"balanced"`` samples come in cycles in which each activation is dropped once (DropReLU,
            DropActivation, Dropout) or slopes come in mirrored pairs (RReLU). Each sample alone is distributed as
            before, and the mean of few of them is several times closer to its limit. ``"independent"`` ones are those
            of plain calls (:func:`rbue.seed`); the paper's measurements use them.
        temperature: scale the mean probabilities by the temperature that is kept with the network
            (:func:`rbue.set_temperature`), if there is one; False does not, a number scales by that one instead.
            Adaptive stopping looks at the mean before.

    >>> from rbue import DropReLU, convert
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> prediction = predict(convert(net, DropReLU(0.8)), torch.randn(5, 4), samples=20)
    >>> prediction.probs.shape, prediction.label.shape, int(prediction.samples_used[0])
    (torch.Size([5, 3]), torch.Size([5]), 20)
    """
    samples, seed = whole_number(samples, "samples"), random_stream.check_seed(seed)
    _check_settings(outputs, adaptive, return_samples, memory)
    check_draws(draws)
    network = innermost(model)
    conversion = conversion_of(network)
    scale = _temperature(temperature, conversion.temperature)
    _check_inputs(x, conversion.inputs)
    cycle = conversion.activation.cycle if draws == "balanced" else INDEPENDENT
    target = samples if adaptive is None else adaptive.rounds(samples)[0]
    parts: list[Prediction] = []
    start = 0
    bar = SampleProgress(samples, len(x) if isinstance(x, Tensor) else None) if progress else nullcontext()
    with evaluating(network), bar as report:
        for batch in batches_of(x):
            check_batch(batch, network)
            numbers = _image_numbers(index, start, batch, whole=isinstance(x, Tensor))
            if batch.is_floating_point() and not batch.is_cuda:  # on a GPU, collect looks when it has to wait anyway
                refuse_infinite_images(batch, numbers)
            first = torch.arange(target, dtype=torch.int32, device=batch.device), numbers
            with _types_named(batch, network):
                prediction = collect(
                    StackedPasses(model, batch, seed, memory, draws, first),
                    batch,
                    numbers,
                    samples,
                    seed=seed,
                    outputs=outputs,
                    adaptive=adaptive,
                    return_samples=return_samples,
                    report=report,
                    draws=draws,
                    cycle=cycle,
                )
            _check_shape(prediction, parts)
            parts.append(prediction)
            start += len(batch)
    if not parts:
        raise InvalidInput("the loader gave no batch; there is nothing to predict.")
    if index is not None and len(index) != start:
        raise InvalidInput(f"index numbers {len(index)} images, but the loader gave {start}.")
    prediction = parts[0] if len(parts) == 1 else concatenate(parts)
    return prediction if scale == 1 else prediction.scaled(scale)


def warm_up(model: nn.Module, x: Tensor | Iterable[Any], samples: int = 100, **settings: Any) -> None:
    """Do now what the first :func:`predict` would do before its passes, so that the next ones are as fast as they get.

    Kernels are compiled or loaded, the network is looked at (how its samples may be stacked), libraries choose their
    algorithms, memory is taken from the system. That belongs to one kind of request: give ``x`` with the shape, type
    and device, and the ``samples`` and other settings of :func:`predict`, that will be asked for. Noise will do for
    ``x``; zeros may show too little of the network. Of a loader the first batch is used.

    >>> from rbue import DropReLU, convert
    >>> net = convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), DropReLU(0.8))
    >>> warm_up(net, torch.randn(1, 4), samples=30)
    """
    batch = next(iter(batches_of(x)), None)
    if batch is None:
        raise InvalidInput("the loader gave no batch; there is nothing to warm up with.")
    predict(model, batch, samples=samples, **settings)


def _temperature(given: float | Temperature | bool, kept: float) -> float:
    """What to scale by: the kept temperature, none, or another."""
    if isinstance(given, bool):
        return kept if given else 1.0
    return float((given if isinstance(given, Temperature) else Temperature(given)).value)


def check_draws(draws: str) -> None:
    """Refuse a name of draws that there are none of."""
    if draws not in ("balanced", "independent"):
        raise InvalidInput(f"draws must be 'balanced' or 'independent', not {draws!r}.")


def _check_inputs(x: Any, inputs: int) -> None:
    """Refuse the arguments of one call, which would be taken for batches."""
    if inputs > 1 and isinstance(x, (tuple, list)) and len(x) == inputs:
        raise InvalidInput(
            f"x is a {type(x).__name__} of {len(x)}, as was the example, but predict gives the network one input; wrap "
            "the network in a module that takes one tensor and convert that."
        )


def batches_of(x: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    """The input itself, or what a loader yields, or the first entries of that."""
    if isinstance(x, Tensor):
        yield x
        return
    if isinstance(x, (str, bytes, Mapping, np.ndarray)) or not isinstance(x, Iterable):
        raise InvalidInput(f"x must be a tensor or a loader of tensors, not {type(x).__name__}{_way_to_tensors(x)}.")
    for batch in x:
        first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(first, Tensor):
            raise InvalidInput(
                f"a loader must yield tensors, or tuples whose first entry is one, not {type(first).__name__}"
                f"{_way_from_batch(first)}."
            )
        yield first


def _way_to_tensors(x: Any) -> str:
    """What to write instead of an ``x`` of another type, where that is known."""
    if isinstance(x, np.ndarray):
        return "; give torch.as_tensor(x)"
    if isinstance(x, Dataset):
        return "; give torch.utils.data.DataLoader(x, batch_size=64)"
    if isinstance(x, Mapping):
        return "; give the one entry that is the input"
    return ""


def _way_from_batch(batch: Any) -> str:
    """What to write instead of a loader of such batches, where that is known."""
    if isinstance(batch, Mapping):
        return f"; give (batch[{next(iter(batch), 'x')!r}] for batch in loader), with the name of the input"
    if isinstance(batch, np.ndarray):
        return "; make it one with torch.as_tensor"
    if isinstance(batch, Real):
        return "; give a list of numbers as torch.tensor(x)"
    return ""


def _image_numbers(index: Tensor | None, start: int, batch: Tensor, whole: bool) -> Tensor:
    count = len(batch)
    if index is None:
        return torch.arange(start, start + count, dtype=torch.int64, device=batch.device).to(torch.int32)
    try:
        index = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"index must be a vector of integers, not {type(index).__name__}.") from error
    if index.dim() != 1 or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise InvalidInput(f"index must be a vector of integers, not shape {tuple(index.shape)} of {index.dtype}.")
    if (whole and len(index) != count) or len(index) < start + count:
        raise InvalidInput(f"index numbers {len(index)} images, but there are {start + count}.")
    part = index[start : start + count].to(torch.int64)
    if int(part.min()) < 0 or int(part.max()) >= 1 << 32:
        raise InvalidInput(f"index must lie in [0, 2**32), but goes from {int(part.min())} to {int(part.max())}.")
    return random_stream.to_int32(part.to(batch.device))


def _check_settings(outputs: str, adaptive: Adaptive | None, return_samples: bool, memory: int | None) -> None:
    if outputs not in ("logits", "probs"):
        raise InvalidInput(f"outputs must be 'logits' or 'probs', not {outputs!r}.")
    if adaptive is not None and not isinstance(adaptive, Adaptive):
        raise InvalidInput(f"adaptive must be rbue.Adaptive(tolerance=..., confidence=...), not {adaptive!r}.")
    if adaptive is not None and return_samples:
        raise InvalidInput("return_samples needs the same number of samples for every image; use adaptive=None.")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, Real) or not memory > 0):
        raise InvalidInput(f"memory must be a positive number of bytes, such as 1 << 30, not {memory!r}.")


def check_batch(x: Tensor, network: nn.Module) -> None:
    """Refuse a batch that is not dense, empty, or elsewhere than the network."""
    if x.is_nested or x.layout is not torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise InvalidInput(f"x must be a dense tensor, not a {kind} one; give x.to_dense(), or pad its images.")
    if x.dim() == 0 or x.numel() == 0:
        what = "one image" if x.dim() == 0 or len(x) == 0 else "one value an image"
        raise InvalidInput(f"x must hold at least {what}, but its shape is {tuple(x.shape)}.")
    parameter = next(network.parameters(), None)
    if parameter is not None and parameter.device != x.device:
        raise InvalidInput(f"x is on {x.device} but the network is on {parameter.device}; move one to the other.")


def _check_shape(prediction: Prediction, earlier: list[Prediction]) -> None:
    if earlier and prediction.probs.shape[1:] != earlier[0].probs.shape[1:]:
        first, other = (tuple(part.probs.shape[1:]) for part in (earlier[0], prediction))
        raise InvalidInput(
            f"an image's outputs have shape {first} in the first batch and {other} in batch {len(earlier) + 1}; pad "
            "the inputs to one size, or predict the batches apart."
        )


@contextmanager
def _types_named(x: Tensor, network: nn.Module) -> Iterator[None]:
    """Say which types do not fit where torch refuses them; a network may also convert its input by itself."""
    try:
        yield
    except RuntimeError as error:
        wanted = next((one.dtype for one in network.parameters() if one.is_floating_point()), x.dtype)
        if isinstance(error, RbueError) or x.dtype == wanted or not _names_type(str(error), x.dtype):
            raise
        raise InvalidInput(
            f"x is {x.dtype} but the network is {wanted}, and it cannot take that; give x.to({wanted})."
        ) from error


def _names_type(message: str, dtype: torch.dtype) -> bool:
    """Whether an error of torch is about tensors of this type, such as ``Long`` for int64."""
    name = _NAMES_IN_ERRORS.get(dtype, "")
    return "type" in message and re.search(rf"(\b|CPU|CUDA){name}(Tensor|Type|\b)", message, re.IGNORECASE) is not None


_NAMES_IN_ERRORS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "(char|signed char)",
    torch.uint8: "(byte|unsigned char)",
    torch.bool: "bool",
}
