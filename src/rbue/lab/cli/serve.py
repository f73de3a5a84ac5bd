"""``rbue serve``: a run or a file behind HTTP."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbue.errors import InvalidInput, RbueError, reason
from rbue.lab.cli.options import DRAWS, DeviceName, RunsFolder, device_named, find_run, fractions, was_typed
from rbue.lab.cli.output import say, working

if TYPE_CHECKING:
    from torch import nn

    from rbue.serving import Conformal, Engine

_limit = partial(typer.Option, rich_help_panel="Limits")
_of_file = partial(typer.Option, rich_help_panel="For a file that is no run")


def serve(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_RUN",
            help="An .onnx file of rbue.export, a .safetensors file of rbue.save, a run folder or the id at its end.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all, then set a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="RBUE_TOKEN", show_envvar=True, help="What clients have to send; safer in the environment than here."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Random passes for each image; fixed in an .onnx file.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random passes.")] = 0,
    draws: Annotated[str | None, DRAWS] = None,
    conformal: Annotated[
        float | None, typer.Option(help="Coverage of sets of classes, such as 0.9; from the held-out images of a run.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Held-out images for --conformal instead: an .npz file with probs and labels.")
    ] = None,
    model: Annotated[str | None, _of_file(help="The network of a .safetensors file: package:factory.")] = None,
    mean: Annotated[str | None, _of_file(help="Channel means of pixels from 0 to 1: 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, _of_file(help="Their standard deviations; without these two, arrays alone.")] = None,
    outputs: Annotated[
        str, _of_file(help="What the network of a .safetensors file returns: logits or binary.")
    ] = "logits",
    batching: Annotated[str, _limit(help="How requests share calls of the network: auto, padded or off.")] = "auto",
    max_batch: Annotated[int, _limit(help="Images in a call of several requests.")] = 8,
    max_wait_ms: Annotated[float, _limit(help="How long a request waits for others to share its call.")] = 5.0,
    queue: Annotated[int, _limit(help="Requests that may wait; more get 429.")] = 64,
    timeout: Annotated[float, _limit(help="Seconds for a whole request.")] = 30.0,
    max_mb: Annotated[float, _limit(help="Megabytes of a request.")] = 16.0,
    max_megapixels: Annotated[float, _limit(help="Millions of pixels of an image file.")] = 25.0,
    max_images: Annotated[int, _limit(help="Images of a request.")] = 32,
    max_samples: Annotated[int, _limit(help="Samples that a request may ask for.")] = 1000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of torch or onnxruntime (left out: their choice).")
    ] = None,
    device: DeviceName = None,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Answer requests for predictions, with a page at / to try it.

    POST images to /predict; /health, /metrics (Prometheus) and /openapi.json say more. It listens to this machine alone
    unless --host says otherwise. SIGTERM ends it after the requests that were accepted are answered.
    """
    try:
        from rbue.serving import OnnxEngine, Settings
        from rbue.serving import serve as run_server
        from rbue.serving.process import bound
    except ModuleNotFoundError as error:
        raise RbueError(str(error)) from error
    if conformal is None and held_out is not None:
        raise InvalidInput("--held-out is for --conformal; give a coverage such as --conformal 0.9.")
    settings = Settings(
        token=token,
        seed=seed,
        batching=batching,
        max_batch=max_batch,
        max_wait=max_wait_ms / 1000,
        queue=queue,
        timeout=timeout,
        max_bytes=_millions(max_mb, "--max-mb"),
        max_pixels=_millions(max_megapixels, "--max-megapixels"),
        max_images=max_images,
        max_samples=max_samples,
    )
    pixels = fractions(mean, "--mean", "0.49,0.48,0.45"), fractions(std, "--std", "0.25,0.24,0.26")
    bound(host, port).close()  # a network may take minutes to load, only to find that the port is taken
    engine: Engine
    with working(f"loading {what}"):
        path = Path(what).expanduser()
        if path.suffix == ".onnx":
            _refuse(ctx, ("samples", "draws", "model", "outputs"), "an .onnx file has its own")
            _refuse(ctx, ("device",), "an .onnx file runs on the CPU")
            engine = OnnxEngine(path, *pixels, threads)
        elif path.suffix == ".safetensors":
            from rbue.serving import NetworkEngine

            draws, network = draws or "balanced", _network(path, model, device)
            engine = NetworkEngine(network, None, samples, draws, None, *pixels, path.name, threads, outputs)
        elif path.is_file():
            raise InvalidInput(f"{path} cannot be served; give an .onnx file, a .safetensors file or a run folder.")
        else:
            from rbue.lab.runs.serving import RunEngine

            _refuse(ctx, ("model", "mean", "std", "outputs"), "a run has its own")
            engine = RunEngine(find_run(what, runs).path, device_named(device), samples, draws, threads)
        sets = None if conformal is None else _conformal(engine, conformal, held_out, seed)
    say(f"{engine.title}: {engine.inputs.words}, {len(engine.classes)} classes, {engine.samples} samples")
    run_server(engine, replace(settings, conformal=sets), host, port)


def _millions(value: float, option: str) -> int:
    if not 1e-6 <= value < 1e6:
        raise InvalidInput(f"{option} must be a positive number below a million, not {value:g}.")
    return int(value * 1e6)


def _refuse(ctx: typer.Context, names: tuple[str, ...], why: str) -> None:
    found = [f"--{name}" for name in names if was_typed(ctx, name)]
    if found:
        raise InvalidInput(f"{why}; leave out {', '.join(found)}.")


def _network(path: Path, model: str | None, device: str | None) -> nn.Module:
    """The network of a saved file, from a factory that takes no arguments."""
    from rbue.lab.own_code import find_own
    from rbue.saving import load

    place, _, attribute = (model or "").partition(":")
    if not place or not attribute:
        raise InvalidInput(f"{path} holds weights, not the code of its network; give --model package:factory.")
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    factory = find_own(place, attribute, str(model))
    try:
        network = factory()
    except TypeError as error:
        raise InvalidInput(f"{model} has to make the network without arguments ({error}).") from error
    return load(path, network.to(device_named(device))).eval()


def _conformal(engine: Engine, coverage: float, held_out: Path | None, seed: int) -> Conformal:
    from rbue.files import load_arrays
    from rbue.lab.runs.serving import RunEngine, fitted

    if held_out is None:
        if isinstance(engine, RunEngine):
            return engine.conformal(coverage, seed)
        raise InvalidInput("--conformal needs held-out images; give --held-out an .npz file with probs and labels.")
    try:
        probs, labels = load_arrays(held_out, ("probs", "labels")).values()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise InvalidInput(f"{held_out} is no .npz file with probs and labels ({why}).") from error
    if probs.ndim != 2 or probs.shape[1] != len(engine.classes):
        raise InvalidInput(f"{held_out} has probs of shape {probs.shape}; there are {len(engine.classes)} classes.")
    try:
        return fitted(probs, labels, coverage)
    except InvalidInput as error:
        raise InvalidInput(f"{held_out} cannot be used: {error}") from error
