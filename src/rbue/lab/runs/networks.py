"""The networks of a run: fresh ones to train, trained ones to use, and whether one fits its data at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rbue.call_sites import evaluating, unchanged
from rbue.call_sites.untouched import forked_generators
from rbue.errors import InvalidInput, OutOfMemory, RbueError, a_kind, reason
from rbue.lab import data, models
from rbue.lab.methods.base import Method, naming_own
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training.checkpoint import can_be_saved, load_weights
from rbue.sampling.passes import class_scores
from rbue.sampling.stacking import is_out_of_memory

_LARGEST_IMAGE = 1 << 26
"""Numbers in one image. What a file says is believed up to here, so that it cannot ask for all of the memory."""


class NoWeights(RbueError):
    """A run that was measured, whose weights are elsewhere."""


def fresh_network(config: RunConfig, images: data.ImageSet, device: torch.device) -> nn.Module:
    """An initialised network, prepared by the method, on its device; the same for the same seed.

    Raises:
        InvalidInput: the network does not fit the images, or into memory.
    """
    with forked_generators(device):
        network = _initialised(config, images)
        check_fits(network, config.model, image_shape(images), images, config.recipe.batch)
        return prepared(network, config.parsed, image_shape(images), device)


def _initialised(config: RunConfig, images: data.ImageSet) -> nn.Module:
    channels, *_ = image_shape(images)
    create = partial(models.create, config.model, len(images.classes), channels, config.width)
    try:
        if config.width > 1 and ":" not in config.model:
            _check_room(create)
        torch.manual_seed(config.seed)
        network = create()
        give_lazy_layers_weights(network, image_shape(images))
        return network
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        if config.width <= 1 or isinstance(error, RbueError):
            raise
        raise InvalidInput(
            f"{config.model} with width {config.width:g} does not fit into memory; choose a smaller --width."
        ) from error


def _check_room(create: Callable[[], nn.Module]) -> None:
    """Refuse a network larger than this machine's memory: a system may promise that and kill the process later."""
    with torch.device("meta"):
        weights = sum(parameter.nbytes for parameter in create().parameters())
    if hasattr(os, "sysconf") and weights > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise MemoryError(f"{weights:,} bytes of weights")


def image_shape(images: data.ImageSet) -> tuple[int, int, int]:
    """Channels, height and width."""
    height, width, channels = images.images.shape[1:]
    return channels, height, width


def prepared(network: nn.Module, method: Method, image: tuple[int, int, int], device: torch.device) -> nn.Module:
    """A network prepared by a method for images ``(C, H, W)``, then moved to its device.

    One that draws from the network of another method needs first what that method made of it, whose weights it gets.
    Preparing may pass an example through the network, which on a GPU would leave the libraries' workspaces behind for a
    stream on which nothing else happens.
    """
    example = torch.zeros(2, *image)
    network = drawn_from(_prepare(method.trained, network, example), method, example).to(device)
    if device.type == "cuda":  # convolutions are fastest with the channels last, which is how the batches lie too
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def drawn_from(network: nn.Module, method: Method, example: Tensor) -> nn.Module:
    """A network as it was trained for a method, with what that makes random at test time alone."""
    member = method.member
    return network if member.trained is member else _prepare(member, network, example)


def _prepare(method: Method, network: nn.Module, example: Tensor) -> nn.Module:
    with naming_own(method):
        made = method.prepare(network, example)
    if not isinstance(made, nn.Module):
        raise RbueError(
            f"{method.name}.prepare returned {a_kind(made)}; it must return the network, a torch.nn.Module."
        )
    return made


def trained_on(config: RunConfig, root: Path) -> data.ImageSet:
    """A set without images: size, classes and normalisation of what a run was trained on, wherever that is now."""
    folder = RunFolder.of(config.trainings()[0], root)
    noted = folder.read("training") or {}
    if "class_names" not in noted:  # a run from before they were noted
        return data.load(config.data, "test")
    try:
        record = noted["data"]
        height, width, channels = record["shape"]
        if not (
            1 <= height * width * channels <= _LARGEST_IMAGE and min(record["shape"]) >= 1 and noted["class_names"]
        ):
            raise ValueError(f"images of shape {record['shape']} and {len(noted['class_names'])} classes")
        pixels, labels = np.empty((0, height, width, channels), np.uint8), np.empty(0, np.int64)
        classes, mean, std = (tuple(values) for values in (noted["class_names"], record["mean"], record["std"]))
        return data.ImageSet(pixels, labels, classes, record["name"], "test", mean, std)
    except (KeyError, ValueError) as error:
        raise RbueError(
            f"{folder.path / 'training.json'} does not say what images it was trained on ({reason(error)}); train it "
            "again."
        ) from error


def load_networks(config: RunConfig, root: Path, device: torch.device) -> list[nn.Module]:
    """The trained networks of a run.

    Raises:
        NoWeights: the run was measured, and the weights of a network are not in its folder.
        RbueError: a network was not trained, or its files are damaged.
    """
    was_measured = RunFolder.of(config, root).has_results
    members = [(member, RunFolder.of(member, root)) for member in config.trainings()]
    for _, folder in members:
        if folder.read("training") is None:
            raise RbueError(f"{folder.path} holds no finished training; run `rbue train` with the same settings first.")
        if (was_measured or folder.has_results) and not folder.has_weights:
            raise NoWeights(
                f"the weights of {folder.path} are not kept in this folder: what was measured can be used, but no new "
                "samples can be drawn; "
                + (
                    f"`rbue train` with the same settings takes them from {folder.state.name}."
                    if folder.state.exists()
                    else "train it again with another --runs for that."
                )
            )
    images = trained_on(config, root)
    networks = []
    for member, folder in members:
        with forked_generators(device):
            network = prepared(_initialised(member, images), config.parsed, image_shape(images), device)
        load_weights(folder.path, network)
        networks.append(network)
    return networks


def check_fits(
    network: nn.Module, name: str, shape: tuple[int, int, int], images: data.ImageSet, batch: int = 2
) -> None:
    """Refuse a network that cannot take images ``(C, H, W)``, be saved, or does not give one score a class.

    One pass of two images shows it, another one whether it trains; they leave no trace. A network that cannot train on
    two images is given a whole ``batch``.
    """
    size, wanted = "x".join(map(str, shape)), (2, len(images.classes))
    first = next((one for one in network.parameters() if one.is_floating_point()), torch.empty(0))
    example = torch.zeros(2, *shape, device=first.device)
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


@contextmanager
def explaining_memory(device: torch.device, way_out: str) -> Iterator[None]:
    """Say in one sentence that memory is short, and what to do about it; other work can go on then."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise OutOfMemory(f"{where} has not enough memory for this; {way_out}.") from error


@contextmanager
def _explaining(fault: str) -> Iterator[None]:
    """Say in one sentence what a network's own error means."""
    try:
        yield
    except (RbueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InvalidInput(
            f"{fault} ({type(error).__name__}: {reason(error)}); mend it, or choose another network or other data."
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
