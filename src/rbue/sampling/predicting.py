"""``rbue.predict``: many random passes in, one :class:`~rbue.prediction.Prediction` out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Real
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from rbue import random_stream
from rbue.augment import Augment
from rbue.calibration import Temperature
from rbue.call_sites import conversion_of, evaluating, innermost
from rbue.call_sites.batch import Batch
from rbue.call_sites.inputs import batches_of, one_call
from rbue.call_sites.tracing import batch_explained
from rbue.errors import InvalidInput, warn, whole_number
from rbue.prediction import AnyPrediction, Prediction, concatenate
from rbue.random_stream import INDEPENDENT
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.collect import SampleProgress, collect, refuse_infinite_images
from rbue.sampling.keeping import Keeping
from rbue.sampling.passes import class_scores
from rbue.sampling.stacking import StackedPasses
from rbue.sampling.tasks import Outputs, Task, task_of


@overload
def predict(
    model: nn.Module,
    x: Any,
    samples: int = 100,
    seed: int = 0,
    index: Tensor | None = None,
    outputs: Literal["logits", "probs", "binary", "tokens"] | None = None,
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    progress: bool = False,
    memory: int | None = None,
    draws: str = "balanced",
    augment: Augment | Sequence[Augment] | None = None,
    temperature: float | Temperature | bool = True,
    keep: str | Sequence[str] = (),
) -> Prediction: ...


@overload
def predict(
    model: nn.Module,
    x: Any,
    samples: int = 100,
    seed: int = 0,
    index: Tensor | None = None,
    *,
    outputs: Outputs,
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    progress: bool = False,
    memory: int | None = None,
    draws: str = "balanced",
    augment: Augment | Sequence[Augment] | None = None,
    temperature: float | Temperature | bool = True,
    keep: str | Sequence[str] = (),
) -> Any: ...


def predict(
    model: nn.Module,
    x: Any,
    samples: int = 100,
    seed: int = 0,
    index: Tensor | None = None,
    outputs: Outputs = None,
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    progress: bool = False,
    memory: int | None = None,
    draws: str = "balanced",
    augment: Augment | Sequence[Augment] | None = None,
    temperature: float | Temperature | bool = True,
    keep: str | Sequence[str] = (),
) -> AnyPrediction:
    """Predict with uncertainty: the mean and the spread of many random passes (paper §3.3).

    The network runs in evaluation mode (BatchNorm uses its running statistics) with its ReLUs random; afterwards
    every module has the training flag it had before. Sample ``k`` of image ``i`` is the same whatever the batch
    size and the memory budget. Memory has a budget, whatever ``samples`` is, unless ``return_samples`` asks for them.
    A batch whose images change each other's samples is not divided, whatever the budget.

    Args:
        model: a network made random by :func:`rbue.convert`.
        x: a batch ``(B, ...)``, as a tensor or NumPy array; a dict of keyword arguments, such as a tokenizer's; a tuple
            of arguments, for a network that takes several; a ``Dataset``; or a loader of any of these. Of a loader's
            tuples the first entry is the input, or as many as the example of the conversion had. Entries ``label`` and
            ``labels`` of a dict are left out, but for an encoder-decoder of transformers, whose decoder reads them one
            place later. Every tensor with as many rows as the first is repeated with the samples;
            one with one row, or none, is passed on as it is; any other number of rows is an error.
        samples: number of passes; with ``adaptive``, the most an image may get.
        seed: 64-bit seed of the draws.
        index: the numbers of the images, shape ``(B,)``. Default 0 to B-1; a loader counts on.
        outputs: what the network returns, as a tensor or in an object or dict with ``logits`` (or ``out``):

            - ``"logits"``, the default, or ``"probs"``: one of ``C`` classes, ``(B, C, ...)``.
            - ``"binary"``: one logit, ``(B,)`` or ``(B, 1, ...)``, for two classes. One number an image has to be
              named: it may be ``"values"`` too.
            - ``"tokens"``: logits with the classes last, ``(B, T, C)``, as token classifiers have them; the prediction
              has ``(B, C, T)``.
            - ``"multilabel"``: a logit for each of ``K`` labels, ``(B, K, ...)``.
            - ``"values"``: numbers of any shape ``(B, ...)``, as in regression.
            - ``"gaussian"``: a mean and a positive variance, as a tuple of two tensors, an object or dict with ``mean``
              and ``variance``, or a tensor ``(B, 2, ...)``.
            - ``"quantiles"``: at least two rising quantiles, ``(B, Q)``; samples that cross are averaged as they are.
            - a function that makes a tensor ``(B, ...)`` of whatever the network returns, to be averaged.
        adaptive: stop early for images whose answer has settled.
        return_samples: keep what is averaged, such as the probabilities ``(S, B, C, ...)``, in ``prediction.samples``.
        progress: show a progress bar; needs rich.
        memory: budget in bytes for activations. Default: 64 MiB on a CPU; on a GPU 8 GiB or a quarter of the
            free memory, whichever is less; less after an out-of-memory error.
        draws: ``"balanced"`` samples come in cycles in which each activation is dropped once (DropReLU,
            DropActivation, Dropout) or slopes come in mirrored pairs (RReLU). Each sample alone is distributed as
            before, and the mean of few of them is several times closer to its limit. ``"independent"`` ones are those
            of plain calls (:func:`rbue.seed`); the paper's measurements use them.
        augment: what each sample does to its images first, such as ``[rbue.augment.Flip(), rbue.augment.Shift(2)]``; a
            function or a list of them (:mod:`rbue.augment`). It often makes the mean better, and it costs: samples that
            see other images have nothing to share, so each is a whole pass.
        temperature: scale the mean probabilities by the temperature that is kept with the network
            (:func:`rbue.set_temperature`), if there is one; False does not, a number scales by that one instead.
            Adaptive stopping looks at the mean before.
        keep: what else to keep, as means over samples: ``"logits"`` for ``prediction.logits`` ``(B, C)``, ``energy``
            and ``max_logit`` ``(B,)``; ``"features"`` for ``prediction.features`` ``(B, D)``, the input of the
            classifier (the ``nn.Linear`` that makes the scores, or else the last one); ``"features:NAME"`` for that of
            another module, of which maps are averaged over their pixels. Memory does not grow with ``samples``. For one
            class an input. With features a compiled network runs as it is written.

    Returns:
        A :class:`Prediction` for classes, a :class:`MultiLabel` for labels, a :class:`Regression` for numbers.

    >>> from rbue import DropReLU, convert
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> prediction = predict(convert(net, DropReLU(0.8)), torch.randn(5, 4), samples=20)
    >>> prediction.probs.shape, prediction.label.shape, int(prediction.samples_used[0])
    (torch.Size([5, 3]), torch.Size([5]), 20)
    >>> numbers = predict(net, {"input": torch.randn(5, 4)}, samples=20, outputs="values")
    >>> numbers.mean.shape, numbers.std.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    samples, seed = whole_number(samples, "samples"), random_stream.check_seed(seed)
    task = task_of(outputs)
    keeping = Keeping(keep, task)
    _check_settings(adaptive, return_samples, memory)
    check_draws(draws)
    network = innermost(model)
    conversion = conversion_of(network)
    if conversion.mode != "random":  # someone compares with the plain network, and would compare samples with samples
        warn(f"predict draws samples inside rbue.mode(net, {conversion.mode!r}) too; for that mode call net(x) there.")
    scale = _temperature(temperature, conversion.temperature, task)
    if temperature is True and conversion.temperature_augmented and augment is None and task.of_classes:
        warn(
            f"the temperature {scale:.4g} of this network was fitted to augmented passes, and these are not: give "
            "predict the same augment=, or temperature=False."
        )
    whole = one_call(x, network, conversion.inputs)
    batches = batches_of(x if whole is None else whole, network, conversion.inputs)
    # What augmentations add to the spread does not cancel within a cycle of the activation.
    cycle = conversion.activation.cycle if draws == "balanced" and augment is None else INDEPENDENT
    target = samples if adaptive is None else adaptive.rounds(samples)[0]
    parts: list[AnyPrediction] = []
    start = 0
    images = len(whole) if whole is not None and whole.rows else None
    bar = SampleProgress(samples, images) if progress else nullcontext()
    read = class_scores if keeping.features else task.read
    with keeping.beside_scores([network], task.read), evaluating(network), bar as report:
        for batch in batches:
            batch.check(network)
            numbers = _image_numbers(index, start, batch, whole=whole is not None)
            if not batch.is_cuda:  # on a GPU, collect looks when it has to wait anyway
                refuse_infinite_images(batch, numbers)
            first = torch.arange(target, dtype=torch.int32, device=batch.device), numbers
            with batch_explained(batch, network, conversion.activation):
                passes = StackedPasses(model, batch, seed, memory, draws, read, augment, first, keeping.features)
                prediction = collect(
                    passes,
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
                    keeping=keeping,
                    undivided=passes.undivided,
                )
            _check_shape(prediction, parts)
            if outputs is None:
                _refuse_tokens(network, prediction)
            parts.append(prediction)
            start += len(batch)
    if not parts:
        raise InvalidInput("the loader gave no batch; there is nothing to predict.")
    if index is not None and len(index) != start:
        raise InvalidInput(f"index numbers {len(index)} images, but the loader gave {start}.")
    prediction = parts[0] if len(parts) == 1 else concatenate(parts)
    return prediction.scaled(scale) if isinstance(prediction, Prediction) and scale != 1 else prediction


