"""The keys of all rows at all sites of a pass, in one go."""

from __future__ import annotations

from torch import Tensor

from rbue import random_stream
from rbue.kernels import exported_words, native
from rbue.kernels.triton_support import triton_kernels
from rbue.torch_internals import computed_once, plain_eager


def site_keys(state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
    """Keys of shape ``(2, sites, rows)``.

    Args:
        state: seed lanes, ``(2,)``.
        samples: sample number of each row, ``(rows,)`` or ``(1,)``.
        images: image number of each row, ``(rows,)``.
        numbers: site numbers, ``(sites,)``.
    """
    if plain_eager(images):
        kernels = triton_kernels() if images.is_cuda else None
        if kernels is not None:
            return kernels.site_keys(state, samples, images, numbers)
        if native.supports_keys(state, samples, images, numbers):
            return native.site_keys(state, samples, images, numbers)
    exported = exported_words.current()
    if exported is not None:
        return exported.site_keys(state, samples, images, numbers)
    rows = random_stream.absorb(random_stream.absorb(state.unsqueeze(-1), samples), images)
    return keys_at(rows.unsqueeze(1), numbers.unsqueeze(-1))


def keys_at(states: Tensor, numbers: Tensor) -> Tensor:
    """The keys that site numbers make of the lanes of rows, which they broadcast against."""
    return computed_once(random_stream.absorb(states, numbers))
