"""``rbue.export``: a converted network as one file that draws its own samples."""

from __future__ import annotations

import inspect
import io
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbue import random_stream
from rbue._version import __version__
from rbue.call_sites import conversion_of, evaluating, innermost, unchanged
from rbue.call_sites.batch import Batch
from rbue.call_sites.following import plain_class
from rbue.call_sites.inputs import example_call
from rbue.call_sites.tracing import record
from rbue.errors import ConversionError, InvalidInput, RbueError, RbueWarning, did_you_mean, one_name_each, whole_number
from rbue.exporting import onnx_file
from rbue.exporting.sampled_network import OUTPUTS, SampledNetwork
from rbue.files import write_bytes
from rbue.sampling import predict
from rbue.sampling.predicting import check_draws
from rbue.sampling.stacking import StackedPasses
from rbue.sampling.tasks import Task, task_of
from rbue.saving import class_names

FORMATS = ("onnx", "pt2")
TASKS = ("logits", "binary", "tokens")
"""Outputs whose probabilities can be averaged in a graph, where nothing can be looked at on the way."""

_ROWS = 2
"""Images that a graph is traced and checked with."""
_TOLERANCE = 1e-4
"""Other kernels round in other ways; probabilities closer than this are equal."""


def export(
    model: nn.Module,
    file: str | Path,
    example: Any = None,
    samples: int = 100,
    format: str | None = None,
    draws: str = "balanced",
    outputs: str | None = None,
    classes: Sequence[str] | None = None,
    **settings: Any,
) -> None:
    """Write a converted network, with its samples, into one file: images and a seed in, a prediction out.

    An ONNX file runs in onnxruntime without torch and rbue, a ``.pt2`` file in torch without rbue. Either takes a batch
    of any size and returns what :func:`rbue.predict` says of it: ``probs``, ``entropy`` and ``mutual_information``. The
    random bits are those of ``predict``, so sample ``k`` of image ``i`` is the same here and there; probabilities agree
    to rounding. What comes before the first random site is computed once, all samples after it are one stack: memory
    grows with ``samples`` times the batch, so give large data in small batches.

    The inputs of the graph are the images, ``seed`` and ``offset``, the number of the first image, to count on from
    batch to batch; both are one integer. The file is checked against ``predict`` before it is written, an ONNX file if
    onnxruntime is installed.

    Args:
        model: a network made random by :func:`rbue.convert`.
        file: where to write; appears whole or not at all.
        example: one batch as the network takes it: a tensor, a tuple of arguments or a dict of keyword arguments. What
            is no tensor with a row for each image becomes a constant of the graph.
        samples: number of samples.
        format: ``"onnx"`` or ``"pt2"``. Default: the ending of the file.
        draws: ``"balanced"`` or ``"independent"``, as in ``predict``.
        outputs: ``"logits"``, the default, ``"binary"`` or ``"tokens"``, as in ``predict``.
        classes: names of the classes, for the file's metadata. Default: those kept with the network.
        **settings: none; what else ``predict`` takes is refused with the reason.

    Raises:
        ConversionError: the samples of the network cannot be stacked in one graph, or torch cannot trace it.

    >>> import tempfile
    >>> from rbue import DropReLU, convert
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> x = torch.randn(5, 4)
    >>> _ = convert(net, DropReLU(q=0.9), example=x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(net, f"{folder}/net.pt2", x, samples=10)
    ...     run = torch.export.load(f"{folder}/net.pt2").module()
    >>> probs, entropy, mutual_information = run(x, seed=torch.tensor(0), offset=torch.tensor(0))
    >>> probs.shape
    torch.Size([5, 3])
    """
    _refuse_settings(settings)
    path = Path(file)
    chosen = _format_of(path, format)
    samples = whole_number(samples, "samples")
    check_draws(draws)
    task = _task(outputs)
    network = innermost(model)
    conversion = conversion_of(network)
    conversion.refuse_augmented("a file")
    if example is None:
        raise InvalidInput("rbue.export traces the network and needs a batch for it; give example=x.")
    if chosen == "onnx":
        onnx_file.check_installed()
    batch = example_call(example, network)
    batch.check(network)
    few = batch[:_ROWS] if len(batch) >= _ROWS else batch.repeat(_ROWS)
    names = class_names(conversion.classes if classes is None else classes)
    note = {
        "rbue": __version__,
        "stream_version": random_stream.VERSION,
        "activation": repr(conversion.activation),
        "draws": draws,
        "samples": samples,
        "temperature": conversion.temperature,
        "outputs": task.name,
        "classes": names,
    }
    with evaluating(network), unchanged(network, batch.device):
        share = _shares(network, few, draws, task)
        expected = predict(network, few, samples, seed=1, outputs=outputs, draws=draws)
        if names is not None:
            one_name_each(names, expected.probs.shape[1])
        sampled = SampledNetwork(
            network,
            few,
            samples,
            draws == "balanced",
            task,
            conversion.temperature,
            share=share,
            elements=_elements(network, few),
            as_operators=chosen == "onnx",
        )
        program = _traced(sampled.eval(), few)
        _check(program.module()(*few.rows, **_numbers(few.device, 1)), expected, "the program")
        content = _pt2_bytes(program, note) if chosen == "pt2" else _checked_onnx(program, network, few, note, expected)
    write_bytes(path, content)


