"""The weights of a trained network: one safetensors file, or shards of at most a given size with an index.

``weights.safetensors``, or ``weights-00001-of-00003.safetensors`` ... and ``weights.index.json``, which names the file
of every tensor. Each file of weights carries its checksum. Nothing in these files is ever executed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from rbue.call_sites import innermost
from rbue.errors import InvalidInput, RbueError
from rbue.files import read_json, read_safetensors, safetensors_bytes, write_bytes, write_json

ONE_FILE, INDEX = "weights.safetensors", "weights.index.json"


def save_weights(folder: Path, network: nn.Module, shard_mib: int | None = None) -> None:
    """Write the weights into a folder; the index, or the only file, comes last and makes them complete."""
    if shard_mib is not None and shard_mib < 1:
        raise InvalidInput(f"a shard must be at least 1 MiB, not {shard_mib}.")
    tensors = apart(innermost(network).state_dict())
    shards = _divide(tensors, None if shard_mib is None else shard_mib << 20)
    if len(shards) == 1:
        write_bytes(folder / ONE_FILE, safetensors_bytes(tensors))
        return
    files = [f"weights-{place:05}-of-{len(shards):05}.safetensors" for place in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        write_bytes(folder / file, safetensors_bytes(shard))
    places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    write_json(folder / INDEX, {"weight_map": places})


def load_weights(folder: Path, network: nn.Module) -> None:
    """Put the weights of a folder into a network."""
    path = folder / ONE_FILE
    if path.exists():
        tensors = _read(path)
    else:
        path = folder / INDEX
        if not path.exists():
            raise RbueError(f"{folder} holds no weights ({ONE_FILE} or {INDEX}); remove it and train it again.")
        files = sorted(set(read_json(path)["weight_map"].values()))
        tensors = {name: value for file in files for name, value in _read(folder / file).items()}
    put_weights(network, tensors, path)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
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


def put_weights(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
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


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        return read_safetensors(path)[0]
    except (SafetensorError, OSError, ValueError) as error:
        raise RbueError(f"{path} cannot be read ({error}); remove {path.parent} and train it again.") from error
