"""The arguments of one call of a network, cut and repeated by image.

Which tensors have rows: the first tensor of a call has the batch, ``(B, ...)``. Every other tensor with ``B`` rows has
one for each image, and is cut and repeated with the images. A tensor with one row or without dimensions (a table of
positions, a temperature) is passed on as it is, and so is whatever is no tensor; but an object that holds tensors, as a
cache of keys and values does, is copied for each pass, which may change it. Any other number of rows is an error. So is
what has a number, a text or a row for each image and would not be cut with them: a list, a long tuple, an object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.kernels.layout import repeat_rows
from rbue.torch_internals import tree_flatten, tree_leaves, tree_unflatten

_SETTINGS = 4
"""A tuple of at most so many numbers may be a size or a padding; more, as many as images, are one for each."""


class Batch:
    """The arguments of one call of a network, of which some tensors have a row for each image.

    It is cut and repeated like a tensor: ``batch[2:5]``, ``batch[index]``, ``len(batch)``.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    def __init__(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        named = [(f"x[{k}]" if len(args) > 1 else "x", value) for k, value in enumerate(args)]
        named += [(f"x[{name!r}]", value) for name, value in (kwargs or {}).items()]
        self.names = [name for name, value in named for _ in tree_leaves(value)]
        self._lists = [found for name, value in named for found in _plain_lists(name, value)]
        self.leaves, self._spec = tree_flatten((tuple(args), dict(kwargs or {})))
        self.positional, self.words = len(args), tuple(kwargs or {})
        first = next((x for x in self.leaves if isinstance(x, Tensor) and x.dim()), None)
        self.has_rows = [
            first is not None and isinstance(x, Tensor) and x.dim() > 0 and x.size(0) == first.size(0)  # nested, too
            for x in self.leaves
        ]
        self.held = [[] if isinstance(x, Tensor) else _held(x) for x in self.leaves]

    @property
    def rows(self) -> list[Tensor]:
        """The tensors that have rows."""
        return [x for x, has_rows in zip(self.leaves, self.has_rows, strict=True) if has_rows]

    @property
    def first(self) -> Tensor:
        """The tensor whose rows are the images."""
        return self.rows[0]

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.first.device

    @property
    def is_cuda(self) -> bool:
        """Whether they are on a GPU."""
        return self.first.is_cuda

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(x.nbytes for x in self.rows)

    @property
    def form(self) -> tuple:
        """What two batches have in common that take the same way through a network, but for their numbers of rows."""
        described: list[Any] = [self.positional, self.words]
        for x, has_rows in zip(self.leaves, self.has_rows, strict=True):
            if isinstance(x, Tensor):
                described.append((tuple(x.shape[has_rows:]), x.dtype, x.device, has_rows))
            else:
                described.append(x if isinstance(x, (bool, int, float, str, type(None))) else type(x))
        return tuple(described)

    def __len__(self) -> int:
        return self.first.size(0)

    def __getitem__(self, where: slice | Tensor) -> Batch:
        return self.map(lambda x: x[where])

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same call with each tensor that has rows changed; what has none is shared with this batch."""
        return self._with(function(x) if has else x for x, has in zip(self.leaves, self.has_rows, strict=True))

    def _with(self, leaves: Iterable[Any]) -> Batch:
        """The same call with other values in the places of these."""
        new = copy.copy(self)
        new.leaves = list(leaves)
        return new

    def with_first(self, x: Tensor) -> Batch:
        """The same call with other images."""
        place = self.has_rows.index(True)
        return self._with([*self.leaves[:place], x, *self.leaves[place + 1 :]])

    def repeat(self, times: int) -> Batch:
        """The images ``times`` times, one after the other, in memory of their own: a network may work in place."""
        given = enumerate(zip(self.leaves, self.has_rows, strict=True))
        return self._with(repeat_rows(x, times) if has_rows else self._copied(k) for k, (x, has_rows) in given)

    def joined(self, other: Batch) -> Batch:
        """The images of both; their forms have to be equal."""
        both = zip(self.leaves, other.leaves, self.has_rows, strict=True)
        return self._with(torch.cat([one, two]) if has_rows else one for one, two, has_rows in both)

    def clone(self) -> Batch:
        """The same call with tensors of its own, which keep their strides."""
        return self._with(map(self._copied, range(len(self.leaves))))

    def _copied(self, k: int) -> Any:
        x = self.leaves[k]
        if isinstance(x, Tensor):
            return x.clone()
        if self.held[k]:
            own = {id(one): one.detach().clone() for one in self.held[k]}  # those with a graph cannot be copied deeply
            with suppress(Exception):  # what cannot be copied, such as an open file, may be no more than read
                return copy.deepcopy(x, own)
        return x

    @property
    def arguments(self) -> tuple[tuple, dict[str, Any]]:
        """The positional and the keyword arguments."""
        args, kwargs = tree_unflatten(self.leaves, self._spec)
        return args, kwargs

    def call(self, function: Callable[..., Any]) -> Any:
        """Call with these arguments."""
        args, kwargs = self.arguments
        return function(*args, **kwargs)

    def not_finite(self) -> Tensor:
        """Which images hold NaN, or infinity where there is one input alone: a mask may be ``-inf``. ``(B,)``."""
        wrong = torch.zeros(len(self), dtype=torch.bool, device=self.device)
        for x in self.rows:
            if x.is_floating_point() or x.is_complex():
                odd = ~torch.isfinite(x) if len(self.rows) == 1 else torch.isnan(x)
                wrong |= odd.reshape(len(x), x.shape[1:].numel()).any(1)
        return wrong

    def check(self, network: nn.Module) -> None:
        """Refuse a batch that is not dense, empty, of mixed sizes, or elsewhere than the network."""
        parameter = next(network.parameters(), None)
        given = [(name, x) for name, x in zip(self.names, self.leaves, strict=True) if isinstance(x, Tensor)]
        if not given:
            raise InvalidInput(
                f"x holds no tensor, only {', '.join(sorted(set(self.names))) or 'nothing'}; give tensors with a batch "
                "dimension (a tokenizer does with return_tensors='pt' and padding=True)."
            )
        for name, x in given:
            if x.is_nested or x.layout is not torch.strided:
                kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
                raise InvalidInput(
                    f"{name} must be a dense tensor, not a {kind} one; give x.to_dense(), or pad its images."
                )
            # Of a dict that is one argument some may be empty, as where a table has no categories.
            empty = x.numel() == 0 and (len(x) == 0 or not any(y.numel() for other, y in given if other == name))
            if empty or (len(given) == 1 and x.dim() == 0):
                what = "one image" if x.dim() == 0 or len(x) == 0 else "one value an image"
                raise InvalidInput(f"{name} must hold at least {what}, but its shape is {tuple(x.shape)}.")
            if parameter is not None and parameter.device != x.device and x.dim():  # one number may come from a CPU
                raise InvalidInput(
                    f"{name} is on {x.device} but the network is on {parameter.device}; move one to the other."
                )
        if not any(self.has_rows):
            raise InvalidInput("x holds only tensors without dimensions; give one with the batch, (B, ...).")
        images = given[[x.dim() > 0 for _, x in given].index(True)][0]
        for name, x in given:
            if x.dim() and x.shape[0] not in (1, len(self)):
                raise InvalidInput(
                    f"{images} has {len(self)} rows and {name} has {x.shape[0]}; give as many rows as images, the "
                    "images first, or one row for all of them; of a graph, average plain calls of the network."
                )
        for name, x, held in zip(self.names, self.leaves, self.held, strict=True):
            if len(self) > 1 and any(one.dim() > 1 and len(one) == len(self) for one in held):
                raise InvalidInput(
                    f"{name} is a {type(x).__name__} with tensors of {len(self)} rows, as many as images, and only "
                    "tensors are cut with these; give its tensors, or one image at a time."
                )
        for name, values in self._lists:
            texts = all(isinstance(one, str) for one in values)
            many = len(values) > _SETTINGS
            if len(values) == len(self) > 1 and (many or texts or isinstance(values, list)):
                settings = "" if many else ", or a tuple if it is the same for every image"
                raise InvalidInput(
                    f"{name} is a {type(values).__name__} of {len(values)}, as many as images, and only tensors are "
                    f"cut with these; give a tensor{', such as token numbers' if texts else settings}."
                )


def _plain_lists(name: str, value: Any) -> Iterator[tuple[str, list | tuple]]:
    """The lists and tuples of numbers or texts in an argument, with their names."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _plain_lists(f"{name}[{key!r}]", one)
    elif isinstance(value, (list, tuple)) and all(isinstance(one, (Real, str)) for one in value):
        yield name, value


def _held(value: Any, depth: int = 5, seen: set[int] | None = None) -> list[Tensor]:
    """The tensors that an object holds."""
    if isinstance(value, Tensor):
        return [value]
    seen = set() if seen is None else seen
    if depth == 0 or callable(value) or id(value) in seen:  # a module is no input
        return []
    seen.add(id(value))
    if isinstance(value, Mapping):
        inside: Iterable[Any] = value.values()
    else:
        inside = value if isinstance(value, (list, tuple, set)) else getattr(value, "__dict__", {}).values()
    return [tensor for one in inside for tensor in _held(one, depth - 1, seen)]


def even_parts(count: int, most: int) -> Iterator[slice]:
    """As few parts of ``count`` rows as ``most`` in each allow, of almost one size: none is left with a single row.

    >>> [(part.start, part.stop) for part in even_parts(9, 4)]
    [(0, 3), (3, 6), (6, 9)]
    """
    parts = max(1, -(-count // most))
    size, larger = divmod(count, parts)  # the first ones have one more, as in torch.tensor_split
    for k in range(parts):
        yield slice(k * size + min(k, larger), (k + 1) * size + min(k + 1, larger))


def as_batch(x: Tensor | Batch) -> Batch:
    """A tensor as the only argument of a call."""
    return x if isinstance(x, Batch) else Batch((x,))
