"""What to label next: each function picks ``count`` images of a pool and gives their indices, best first.

Equal images have no order of their own: the seed decides among them. Equal inputs and seeds give equal indices.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rbue.decisions import _inputs, out_of_distribution
from rbue.errors import InvalidInput, a_kind, whole_number
from rbue.metrics.uncertainty import expected_entropy
from rbue.prediction import MultiLabel

__all__ = ["bald", "batch_bald", "core_set", "entropy", "margin", "random", "variation_ratio"]


def random(pool: Any, count: int, seed: int = 0) -> Tensor:
    """Images at random, without repetition: what every other choice has to beat.

    Args:
        pool: The number of images, a prediction, probabilities ``(B, C)``, samples ``(S, B, C)`` or features.
        count: How many to pick.
        seed: Decides which.

    Example:
        >>> random(5, 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    try:
        images = pool if isinstance(pool, Integral) else pool.shape[1] if getattr(pool, "ndim", 0) == 3 else len(pool)
    except TypeError:
        raise InvalidInput(f"pool is {a_kind(pool)}; give the number of images, or what there is of each.") from None
    return _first(torch.zeros(whole_number(images, "pool")), count, seed)


def entropy(prediction: Any, count: int, seed: int = 0) -> Tensor:
    """The images with the largest entropy of the mean, ``-Σ p ln p`` (Shannon; Settles, Active Learning, 2012, §2.3).

    Args:
        prediction: Of the pool: a ``Prediction``, a ``MultiLabel``, probabilities ``(B, C)`` or samples ``(S, B, C)``.
        count: How many to pick.
        seed: Decides among equals.

    Example:
        >>> entropy(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3]]), 2)
        tensor([1, 2])
    """
    return _first(out_of_distribution.entropy(prediction), count, seed)


def margin(prediction: Any, count: int, seed: int = 0) -> Tensor:
    """The images with the smallest lead of the most probable class over the next, ``p_(1) - p_(2)`` (Scheffer, 2001).

    Of several labels the least clear one counts.

    Args:
        prediction: Of the pool: a ``Prediction``, a ``MultiLabel``, probabilities ``(B, C)`` or samples ``(S, B, C)``.
        count: How many to pick.
        seed: Decides among equals.

    Example:
        >>> margin(torch.tensor([[0.5, 0.3, 0.2], [0.48, 0.47, 0.05]]), 1)
        tensor([1])
    """
    if isinstance(prediction, MultiLabel):
        lead = (2 * prediction.probs.detach().double() - 1).abs().flatten(1).amin(1)
    else:
        probs = _inputs.probabilities(prediction)
        if probs.shape[1] < 2:
            raise InvalidInput("margin compares the two likeliest classes, and there is one; give at least two.")
        best = probs.topk(2, dim=1).values
        lead = best[:, 0] - best[:, 1]
    return _first(-lead, count, seed)


def variation_ratio(prediction: Any, count: int, seed: int = 0) -> Tensor:
    """The images on whose label the fewest samples agree, ``1 - v / S`` for the ``v`` votes of the most frequent.

    Args:
        prediction: Of the pool: a ``Prediction``, a ``MultiLabel`` or samples ``(S, B, C)``.
        count: How many to pick.
        seed: Decides among equals, which are many with few samples.

    Example:
        >>> variation_ratio(torch.tensor([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]), 1)
        tensor([1])
    """
    return _first(out_of_distribution.variation_ratio(prediction), count, seed)


def bald(prediction: Any, count: int, seed: int = 0) -> Tensor:
    """The images with the largest mutual information ``H(mean p) - mean H(p)``: the samples disagree, each being sure.

    (Houlsby et al., Bayesian Active Learning for Classification and Preference Learning, arXiv:1112.5745; Gal et al.,
    Deep Bayesian Active Learning with Image Data, ICML 2017.)

    Args:
        prediction: Of the pool: a ``Prediction``, a ``MultiLabel`` or samples ``(S, B, C)``.
        count: How many to pick.
        seed: Decides among equals.

    Example:
        >>> bald(torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]]), 1)
        tensor([1])
    """
    return _first(out_of_distribution.mutual_information(prediction), count, seed)


def batch_bald(prediction: Any, count: int, seed: int = 0, configurations: int = 10_000) -> Tensor:
    """The images that together tell most: greedily by ``I(y_1 … y_b; ω) = H(y_1 … y_b) - Σ_i E_ω H(y_i | ω)``.

    Two alike images tell little more than one; ``bald`` takes both, this does not (Kirsch, van Amersfoort and Gal,
    BatchBALD, NeurIPS 2019). The next image adds ``Σ_Y p(Y) H(y | Y) - E_ω H(y | ω)``, where ``Y`` are the
    configurations of labels of the images picked so far and ``p(y | Y) = Σ_s w_s(Y) p_s(y)`` weighs the samples by
    how well they agree with ``Y``. As long as there are at most ``configurations`` of them, ``C^b``, the sum is
    exact. Beyond that it is the mean over as many that are drawn from the samples, the paper's estimate (eq. 14): a
    configuration is drawn label by label from one sample, and every sample draws equally many, up to one.

    Memory is ``S · configurations`` numbers and a few blocks of 32 MiB, whatever the size of the pool.

    Args:
        prediction: Of the pool: samples ``(S, B, C)``, or a ``Prediction`` of ``return_samples=True``.
        count: How many to pick.
        seed: Decides among equals and draws the configurations.
        configurations: How many joint labels are followed at most.

    Example:
        >>> one, other = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> alike_and_not = torch.stack([one.repeat(2, 1), other.repeat_interleave(2, 0)], 1)  # 4 samples, 2 images
        >>> batch_bald(torch.cat([alike_and_not[:, :1], alike_and_not], 1), 2).sort().values[1]
        tensor(2)
    """
    samples = _inputs.samples_of(prediction, least=2)
    drawn, images, classes = samples.shape
    count = whole_number(count, "count", most=images)
    whole_number(configurations, "configurations")
    generator = _generator(seed)
    turns = _shuffled(images, generator, samples.device)
    own = expected_entropy(samples)
    # Columns are configurations Y: their probabilities p(Y), and S·w_s(Y), whose mean over the samples is 1.
    chances = torch.ones(1, dtype=torch.float64, device=samples.device)
    weights = torch.ones((drawn, 1), dtype=torch.float64, device=samples.device)
    sources: Tensor | None = None
    picked: list[int] = []
    while True:
        gains = _conditional_entropies(samples, weights, chances) - own
        gains[picked] = -torch.inf
        picked.append(int(turns[gains[turns].argmax()]))
        if len(picked) == count:
            return torch.tensor(picked, device=samples.device)
        label = samples[:, picked[-1]].double()  # (S, C)
        if sources is None and weights.shape[1] * classes <= configurations:
            weights = (weights[:, :, None] * label[:, None, :]).flatten(1)  # (S, Y·C)
            share = weights.mean(0)
            chances = chances.repeat_interleave(classes) * share
            possible = share > 0
            weights, chances = weights[:, possible] / share[possible], chances[possible]
            continue
        if sources is None:
            # All labels picked so far are drawn again, each configuration from one sample.
            sources = torch.arange(configurations, device=samples.device) % drawn
            chances = torch.full((configurations,), 1 / configurations, dtype=torch.float64, device=samples.device)
            weights = torch.ones((drawn, configurations), dtype=torch.float64, device=samples.device)
            following = picked
        else:
            following = picked[-1:]
        for image in following:
            label = samples[:, image].double()
            points = torch.from_numpy(generator.random(configurations)).to(samples.device)
            bounds = label.cumsum(1)[sources]
            # Scaled to the last bound, so that rounding of the sum can draw no class that is not there.
            chosen = (bounds <= (points * bounds[:, -1])[:, None]).sum(1)
            weights = weights * label[:, chosen]
            weights = weights / weights.mean(0)


def core_set(features: Any, count: int, labelled: Any = None, seed: int = 0) -> Tensor:
    """The images that leave no other far away: each is the one furthest from all labelled and picked ones.

    ``argmax_i min_j ‖f_i - f_j‖``, the greedy answer to the k-centre problem, at most twice as far off as the best
    (Sener and Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach, ICLR 2018). Distances
    are Euclidean, in float64; only one an image is kept.

    Args:
        features: Of the pool, ``(B, D)``.
        count: How many to pick.
        labelled: Features of the images that have labels, ``(L, D)``. Without them the first pick is random.
        seed: Decides among equals, and the first without labelled images.

    Example:
        >>> core_set(torch.tensor([[0.0], [1.0], [5.0]]), 2, labelled=torch.tensor([[0.0]]))
        tensor([2, 1])
    """
    pool = _inputs.features_of(features)
    count = whole_number(count, "count", most=len(pool))
    turns = _shuffled(len(pool), _generator(seed), pool.device)
    # Squared distances: their order is the same.
    nearest = torch.full((len(pool),), torch.inf, dtype=torch.float64, device=pool.device)
    if labelled is not None:
        for centre in _inputs.features_of(labelled, pool.shape[1], "labelled"):
            _approach(nearest, pool, centre)
    picked: list[int] = []
    for _ in range(count):
        picked.append(int(turns[nearest[turns].argmax()]))
        _approach(nearest, pool, pool[picked[-1]])
        nearest[picked] = -torch.inf
    return torch.tensor(picked, device=pool.device)


def _approach(nearest: Tensor, pool: Tensor, centre: Tensor) -> None:
    """Lower the squared distances to the nearest centre by one more centre."""
    for block in _inputs.blocks(*pool.shape):
        apart = (pool[block].double() - centre).square().sum(1)
        nearest[block] = torch.minimum(nearest[block], apart)


def _conditional_entropies(samples: Tensor, weights: Tensor, chances: Tensor) -> Tensor:
    """``Σ_Y p(Y) H(y | Y)`` of each image, ``(B,)``, in blocks of images and configurations that fit the work space."""
    drawn, images, classes = samples.shape
    total = torch.zeros(images, dtype=torch.float64, device=samples.device)
    for columns in _inputs.blocks(len(chances), classes + drawn):
        some = weights[:, columns] / drawn  # (S, Y)
        for rows in _inputs.blocks(images, classes * (some.shape[1] + drawn)):
            block = samples[:, rows].double().flatten(1)  # (S, b·C)
            joint = (block.T @ some).unflatten(0, (-1, classes))  # (b, C, Y)
            total[rows] += torch.special.entr(joint).sum(1) @ chances[columns]
    return total


def _first(scores: Tensor, count: int, seed: int) -> Tensor:
    """The indices of the ``count`` greatest scores; a random order decides among equals."""
    whole_number(count, "count", most=len(scores))
    turns = _shuffled(len(scores), _generator(seed), scores.device)
    return turns[scores[turns].sort(stable=True, descending=True).indices[:count]]


def _shuffled(images: int, generator: np.random.Generator, device: torch.device) -> Tensor:
    """The numbers of all images in a random order: of equal ones the first in it is taken."""
    return torch.from_numpy(generator.permutation(images)).to(device)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole_number(seed, "seed", least=0))
