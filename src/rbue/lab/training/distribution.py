"""Several processes, one network: what ``torchrun`` starts, each process training on its part of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn

from rbue.lab.training.step import Share


def processes() -> int:
    """How many processes ``torchrun`` has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device(device: torch.device) -> torch.device:
    """The device of this process: GPU ``k`` for the ``k``-th process of a machine."""
    if device.type != "cuda" or processes() == 1:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def joined(device: torch.device) -> Iterator[Share]:
    """Inside the block the processes know each other; yields this one's part of each batch."""
    if processes() == 1:
        yield Share()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Share(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def shared(network: nn.Module, share: Share, device: torch.device) -> nn.Module:
    """The network, with gradients averaged over all processes."""
    if share.processes == 1:
        return network
    return nn.parallel.DistributedDataParallel(network, [device.index] if device.type == "cuda" else None)