def warm_up(model: nn.Module, x: Any, samples: int = 100, **settings: Any) -> None:
    """Do now what the first :func:`predict` would do before its passes, so that the next ones are as fast as they get.

    Kernels are compiled or loaded, the network is looked at (how its samples may be stacked), libraries choose their
    algorithms, memory is taken from the system. That belongs to one kind of request: give ``x`` with the shape, type
    and device, and the ``samples`` and other settings of :func:`predict`, that will be asked for. Noise will do for
    ``x``; zeros may show too little of the network. Of a loader the first batch is used.

    >>> from rbue import DropReLU, convert
    >>> net = convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), DropReLU(0.8))
    >>> warm_up(net, torch.randn(1, 4), samples=30)
    """
    network = innermost(model)
    batch = next(batches_of(x, network, conversion_of(network).inputs), None)
    if batch is None:
        raise InvalidInput("the loader gave no batch; there is nothing to warm up with.")
    predict(model, batch, samples=samples, **settings)


def _temperature(given: float | Temperature | bool, kept: float, task: Task) -> float:
    """What to scale by: the kept temperature, none, or another."""
    if isinstance(given, bool):
        return kept if given else 1.0
    if not task.of_classes:
        raise InvalidInput(f"a temperature is for classes, and outputs={task.name!r} has none; leave it out.")
    return float((given if isinstance(given, Temperature) else Temperature(given)).value)


