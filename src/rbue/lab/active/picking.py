"""Which images to label next, by the name of an acquisition function: what each needs, and that it gets it.

The functions are those of :mod:`rbue.decisions.acquiring`. The random numbers of an image are those of its number in
the training set, so that its score does not depend on which others are asked about. Memory for the pool is a few
numbers an image; only ``batch-bald`` keeps samples, and ``core-set`` features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rbue.call_sites import evaluating, unchanged
from rbue.decisions import acquiring
from rbue.errors import InvalidInput, RbueWarning, did_you_mean
from rbue.lab.data import ImageSet
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import measuring, predict_images, sample_streams, usable_samples
from rbue.sampling.passes import class_scores

ACQUISITIONS: dict[str, Callable[..., Tensor]] = {
    "random": acquiring.random,
    "entropy": acquiring.entropy,
    "margin": acquiring.margin,
    "variation-ratio": acquiring.variation_ratio,
    "bald": acquiring.bald,
    "batch-bald": acquiring.batch_bald,
    "core-set": acquiring.core_set,
}
"""By their names, the plainest first."""

_COMPARES_SAMPLES = ("variation-ratio", "bald", "batch-bald")


def acquisition_named(text: str) -> str:
    """The name of an acquisition function, which may be written with underscores.

    >>> acquisition_named("batch_bald")
    'batch-bald'
    """
    name = text.strip().replace("_", "-")
    if name not in ACQUISITIONS:
        hint = did_you_mean(name, ACQUISITIONS)
        raise InvalidInput(f"there is no acquisition {text!r}{hint}; there are {', '.join(ACQUISITIONS)}.")
    return name


def check_samples(acquire: str, config: RunConfig, samples: int) -> None:
    """Refuse an acquisition that compares samples where a method draws only one."""
    if acquire in _COMPARES_SAMPLES and usable_samples(config, samples) < 2:
        others = ", ".join(name for name in ACQUISITIONS if name not in _COMPARES_SAMPLES)
        one = f"{config.method} has one" if config.parsed.limit == 1 else f"samples is {samples}"
        raise InvalidInput(
            f"{acquire} compares the samples of an image, but {one}; choose {others}, or a method with more samples."
        )


def pick(
    acquire: str,
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: ImageSet,
    candidates: NDArray[np.int64],
    labelled: NDArray[np.int64],
    count: int,
    samples: int,
    seed: int,
    device: torch.device,
) -> list[int]:
    """The numbers of the ``count`` candidates to label next, best first.

    Args:
        acquire: a name of :data:`ACQUISITIONS`.
        config: the run that trained the networks.
        networks: as many as its method has.
        images: all training images.
        candidates: numbers of those to choose among.
        labelled: numbers of those that have labels.
        count: how many to pick.
        samples: random passes for each candidate; a method with fewer samples draws all it has.
        seed: of the passes, and decides among equals.
        device: where the networks are.
    """
    choose = ACQUISITIONS[acquire]
    if acquire == "random":
        chosen = choose(len(candidates), count, seed=seed)
    elif acquire == "core-set":
        both = np.concatenate([candidates, labelled])
        features = _features(config, networks, images, both, samples, seed, device)
        chosen = choose(features[: len(candidates)], count, labelled=features[len(candidates) :], seed=seed)
    else:
        keep = acquire == "batch-bald"
        prediction = predict_images(
            config, networks, images, samples, seed, device, return_samples=keep, chosen=candidates
        )
        chosen = choose(prediction, count, seed=seed)
    return [int(number) for number in candidates[chosen.cpu().numpy()]]


def _features(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: ImageSet,
    chosen: NDArray[np.int64],
    samples: int,
    seed: int,
    device: torch.device,
) -> Tensor:
    """What the last layer sees of each image, ``(B, D)``: the mean over samples, beside each other of all networks."""
    found = []
    for member, network in zip(config.members(), networks, strict=True):
        count = usable_samples(member, samples)
        numbers = torch.arange(count, dtype=torch.int32, device=device)
        parts = []
        with (
            _without_last_layer(network, config.model, images, device),
            measuring([network], device),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", RbueWarning)  # with dropout before the last layer, no pass is random here
            for stream, x, places in sample_streams(member, [network], images, seed, device, chosen=chosen):
                total: Any = None
                for rows, _, out in stream(x, numbers, places):
                    if total is None:
                        total = torch.zeros(len(x), out.shape[2], device=device)
                    total[rows] += out.float().sum(0)
                parts.append(total / count)
        found.append(torch.cat(parts))
    return torch.cat(found, 1)


@contextmanager
def _without_last_layer(network: nn.Module, name: str, images: ImageSet, device: torch.device) -> Iterator[None]:
    """Inside, the network returns what it gives its last layer: the one whose outputs are the class scores."""
    path = _last_layer(network, images, device)
    if path is None:
        raise InvalidInput(
            f"core-set needs the features of a last layer, and {name} has none that makes class scores of (images, "
            "features); choose another acquisition."
        )
    parent, _, attribute = path.rpartition(".")
    owner, layer = network.get_submodule(parent), network.get_submodule(path)
    setattr(owner, attribute, nn.Identity())
    try:
        yield
    finally:
        setattr(owner, attribute, layer)


def _last_layer(network: nn.Module, images: ImageSet, device: torch.device) -> str | None:
    """The path of the layer that turns features ``(B, D)`` into what the network returns."""
    made: dict[int, str] = {}
    kept: list[Tensor] = []  # so that no later tensor gets the id of an earlier one

    def note(path: str) -> Callable[..., None]:
        def hook(layer: nn.Module, given: tuple[Any, ...], out: Any) -> None:
            if isinstance(out, Tensor) and given and isinstance(given[0], Tensor) and given[0].ndim == 2:
                made[id(out)] = path
                kept.append(out)

        return hook

    leaves = [(path, one) for path, one in network.named_modules() if path and not any(True for _ in one.children())]
    height, width, channels = images.images.shape[1:]
    x = torch.zeros(2, channels, height, width, device=device)
    handles = [layer.register_forward_hook(note(path)) for path, layer in leaves]
    try:
        with torch.no_grad(), unchanged(network, device), evaluating(network):
            scores = class_scores(network(x))
    finally:
        for handle in handles:
            handle.remove()
    return made.get(id(scores))