def _refuse_settings(settings: dict[str, Any]) -> None:
    if not settings:
        return
    name = next(iter(settings))
    if name == "adaptive":
        raise InvalidInput("a graph draws as many samples of every image, so it cannot be adaptive; give samples=.")
    if name in inspect.signature(predict).parameters:
        raise InvalidInput(f"{name}= is a setting of rbue.predict that an exported graph does not have; leave it out.")
    known = inspect.signature(export).parameters
    raise InvalidInput(f"rbue.export takes no {name}={did_you_mean(name, known)}.")


def _format_of(path: Path, given: str | None) -> str:
    found = path.suffix.removeprefix(".") if given is None else given
    if found not in FORMATS:
        what = f"the ending of {path.name}" if given is None else f"format={given!r}"
        raise InvalidInput(f"{what} is no known format; give format='onnx' or format='pt2'.")
    return found


def _task(outputs: str | None) -> Task:
    task = task_of(outputs)
    if task.name not in TASKS:
        raise InvalidInput(
            f"rbue.export is for class probabilities, outputs={' or '.join(map(repr, TASKS))}, not {task.name!r}; use "
            "rbue.predict."
        )
    return task


def _shares(network: nn.Module, x: Batch, draws: str, task: Task) -> bool:
    """Whether samples may share what comes before the first random site; an error if they cannot share a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)  # what it would warn of is an error here
        plan = StackedPasses(network, x, 0, draws=draws, read=task.read).plan
    name = type(network).__name__
    if not plan.random:
        raise ConversionError(f"{name} ran without meeting a random site; convert it again, or give another example.")
    if not plan.stack or plan.batch_dependent:
        raise ConversionError(
            f"the samples of {name} cannot be stacked in one graph: the rows of a random site are not images, or what "
            "happens to an image depends on others; use rbue.predict."
        )
    return plan.share


def _elements(network: nn.Module, x: Batch) -> int:
    """The most elements that one image has at a call site."""
    found = record(network, x, conversion_of(network).activation).sites
    return max(math.prod(site.shape) // len(x) for site in found)


def _numbers(device: torch.device, seed: int) -> dict[str, Tensor]:
    return {"seed": torch.tensor(seed, device=device), "offset": torch.tensor(0, device=device)}


def _traced(sampled: SampledNetwork, x: Batch) -> torch.export.ExportedProgram:
    # Zeros, because a program carries what it was traced with.
    zeros = tuple(torch.zeros_like(one) for one in x.rows)
    batch = torch.export.Dim("batch", min=1)
    shapes = {"tensors": tuple({0: batch} for _ in zeros), "seed": None, "offset": None}
    name = type(sampled.network).__name__
    try:
        with torch.no_grad(), redirect_stderr(io.StringIO()):  # where it prints a half-made graph before it gives up
            program = torch.export.export(sampled, zeros, _numbers(x.device, 0), dynamic_shapes=shapes, strict=False)
    except RbueError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        raise ConversionError(
            f"torch.export cannot trace {name} with batches of any size ({type(error).__name__}: {why[:200]}); use "
            "rbue.predict, or change what it names."
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the code lies on this machine
    return program


def _check(found: Sequence[Any], expected: Any, what: str) -> None:
    """Refuse a graph that does not say what ``predict`` says."""
    for name, one in zip(OUTPUTS, found, strict=True):
        wanted = getattr(expected, name)
        off = float((torch.as_tensor(one, device=wanted.device) - wanted).abs().max())
        if not off <= _TOLERANCE:
            raise ConversionError(
                f"{what} differs from rbue.predict by {off:.2g} in {name}, so nothing was written; use rbue.predict."
            )


def _pt2_bytes(program: torch.export.ExportedProgram, note: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"rbue.json": json.dumps(note)})
    return file.getvalue()


def _checked_onnx(
    program: torch.export.ExportedProgram, network: nn.Module, x: Batch, note: dict[str, Any], expected: Any
) -> bytes:
    names = _input_names(network, x)
    with _refused("ONNX has no form of", network):
        content = onnx_file.onnx_bytes(program, names, OUTPUTS, note)
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        return content
    with _refused("onnxruntime cannot run", network):
        feeds = {name: one.cpu().numpy() for name, one in zip(names, x.rows, strict=True)}
        feeds |= {name: one.numpy() for name, one in _numbers(torch.device("cpu"), 1).items()}
        found = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    _check(found, expected, "the ONNX file in onnxruntime")
    return content


@contextmanager
def _refused(what: str, network: nn.Module) -> Iterator[None]:
    """An operator or type that is missing there, such as a convolution in float64, in one sentence."""
    try:
        yield
    except RbueError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the exporter's own words come before the reason, and fill a screen
            cause = cause.__cause__
        why = " ".join(str(cause).split())
        raise ConversionError(
            f"{what} {type(network).__name__} ({type(cause).__name__}: {why[:200]}); give format='pt2', or change what "
            "it names."
        ) from error


def _input_names(network: nn.Module, x: Batch) -> list[str]:
    """``x`` for one argument by position, else the names of the arguments; numbers where the graph has such a name."""
    if len(x.rows) == 1 and not x.words:
        return ["x"]
    parameters = list(inspect.signature(plain_class(network).forward).parameters)[1:]
    called = {f"x[{k}]" if x.positional > 1 else "x": name for k, name in enumerate(parameters[: x.positional])}
    called |= {f"x[{name!r}]": name for name in x.words}
    given = [called.get(name, "") for name, has_rows in zip(x.names, x.has_rows, strict=True) if has_rows]
    own = len(set(given)) == len(given) and not {"", "seed", "offset", *OUTPUTS}.intersection(given)
    return given if own else [f"x{k}" for k in range(len(x.rows))]