def check_draws(draws: str) -> None:
    """Refuse a name of draws that there are none of."""
    if draws not in ("balanced", "independent"):
        raise InvalidInput(f"draws must be 'balanced' or 'independent', not {draws!r}.")


def _image_numbers(index: Tensor | None, start: int, batch: Batch, whole: bool) -> Tensor:
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


def _check_settings(adaptive: Adaptive | None, return_samples: bool, memory: int | None) -> None:
    if adaptive is not None and not isinstance(adaptive, Adaptive):
        raise InvalidInput(f"adaptive must be rbue.Adaptive(tolerance=..., confidence=...), not {adaptive!r}.")
    if adaptive is not None and return_samples:
        raise InvalidInput("return_samples needs the same number of samples for every image; use adaptive=None.")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, Real) or not memory > 0):
        raise InvalidInput(f"memory must be a positive number of bytes, such as 1 << 30, not {memory!r}.")


def _check_shape(prediction: AnyPrediction, earlier: list[AnyPrediction]) -> None:
    if earlier and prediction.output_shape != earlier[0].output_shape:
        first, other = earlier[0].output_shape, prediction.output_shape
        raise InvalidInput(
            f"an image's outputs have shape {first} in the first batch and {other} in batch {len(earlier) + 1}; pad "
            "the inputs to one size, or predict the batches apart."
        )


def _refuse_tokens(network: nn.Module, prediction: AnyPrediction) -> None:
    """Refuse logits whose classes a network of transformers says are elsewhere; their tokens would be the classes."""
    classes, shape = getattr(getattr(network, "config", None), "num_labels", None), prediction.output_shape
    if len(shape) == 2 and shape[1] == classes != shape[0]:
        raise InvalidInput(
            f"the network returned scores of shape (B, {shape[0]}, {shape[1]}) and has {classes} classes, which stand "
            "last; give outputs='tokens'."
        )
