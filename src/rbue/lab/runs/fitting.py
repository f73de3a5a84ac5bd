"""What has to be known about a network before it is trained: whether it fits its data, and draws random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rbue.call_sites import evaluating, unchanged
from rbue.errors import InvalidInput, RbueError
from rbue.lab.data import ImageSet
from rbue.lab.training.checkpoint import can_be_saved
from rbue.sampling.passes import class_scores


def check_fits(network: nn.Module, name: str, shape: tuple[int, int, int], images: ImageSet, batch: int = 2) -> None:
    """Refuse a network that cannot take images ``(C, H, W)``, be saved, or does not give one score a class.

    One pass of two images shows it, another one whether it trains; they leave no trace. A network that cannot train on
    two images is given a whole ``batch``.
    """
    size, wanted = "x".join(map(str, shape)), (2, len(images.classes))
    example = _example(network, shape)
    fault = f"{name} cannot take images of {size} as in {images.name}"
    with _explaining(fault), unchanged(network, example.device), evaluating(network):
        output = network(example)
    try:
        scores = class_scores(output)
        found = f"shape {tuple(scores.shape)}"
    except RbueError:
        scores, found = torch.empty(0), f"type {type(output).__name__}"
    if scores.shape != wanted:
        raise InvalidInput(
            f"{name} returned an output of {found} for two images of {size}; {images.name} has {wanted[1]} classes, so "
            f"it must return a tensor of shape {wanted}, or an object or dict with such 'logits'."
        )
    odd = next((key for key, value in network.state_dict().items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise InvalidInput(f"{name} keeps something in its state that is no tensor ({odd!r}), which runs cannot save.")
    for key, value in network.state_dict().items():
        if not can_be_saved(value):
            kind = "nested" if value.is_nested else value.dtype if value.layout is torch.strided else value.layout
            raise InvalidInput(
                f"{name} keeps a tensor in its state that runs cannot save ({key!r}, {kind}); make it a dense one of "
                "another type, or a buffer with persistent=False."
            )
    with _explaining(f"{name} cannot be trained on images of {size} as in {images.name}"):
        _try_training(network, example, min(batch, max(1, len(images))))


def _example(network: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    """Two images, where the network is."""
    first = next((one for one in network.parameters() if one.is_floating_point()), torch.empty(0))
    return torch.zeros(2, *shape, device=first.device)


@contextmanager
def _explaining(fault: str) -> Iterator[None]:
    """Say in one sentence what a network's own error means."""
    try:
        yield
    except (RbueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InvalidInput(
            f"{fault} ({type(error).__name__}: {reason}); mend it, or choose another network or other data."
        ) from error


def _try_training(network: nn.Module, example: Tensor, batch: int) -> None:
    """Pass two images through the network as in training, or, if they are too few for it, a batch with gradients.

    Where several processes train, it may wait for the others or need its GPU, and is not tried.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    try:
        with unchanged(network, example.device), _training(network):
            network(example)
    except Exception:
        with unchanged(network, example.device), _training(network), torch.enable_grad():
            network(example[:1].expand(batch, *example.shape[1:]).contiguous())


@contextmanager
def _training(network: nn.Module) -> Iterator[None]:
    """The network in training mode, as it understands that; afterwards each module has the flag it had before."""
    flags = [(module, module.training) for module in network.modules()]
    try:
        network.train()
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def give_lazy_layers_weights(network: nn.Module, shape: tuple[int, int, int]) -> None:
    """Let lazy layers see two images ``(C, H, W)``, which gives them their weights; a failure shows in the check."""
    if any(is_lazy(tensor) for tensor in (*network.parameters(), *network.buffers())):
        with suppress(Exception), torch.no_grad(), evaluating(network):
            network(torch.zeros(2, *shape))


def draws_from_torch(network: nn.Module, x: Tensor) -> bool:
    """Whether a training pass draws from torch's one generator, which networks side by side would share.

    A network that cannot be watched is taken to do so.
    """
    network.train()
    with suppress(Exception), unchanged(network, x.device):
        before = _generator_state(x.device)
        network(x)
        return not torch.equal(before, _generator_state(x.device))
    return True


def _generator_state(device: torch.device) -> Tensor:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)
