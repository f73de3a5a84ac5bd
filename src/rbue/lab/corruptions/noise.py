"""Four kinds of noise, on every value of every pixel separately."""

from __future__ import annotations

from rbue.lab.corruptions.corrupting import Batch, corruption, to_bytes
from rbue.lab.data.images import Bytes


@corruption(cifar=(0.04, 0.06, 0.08, 0.09, 0.10), tiny_imagenet=(0.04, 0.08, 0.12, 0.15, 0.18))
def gaussian_noise(batch: Batch, std: float) -> Bytes:
    """``x + std·n`` with standard normal ``n``."""
    noisy = batch.normal(*batch.images.shape[1:])
    noisy *= std
    noisy += batch.fractions
    return to_bytes(noisy)


@corruption(cifar=(500, 250, 100, 75, 50), tiny_imagenet=(250, 100, 50, 30, 15))
def shot_noise(batch: Batch, photons: float) -> Bytes:
    """``Poisson(x·photons) / photons``: too little light, counted."""
    counts = batch.poisson(batch.fractions * photons)
    counts /= photons
    return to_bytes(counts)


@corruption(cifar=(0.01, 0.02, 0.03, 0.05, 0.07), tiny_imagenet=(0.01, 0.02, 0.05, 0.08, 0.14))
def impulse_noise(batch: Batch, amount: float) -> Bytes:
    """A share ``amount`` of all values is lost: half of them become 0, half 255."""
    chance = batch.uniform(0.0, 1.0, *batch.images.shape[1:])
    noisy = batch.images.copy()
    noisy[chance < amount] = 255
    noisy[chance < amount / 2] = 0
    return noisy


@corruption(cifar=(0.06, 0.10, 0.12, 0.16, 0.20), tiny_imagenet=(0.15, 0.20, 0.25, 0.30, 0.35))
def speckle_noise(batch: Batch, std: float) -> Bytes:
    """``x + x·std·n`` with standard normal ``n``: the brighter, the noisier."""
    noisy = batch.normal(*batch.images.shape[1:])
    noisy *= std
    noisy += 1.0
    noisy *= batch.fractions
    return to_bytes(noisy)
