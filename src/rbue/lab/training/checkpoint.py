"""The files of a training: the weights of a trained network, and the checkpoint that it can be continued from.

Weights are one safetensors file, ``weights.safetensors``, or shards of at most a given size,
``weights-00001-of-00003.safetensors`` ... with ``weights.index.json``, which names the file of every tensor. A
checkpoint is one safetensors file with everything a bit-equal continuation needs, replaced in one piece. Names are
those of the network itself, whatever wrapper it trains in, and nothing in these files is ever executed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from rbue.call_sites import innermost
from rbue.errors import InvalidInput, RbueError, reason, shown
from rbue.files import read_json, read_safetensors, safetensors_bytes, write_bytes, write_json

ONE_FILE, INDEX, STATE = "weights.safetensors", "weights.index.json", "state.safetensors"
_SHARD = re.compile(r"weights-\d+-of-\d+\.safetensors")
_WEIGHTS, _MOMENTUM, _AVERAGE = "weights.", "momentum.", "average."
WAIT_FOR_ROOM = 600.0
"""Seconds that a full disk is waited for when hours of work would otherwise be lost."""
_LARGEST_PIECE = 64 << 20
"""Bytes of tensors that are copied together: as much memory has to be free on the GPU."""


def save_weights(folder: Path, network: nn.Module, shard_mib: int | None = None) -> None:
    """Write the weights into a folder; the index, or the only file, comes last and makes them complete.

    Those of another form go then: they may be of an earlier training, and the only file would be read.
    """
    if shard_mib is not None and shard_mib < 1:
        raise InvalidInput(f"a shard must be at least 1 MiB, not {shard_mib}.")
    tensors = _apart(innermost(network).state_dict())
    shards = _divide(tensors, None if shard_mib is None else shard_mib << 20)
    files = [f"weights-{place:05}-of-{len(shards):05}.safetensors" for place in range(1, len(shards) + 1)]
    files = [ONE_FILE] if len(shards) == 1 else files
    for file, shard in zip(files, shards, strict=True):
        write_bytes(folder / file, safetensors_bytes(shard), WAIT_FOR_ROOM)
    if len(shards) > 1:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        write_json(folder / INDEX, {"weight_map": places}, WAIT_FOR_ROOM)
        files.append(INDEX)
    for other in folder.iterdir():
        if other.name not in files and (other.name in (ONE_FILE, INDEX) or _SHARD.fullmatch(other.name)):
            other.unlink(missing_ok=True)


def load_weights(folder: Path, network: nn.Module) -> None:
    """Put the weights of a folder into a network."""
    tensors, path = read_weights(folder)
    _put_weights(network, tensors, path)


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The weights in a folder and the file that names them all, or an error that says how to have them back."""
    path = folder / ONE_FILE
    if path.exists():
        return _read(path), path
    path = folder / INDEX
    if not path.exists():
        raise RbueError(f"{folder} holds no weights ({ONE_FILE} or {INDEX}); {_way_to_weights(folder)}.")
    index = read_json(path)
    files = set(index["weight_map"].values()) if _is_index(index) else set()
    if not files:
        raise RbueError(f"{path} names no files beside it; {_way_to_weights(folder)}.")
    return {name: value for file in sorted(files) for name, value in _read(folder / file).items()}, path


def _is_index(content: Any) -> bool:
    """Whether it says which file holds each tensor, all of them in the folder that it lies in."""
    places = content.get("weight_map") if isinstance(content, dict) else None
    return isinstance(places, dict) and all(isinstance(one, str) and _SHARD.fullmatch(one) for one in places.values())


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, each with memory of its own, as safetensors needs them; tied weights share theirs."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return found


def can_be_saved(tensor: Tensor) -> bool:
    """Whether these files can hold a tensor of this type, and give it back."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    try:
        load(save({"example": torch.empty(0, dtype=tensor.dtype, device="cpu")}))
    except (KeyError, SafetensorError):
        return False
    return True


def _put_weights(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Give a network these weights, or say which of them belong to another one."""
    network = innermost(network)
    own = network.state_dict()
    wrong = sorted(name for name in own.keys() ^ weights.keys())
    wrong += sorted(name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape)
    if wrong:
        raise RbueError(
            f"{path} holds the weights of another network: {len(wrong)} names or shapes differ, first {wrong[0]!r}."
        )
    network.load_state_dict(weights)


