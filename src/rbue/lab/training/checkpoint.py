"""Everything a bit-equal continuation needs, in one safetensors file that is replaced in one piece.

Names are those of the network itself, whatever wrapper it trains in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from rbue.call_sites import innermost
from rbue.errors import RbueError
from rbue.files import read_safetensors, safetensors_bytes, write_bytes
from rbue.lab.training.weights import apart, put_weights

_WEIGHTS, _MOMENTUM = "weights.", "momentum."
_LARGEST_PIECE = 64 << 20
"""Bytes of tensors that are copied together: as much memory has to be free on the GPU."""


def snapshot(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and momentum as they are now, in memory of their own that is not the GPU's."""
    network = innermost(network)
    tensors: dict[str, Tensor] = {_WEIGHTS + name: value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[_MOMENTUM + name] = momentum
    return _copied_to_cpu(tensors)


def _copied_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies, many in one piece of memory: a GPU is waited for once a piece."""
    copies: dict[str, Tensor] = {}
    for names in _pieces(tensors):
        values = [tensors[name].detach() for name in names]
        flat = _flatten_dense_tensors(values).to("cpu", copy=True)
        copies |= zip(names, _unflatten_dense_tensors(flat, values), strict=True)
    return {name: copies[name] for name in tensors}


def _pieces(tensors: dict[str, Tensor]) -> list[list[str]]:
    """Names of tensors of one type and device, with as many bytes together as a piece may have."""
    pieces: list[list[str]] = []
    last: dict[tuple[torch.device, torch.dtype], tuple[list[str], int]] = {}
    for name, value in tensors.items():
        kind = (value.device, value.dtype)
        names, size = last.get(kind, ([], 0))
        if not names or size + value.nbytes > _LARGEST_PIECE:
            names, size = [], 0
            pieces.append(names)
        names.append(name)
        last[kind] = names, size + value.nbytes
    return pieces


class CheckpointWriter:
    """Writes checkpoints while training goes on, one at a time; a write that failed is raised by the next call.

    Close it at the end.

    Attributes:
        seconds: how long the last write took.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds = 0.0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is on its way."""
        return self._writing is not None and not self._writing.done()

    def start(self, tensors: dict[str, Tensor], progress: dict) -> None:
        """Begin to write a snapshot and the progress it belongs to, once the one before it is written."""
        self.finish()
        self._writing = self._thread.submit(self._write, tensors, dict(progress))

    def _write(self, tensors: dict[str, Tensor], progress: dict) -> None:
        start = time.perf_counter()
        write_bytes(self.path, safetensors_bytes(apart(tensors), progress))
        self.seconds = time.perf_counter() - start

    def finish(self) -> None:
        """Return when everything is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Return when everything is written and nothing more will be."""
        try:
            self.finish()
        finally:
            self._thread.shutdown()


def load_checkpoint(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer, settings: Mapping[str, Any] | None = None
) -> dict:
    """Put a checkpoint back into a network and its optimiser; return its progress.

    Raises:
        RbueError: it cannot be read, is of another network, or notes other settings than these; it may note none.
    """
    network = innermost(network)
    tensors, progress = read_tensors(path)
    if settings is not None:
        _refuse_other_settings(path, progress.get("settings", {}), settings)
    weights = {name[len(_WEIGHTS) :]: value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
    put_weights(network, weights, path)
    for name, parameter in network.named_parameters():
        momentum = tensors.get(_MOMENTUM + name)
        if momentum is not None:
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
    return progress


def _refuse_other_settings(path: Path, noted: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    for name, value in noted.items():
        if value != settings.get(name):
            raise RbueError(
                f"{path} holds a training with {name} {value}, not {settings.get(name)}; remove it to start again, or "
                "give another file."
            )


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict]:
    """The tensors and the progress note of a file; nothing in it is ever executed."""
    try:
        tensors, note = read_safetensors(path)
        if not isinstance(note, dict) or not isinstance(note.get("epoch"), int):
            raise ValueError("it does not note an epoch")
        return tensors, note
    except (SafetensorError, OSError, ValueError) as error:
        raise RbueError(f"{path} is not a readable checkpoint ({error}); remove it to start again.") from error
