"""Which images to label next, by the name of an acquisition function: what each needs, and that it gets it.

The functions are those of :mod:`rbue.decisions.acquiring`. The random numbers of an image are those of its number in
the training set, so that its score does not depend on which others are asked about. Memory for the pool is a few
numbers an image; only ``batch-bald`` keeps samples, and ``core-set`` features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rbue.decisions import acquiring
from rbue.errors import InvalidInput, did_you_mean
from rbue.lab.data import ImageSet
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.passes import Passes

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
    if acquire in _COMPARES_SAMPLES and Passes(samples).count(config) < 2:
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
    passes: Passes,
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
        passes: for each candidate; their seed decides among equals.
        device: where the networks are.
    """
    choose, seed = ACQUISITIONS[acquire], passes.seed
    if acquire == "random":
        chosen = choose(len(candidates), count, seed=seed)
    elif acquire == "core-set":
        both = np.concatenate([candidates, labelled])
        features = _features(config, networks, images, both, passes, device)
        chosen = choose(features[: len(candidates)], count, labelled=features[len(candidates) :], seed=seed)
    else:
        keep = acquire == "batch-bald"
        prediction = predict_images(config, networks, images, passes, device, return_samples=keep, chosen=candidates)
        chosen = choose(prediction, count, seed=seed)
    return [int(number) for number in candidates[chosen.cpu().numpy()]]


def _features(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: ImageSet,
    chosen: NDArray[np.int64],
    passes: Passes,
    device: torch.device,
) -> Tensor:
    """What the classifier sees of each image, ``(B, D)``: the mean over samples, beside each other of all networks."""
    if not config.parsed.member.one_classifier:
        raise InvalidInput(f"core-set needs one classifier for all samples, unlike {config.method}; choose another.")
    try:
        found = [
            predict_images(member, [network], images, passes, device, keep=["features"], chosen=chosen).features
            for member, network in zip(config.members(), networks, strict=True)
        ]
    except InvalidInput as error:
        raise InvalidInput(
            f"core-set needs the input of a last linear layer, which {config.model} does not have; choose another "
            "acquisition."
        ) from error
    return torch.cat(found, 1)  # type: ignore[arg-type]
