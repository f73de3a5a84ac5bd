"""The inputs of a network in the forms that people have them, read as the arguments of its calls.

What is *one call*: a tensor or NumPy array; a dict, or another Mapping such as a tokenizer's ``BatchEncoding``, by
keyword; a tuple or list of arguments, for a network that takes several. Anything else that can be iterated is a loader
of such calls, and a ``Dataset`` becomes one.

Which tensors have rows: the first tensor of a call has the batch, ``(B, ...)``. Every other tensor with ``B`` rows has
one for each image, and is cut and repeated with the images. A tensor with one row or without dimensions (a table of
positions, a temperature) is passed on as it is, and so is whatever is no tensor. Any other number of rows is an error,
and so is a list with one number or text for each image, or a long tuple: it would not be cut with them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset

from rbue.call_sites.following import plain_class
from rbue.errors import InvalidInput
from rbue.torch_internals import is_exporting, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

_LABELS = ("label", "labels")
_SETTINGS = 4
"""A tuple of at most so many numbers may be a size or a padding; more, as many as images, are one for each."""
_DATASET_BATCH = 64
"""Samples do not depend on the size of a batch, so nobody has to choose the one in which a Dataset is read."""


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
        new = copy.copy(self)
        new.leaves = [function(x) if has else x for x, has in zip(self.leaves, self.has_rows, strict=True)]
        return new

    def with_first(self, x: Tensor) -> Batch:
        """The same call with other images."""
        new = copy.copy(self)
        place = self.has_rows.index(True)
        new.leaves = [*self.leaves[:place], x, *self.leaves[place + 1 :]]
        return new

    def repeat(self, times: int) -> Batch:
        """The images ``times`` times, one after the other, in memory of their own: a network may work in place."""
        new = self.map(lambda x: repeat_rows(x, times))
        new.leaves = [
            x.clone() if isinstance(x, Tensor) and not has_rows else x
            for x, has_rows in zip(new.leaves, self.has_rows, strict=True)
        ]
        return new

    def joined(self, other: Batch) -> Batch:
        """The images of both; their forms have to be equal."""
        new = copy.copy(self)
        both = zip(self.leaves, other.leaves, self.has_rows, strict=True)
        new.leaves = [torch.cat([one, two]) if has_rows else one for one, two, has_rows in both]
        return new

    def clone(self) -> Batch:
        """The same call with tensors of its own, which keep their strides."""
        new = copy.copy(self)
        new.leaves = [x.clone() if isinstance(x, Tensor) else x for x in self.leaves]
        return new

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
                wrong |= odd.reshape(len(x), -1).any(1)
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
            if x.numel() == 0 or (len(given) == 1 and x.dim() == 0):
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
                    "images first, or one row for all of them."
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


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """``times`` copies of ``x`` along its first dimension, in the same memory format."""
    if is_exporting():  # a graph has no use for memory to be filled
        return x.unsqueeze(0).expand(times, *x.shape).flatten(0, 1)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    memory_format = last if not x.is_contiguous() and x.is_contiguous(memory_format=last) else torch.contiguous_format
    shape = (times * x.shape[0], *x.shape[1:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format)
    out.unflatten(0, (times, x.shape[0])).copy_(x)
    return out


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


def one_call(x: Any, network: nn.Module, inputs: int = 1) -> Batch | None:
    """``x`` as the arguments of one call; None if it is a loader.

    A tuple or list holds arguments if it has as many entries as the example of the conversion, ``inputs``, or if the
    network cannot do with one, or if an entry, such as None or a flag, can be no batch. Else it holds batches.
    """
    if isinstance(x, Batch):
        return x
    _refuse_packed(x)
    if isinstance(x, (Tensor, np.ndarray)):
        return Batch((_as_tensors(x, "x", network),))
    if isinstance(x, Mapping):
        return _by_keyword(x, network)
    if isinstance(x, (tuple, list)) and x and isinstance(x[0], (Tensor, np.ndarray)):
        least, most = _positional(network)
        several = 1 < len(x) <= most
        flagged = any(one is None or isinstance(one, (str, Real)) for one in x)
        if len(x) == inputs > 1 or (several and (1 < least <= len(x) or flagged)):
            return _by_position(x, network)
        if isinstance(x, tuple) and several:
            raise InvalidInput(
                f"x is a tuple of {len(x)}, which may be {len(x)} batches or as many arguments of "
                f"{plain_class(network).__name__}; give a list of batches, or a dict of keyword arguments."
            )
        _refuse_ragged(x)
        _refuse_labels(x)
    return None


def batches_of(x: Any, network: nn.Module, inputs: int = 1) -> Iterator[Batch]:
    """The one call that ``x`` is, or those that a loader yields.

    Of a loader's tuples the first entry counts, or the first ``inputs`` ones, or those that the network cannot do
    without: labels come last.
    """
    single = one_call(x, network, inputs)
    if single is not None:
        yield single
        return
    if isinstance(x, Dataset):
        for batch in DataLoader(x, batch_size=_DATASET_BATCH):
            yield beside(_loaded(batch, network, inputs), network)
        return
    if isinstance(x, (str, bytes)) or not isinstance(x, Iterable):
        raise InvalidInput(
            f"x must be a tensor, an array, a dict of keyword arguments, a Dataset or a loader of these, not "
            f"{type(x).__name__}."
        )
    for batch in x:
        yield _loaded(batch, network, inputs)


def example_call(example: Any, network: nn.Module) -> Batch:
    """An example as the arguments of one call: a tuple or list is always that; of a loader, the first batch."""
    if isinstance(example, Batch):
        return example
    if isinstance(example, (tuple, list)):
        return _by_position(example, network)
    again = isinstance(example, Iterable) and not isinstance(example, (str, bytes, Iterator))
    if isinstance(example, Dataset) or again:  # an iterator would have lost its first batch
        for batch in batches_of(example, network):
            return batch
    raise InvalidInput(
        f"example must be a tensor, a tuple of arguments or a dict of keyword arguments, not {type(example).__name__}; "
        "give one batch as the network takes it, as tensors."
    )


def _loaded(batch: Any, network: nn.Module, inputs: int) -> Batch:
    """What a loader yields, without its labels."""
    if isinstance(batch, Batch):
        return batch
    _refuse_packed(batch)
    if isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
        _refuse_packed(first)
        if isinstance(first, (Tensor, np.ndarray)):
            return _by_position(batch[: max(inputs, _positional(network)[0])], network)
        if isinstance(first, (tuple, list)) and first and isinstance(first[0], (Tensor, np.ndarray)):
            return _by_position(first, network)  # ((one, other), label)
        batch = first
    if isinstance(batch, Mapping):
        return _by_keyword(batch, network)
    if isinstance(batch, (Tensor, np.ndarray)):
        return _by_position([batch], network)
    way = "; give a list of numbers as torch.tensor(x)" if isinstance(batch, Real) else ""
    raise InvalidInput(
        f"a loader must yield tensors, dicts of keyword arguments, or tuples whose first entry is one of these, not "
        f"{type(batch).__name__}{way}."
    )


def _refuse_packed(x: Any) -> None:
    """Refuse a tuple whose first entry is neither an argument nor a batch: the steps of all sequences."""
    if isinstance(x, PackedSequence):
        raise InvalidInput(
            "x is a PackedSequence, whose rows are steps, not images; give the padded tensor and one of the lengths, "
            "and pack them in the network."
        )


def _by_position(values: Sequence[Any], network: nn.Module) -> Batch:
    many = len(values) > 1
    return Batch([_as_tensors(one, f"x[{k}]" if many else "x", network) for k, one in enumerate(values)])


def _by_keyword(values: Mapping[str, Any], network: nn.Module) -> Batch:
    """Entries by keyword, without labels that the network can do without; an entry it does not take is an error."""
    taken = _parameters(network)
    kept = {}
    for name, value in values.items():
        known = taken.get(name)
        if name in _LABELS and (known is None or known.default is not inspect.Parameter.empty):
            continue
        if taken and known is None and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            whole = f", and if that is the dict itself, give {{{next(iter(taken))!r}: x}}" if len(taken) == 1 else ""
            raise InvalidInput(
                f"x has the entry {name!r}, which {plain_class(network).__name__} does not take; it takes "
                f"{', '.join(taken)}{whole}."
            )
        if isinstance(value, list) and value and isinstance(value[0], list):
            raise InvalidInput(
                f"x[{name!r}] is a list of lists; give a tensor; a tokenizer does with return_tensors='pt' and "
                "padding=True."
            )
        kept[name] = _as_tensors(value, f"x[{name!r}]", network)
    return Batch((), kept)


def _parameters(network: nn.Module) -> dict[str, inspect.Parameter]:
    """What the network's forward takes; nothing if nobody knows."""
    try:
        return dict(list(inspect.signature(plain_class(network).forward).parameters.items())[1:])
    except (TypeError, ValueError):
        return {}


