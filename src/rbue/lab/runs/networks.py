"""The networks of a run: fresh ones to train, trained ones to use."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from rbue.errors import InvalidInput, RbueError
from rbue.lab import data, models
from rbue.lab.methods import Method
from rbue.lab.runs.fitting import check_fits, give_lazy_layers_weights
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training.checkpoint import load_weights


class NoWeights(RbueError):
    """A run that was measured, whose weights are elsewhere."""


def fresh_network(config: RunConfig, images: data.ImageSet, device: torch.device) -> nn.Module:
    """An initialised network, prepared by the method, on its device; the same for the same seed.

    Raises:
        InvalidInput: the network does not fit the images, or into memory.
    """
    with _own_random_numbers(device):
        network = _initialised(config, images)
        check_fits(network, config.model, _image_shape(images), images, config.recipe.batch)
        return prepared(network, config.parsed, _image_shape(images), device)


def _own_random_numbers(device: torch.device) -> AbstractContextManager:
    """What is drawn or seeded inside leaves the caller's numbers as they are."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _initialised(config: RunConfig, images: data.ImageSet) -> nn.Module:
    channels, *_ = _image_shape(images)
    create = partial(models.create, config.model, len(images.classes), channels, config.width)
    try:
        if config.width > 1 and ":" not in config.model:
            _check_room(create)
        torch.manual_seed(config.seed)
        network = create()
        give_lazy_layers_weights(network, _image_shape(images))
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


def _image_shape(images: data.ImageSet) -> tuple[int, int, int]:
    height, width, channels = images.images.shape[1:]
    return channels, height, width


def prepared(network: nn.Module, method: Method, image: tuple[int, int, int], device: torch.device) -> nn.Module:
    """A network prepared by a method for images ``(C, H, W)``, then moved to its device.

    Preparing may pass an example through the network, which on a GPU would leave the libraries' workspaces behind for a
    stream on which nothing else happens.
    """
    network = method.prepare(network, torch.zeros(2, *image)).to(device)
    if device.type == "cuda":  # convolutions are fastest with the channels last, which is how the batches lie too
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def trained_on(config: RunConfig, root: Path) -> data.ImageSet:
    """A set without images: size, classes and normalisation of what a run was trained on, wherever that is now."""
    noted = RunFolder.of(config.members()[0], root).read("training") or {}
    if "class_names" not in noted:  # a run from before they were noted
        return data.load(config.data, "test")
    record = noted["data"]
    pixels, labels = np.empty((0, *record["shape"]), np.uint8), np.empty(0, np.int64)
    classes, mean, std = (tuple(values) for values in (noted["class_names"], record["mean"], record["std"]))
    return data.ImageSet(pixels, labels, classes, record["name"], "test", mean, std)


def load_networks(config: RunConfig, root: Path, device: torch.device) -> list[nn.Module]:
    """The trained networks of a run.

    Raises:
        NoWeights: the run was measured, and the weights of a network are not in its folder.
        RbueError: a network was not trained, or its files are damaged.
    """
    was_measured = RunFolder.of(config, root).has_results
    for member in config.members():
        _check_trained(RunFolder.of(member, root), was_measured)
    images = trained_on(config, root)
    networks = []
    for member in config.members():
        folder = RunFolder.of(member, root)
        with _own_random_numbers(device):
            network = prepared(_initialised(member, images), member.parsed, _image_shape(images), device)
        load_weights(folder.path, network)
        networks.append(network)
    return networks


def _check_trained(folder: RunFolder, was_measured: bool) -> None:
    if folder.read("training") is None:
        raise RbueError(f"{folder.path} holds no finished training; run `rbue train` with the same settings first.")
    if (was_measured or folder.has_results) and not folder.has_weights:
        raise NoWeights(
            f"the weights of {folder.path} are not kept in this folder: what was measured can be used, but no new "
            "samples can be drawn; train it again with another --runs for that."
        )