def _divide(tensors: dict[str, Tensor], limit: int | None) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, value in tensors.items():
        if limit is not None and shards[-1] and filled + value.nbytes > limit:
            shards.append({})
            filled = 0
        shards[-1][name] = value
        filled += value.nbytes
    return shards


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return read_safetensors(path)[0]
    except (SafetensorError, OSError, ValueError) as error:
        raise RbueError(f"{path} cannot be read ({reason(error)}); {_way_to_weights(path.parent)}.") from error


def _way_to_weights(folder: Path) -> str:
    """How to have the weights of a trained network back: the last checkpoint holds them too."""
    if (folder / STATE).exists():
        return f"remove {folder / 'training.json'}, and `rbue train` with the same settings takes them from {STATE}"
    return f"remove {folder} and train it again"


def snapshot(
    network: nn.Module, optimiser: torch.optim.Optimizer, average: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Weights, momentum and the average of weights as they are now, in memory of their own that is not the GPU's."""
    network = innermost(network)
    tensors: dict[str, Tensor] = {_WEIGHTS + name: value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[_MOMENTUM + name] = momentum
    tensors |= {_AVERAGE + name: value for name, value in (average or {}).items()}
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

    def write_last(self, tensors: dict[str, Tensor], progress: dict) -> None:
        """Write the last one and close: here, so that Ctrl-C ends it, and with patience for a full disk."""
        self.close()
        self._write(tensors, progress, WAIT_FOR_ROOM)

    def _write(self, tensors: dict[str, Tensor], progress: dict, wait: float = 0.0) -> None:
        start = time.perf_counter()
        write_bytes(self.path, safetensors_bytes(_apart(tensors), progress), wait)
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
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    settings: Mapping[str, Any] | None = None,
    average: Mapping[str, Tensor] | None = None,
) -> dict:
    """Put a checkpoint back into a network, its optimiser and its average of weights; return its progress.

    Raises:
        RbueError: it cannot be read, is of another network, or notes other settings than these; it may note none.
    """
    network = innermost(network)
    tensors, progress = read_tensors(path)
    if settings is not None:
        _refuse_other_settings(path, progress.get("settings", {}), settings)
    weights = {name[len(_WEIGHTS) :]: value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
    _put_weights(network, weights, path)
    beside: dict[str, Tensor] = {_MOMENTUM + name: value for name, value in network.named_parameters()}
    beside |= {_AVERAGE + name: value for name, value in (average or {}).items()}
    wrong = sorted(name for name in beside.keys() & tensors.keys() if tensors[name].shape != beside[name].shape)
    if wrong:
        raise RbueError(f"{path} holds the training of another network: {wrong[0]!r} has another shape.")
    for name, parameter in network.named_parameters():
        momentum = tensors.get(_MOMENTUM + name)
        if momentum is not None:
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
    for name, value in (average or {}).items():
        if _AVERAGE + name in tensors:  # a training that is done needs none any more
            value.copy_(tensors[_AVERAGE + name])
    return progress


def _refuse_other_settings(path: Path, noted: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*noted, *settings]) if noted else ():  # the oldest checkpoints note none
        if noted.get(name) != settings.get(name):
            raise RbueError(
                f"{path} holds a training with {shown(name)} {shown(noted.get(name))}, not "
                f"{shown(settings.get(name))}; remove it to start again, or give another file."
            )


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict]:
    """The tensors and the progress note of a file; nothing in it is ever executed."""
    try:
        tensors, note = read_safetensors(path)
        if not isinstance(note, dict) or type(note.get("epoch")) is not int or note["epoch"] < 0:
            raise ValueError("it does not note an epoch")
        names = ("seconds", "loss", "accuracy", "side_by_side")
        numbers = all(isinstance(note.get(name, 0.0), int | float) for name in names)
        if not (numbers and isinstance(note.get("settings", {}), dict) and isinstance(note.get("engine", ""), str)):
            raise ValueError("it notes no progress of a training")
        return tensors, note
    except (SafetensorError, OSError, ValueError) as error:
        raise RbueError(f"{path} is not a readable checkpoint ({reason(error)}); remove it to start again.") from error