def _positional(network: nn.Module) -> tuple[int, int]:
    """How many arguments the network needs by position, and how many it takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    there = [one for one in _parameters(network).values() if one.kind in kinds]
    return sum(one.default is inspect.Parameter.empty for one in there), len(there)


def _as_tensors(value: Any, name: str, network: nn.Module) -> Any:
    """``value`` with tensors in the place of arrays.

    An array has no device and is mostly ``float64``: it goes where the network is, and its fractions take the type of
    the network's.
    """
    return tree_map_only(np.ndarray, lambda array: _from_numpy(array, name, network), value)


def _from_numpy(array: np.ndarray, name: str, network: nn.Module) -> Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidInput(f"{name} is a masked array, whose mask no network would see; give {name}.filled(0), say.")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:  # torch takes no negative strides, and warns of memory that it may not write to
        x = torch.as_tensor(np.ascontiguousarray(array) if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"{name} is an array of {array.dtype}; give one of numbers, with images of one shape: np.stack(...)."
        ) from error
    floating = next((one.dtype for one in network.parameters() if one.is_floating_point()), x.dtype)
    device = next((one.device for one in network.parameters()), x.device)
    return x.to(device=device, dtype=floating if x.is_floating_point() else x.dtype)


def beside(batch: Batch, network: nn.Module) -> Batch:
    """A batch that nobody could move, as that of a Dataset, where the network is."""
    parameter = next(network.parameters(), None)
    if parameter is not None:
        batch.leaves = [x.to(parameter.device) if isinstance(x, Tensor) else x for x in batch.leaves]
    return batch


def _refuse_labels(x: Sequence[Any]) -> None:
    """Refuse a pair of inputs and labels, of which the labels would be a batch too."""
    if len(x) == 2 and isinstance(x[1], (Tensor, np.ndarray)) and x[1].ndim == 1 < x[0].ndim and len(x[0]) == len(x[1]):
        raise InvalidInput(f"x is a {type(x).__name__} of inputs and what looks like their labels; give x[0] alone.")


def labelled_batches(validation: Any, network: nn.Module, most: int) -> list[tuple[Batch, Tensor]]:
    """Batches of at most so many inputs, and their class numbers, where the network is."""
    if isinstance(validation, Dataset):
        validation = DataLoader(validation, batch_size=most)
    if isinstance(validation, (str, Tensor, np.ndarray)) or not isinstance(validation, Iterable):
        raise _not_labelled(validation)
    batches = []
    batch: Any
    for batch in [validation] if isinstance(validation, Mapping) or _is_pair(validation) else validation:
        if isinstance(batch, Mapping):
            name = next((name for name in ("labels", "label") if name in batch), None)
            if name is None:
                raise InvalidInput(f"validation holds a dict without 'labels', only {', '.join(map(repr, batch))}.")
            batch = batch, batch[name]
        if not _is_pair(batch):
            raise _not_labelled(batch)
        inputs = one_call(batch[0], network)
        if inputs is None:
            raise InvalidInput(f"the inputs of validation must be tensors, not {type(batch[0]).__name__}.")
        inputs = beside(inputs, network)
        inputs.check(network)
        labels = torch.as_tensor(batch[1], device=inputs.device)
        if labels.is_floating_point() or labels.is_complex():
            raise InvalidInput(f"the labels of validation must be class numbers, not {labels.dtype}; give integers.")
        if labels.dim() == 0 or len(inputs) != len(labels):
            raise InvalidInput(f"validation has {len(inputs)} images but {labels.shape[:1].numel()} labels.")
        parts = even_parts(len(inputs), most)  # all of a pair at once may be more than the memory holds
        batches += [(inputs[part], labels[part].long()) for part in parts]
    if not batches:
        raise InvalidInput("the loader gave no batch; there is nothing to tune with.")
    return batches


def _is_pair(batch: Any) -> bool:
    """Whether it is ``(x, y)``; a list of two batches is not."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    numbers = isinstance(batch[1], (tuple, list)) and all(isinstance(one, Integral) for one in batch[1])
    return numbers or isinstance(batch[1], (Tensor, np.ndarray))


def _not_labelled(found: Any) -> InvalidInput:
    return InvalidInput(
        "validation must be a pair (x, y) of inputs and class numbers, a dict with 'labels', or a loader of these, but "
        f"holds {type(found).__name__}."
    )


def _refuse_ragged(x: Sequence[Any]) -> None:
    """Refuse a list of images of several sizes, which is no list of batches."""
    arrays = [one for one in x if isinstance(one, np.ndarray) and one.dtype != object]
    shapes = sorted({one.shape if one.ndim == 1 else one.shape[1:] for one in arrays})
    if len(shapes) > 1:
        raise InvalidInput(
            f"x is a {type(x).__name__} of arrays of shapes {shapes[0]} and {shapes[1]}; pad them to one, and give "
            "np.stack(x)."
        )
