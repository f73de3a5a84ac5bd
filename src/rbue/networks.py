"""The networks of a run: fresh ones to train, trained ones to use."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from rbue import data, models
from rbue.errors import RbueError
from rbue.methods import Method
from rbue.runs import RunConfig, RunFolder
from rbue.training.weights import load_weights


def fresh_network(config: RunConfig, images: data.ImageSet, device: torch.device) -> nn.Module:
    """An initialised network, prepared by the method, on its device; the same for the same seed."""
    torch.manual_seed(config.seed)
    channels = images.images.shape[3]
    network = models.create(config.model, classes=len(images.classes), channels=channels, width=config.width)
    return prepared(network, config.parsed, (channels, *images.images.shape[1:3]), device)


def prepared(network: nn.Module, method: Method, image: tuple[int, int, int], device: torch.device) -> nn.Module:
    """A network prepared by a method for images ``(C, H, W)``, then moved to its device.

    Preparing may pass an example through the network. On a GPU that pass would leave a workspace of 32 MiB behind,
    held for a stream on which nothing else happens.
    """
    network = method.prepare(network, torch.zeros(2, *image)).to(device)
    if device.type == "cuda":  # convolutions are fastest with the channels last, which is how the batches lie too
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def load_networks(config: RunConfig, root: Path, device: torch.device) -> list[nn.Module]:
    """The trained networks of a run."""
    images = data.load(config.data, "test")
    networks = []
    for member in config.members():
        folder = RunFolder.of(member, root)
        if folder.read("training") is None:
            raise RbueError(f"{folder.path} holds no finished training; train it first.")
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the caller's numbers are not ours
            network = fresh_network(member, images, device)
        load_weights(folder.path, network)
        networks.append(network)
    return networks
