"""What one sets of a converted network: the seed and the draws of its calls, its mode, its temperature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn

from rbue import random_stream
from rbue.calibration import Temperature
from rbue.call_sites import draws, following, tracing
from rbue.call_sites.conversion import conversion_of
from rbue.errors import InvalidInput

MODES = ("random", "mean", "plain")


def seed(model: nn.Module, value: int) -> None:
    """Restart the random bits of plain calls: the next ``model(x)`` is sample 0 of this seed, then 1, ...

    The calls draw the same samples as ``predict(model, x, seed=value, draws="independent")`` with the default image
    numbers.
    """
    network = tracing.innermost(model)
    conversion_of(network)
    draws.set_seed(network, random_stream.check_seed(value))


@contextmanager
def uncounted(model: nn.Module, images: Tensor) -> Iterator[None]:
    """The call of a network inside draws the bits of its next call, for rows with these numbers, and is not counted.

    A compiled or captured call has nothing to count then. Call :func:`count_call` after its backward, which may read
    what it drew from again. A network without random sites is left alone.
    """
    network = _drawing(model)
    with nullcontext() if network is None else drawing(network, draws.standing_draw(network, images)):
        yield


@contextmanager
def drawing(network: nn.Module, draw: draws.Draw) -> Iterator[None]:
    """The calls of a converted network inside draw what is given, in this thread, whatever its mode."""
    before, draws.running.draws = draws.running.draws, (conversion_of(network).token, draw)
    try:
        yield
    finally:
        draws.running.draws = before


def count_call(model: nn.Module) -> None:
    """Count the call that was made in :func:`uncounted`."""
    network = _drawing(model)
    if network is not None:
        draws.count(network)


def _drawing(model: nn.Module) -> nn.Module | None:
    """The converted network that a call of ``model`` draws for; None if it does not draw."""
    network = tracing.innermost(model)
    conversion = network.__dict__.get(following.CONVERSION)
    return None if conversion is None or conversion.mode != "random" else network


@contextmanager
def mode(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Run a converted network in another mode inside a ``with`` block.

    ``"random"`` draws; ``"mean"`` replaces each random slope by its expectation, one deterministic pass;
    ``"plain"`` is the unconverted network. All threads that run the network see the mode; :func:`rbue.predict` always
    draws, and warns of it inside the block.
    """
    if name not in MODES:
        raise InvalidInput(f"mode must be one of {', '.join(MODES)}, not {name!r}.")
    conversion = conversion_of(tracing.innermost(model))
    before = conversion.mode
    conversion.mode = name
    try:
        yield model
    finally:
        conversion.mode = before


def set_temperature(model: nn.Module, temperature: float | Temperature, augmented: bool = False) -> None:
    """Keep a temperature with a converted network: :func:`rbue.predict` scales its mean probabilities by it.

    Copies and saved files have it too. Converting again forgets it, because it was fitted to other samples; 1 takes it
    away. Fit it with :meth:`rbue.calibration.Temperature.fit` to ``predict(..., temperature=False).probs`` of images
    that the network was not trained on. ``augmented`` says that those passes were augmented; :func:`rbue.predict` then
    warns where its own are not.

    >>> import torch
    >>> from rbue import DropReLU, convert, predict
    >>> net = convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), DropReLU(q=0.9))
    >>> set_temperature(net, 1.5)
    >>> predict(net, torch.randn(5, 4), samples=10).temperature
    1.5
    """
    if not isinstance(temperature, Temperature):
        temperature = Temperature(temperature)
    conversion = conversion_of(tracing.innermost(model))
    conversion.temperature, conversion.temperature_augmented = float(temperature.value), augmented
