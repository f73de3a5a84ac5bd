"""Whether a network fits its data, found out before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rbue.call_sites import evaluating
from rbue.data import ImageSet
from rbue.errors import InvalidInput, RbueError


def check_fits(network: nn.Module, name: str, shape: tuple[int, int, int], images: ImageSet) -> None:
    """Refuse a network that cannot take images ``(C, H, W)`` or does not give one score a class.

    One pass of two images shows it, and leaves no trace.
    """
    if any(is_lazy(tensor) for tensor in (*network.parameters(), *network.buffers())):
        return  # a pass would make its weights
    size, wanted = "x".join(map(str, shape)), (2, len(images.classes))
    first = next((one for one in network.parameters() if one.is_floating_point()), torch.empty(0))
    try:
        with _unchanged(network, first.device):
            scores = network(torch.zeros(2, *shape).to(first))
    except (RbueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InvalidInput(
            f"{name} cannot take images of {size} as in {images.name} ({type(error).__name__}: {reason}); mend it, or "
            "choose another network or other data."
        ) from error
    found = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"type {type(scores).__name__}"
    if not isinstance(scores, Tensor) or scores.shape != wanted:
        raise InvalidInput(
            f"{name} returned an output of {found} for two images of {size}; {images.name} has {wanted[1]} classes, so "
            f"it must return a tensor of shape {wanted}."
        )


@contextmanager
def _unchanged(network: nn.Module, device: torch.device) -> Iterator[None]:
    """A pass inside, in evaluation mode, leaves no trace: neither in the network nor in torch's random numbers."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in network.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad(), evaluating(network):
        try:
            yield
        finally:
            for module, name, buffer, content in buffers:
                module._buffers[name] = buffer.copy_(content)
