"""The inputs of a network in the forms that people have them, read as the arguments of its calls.

What is *one call*: a tensor or NumPy array; a dict, or another Mapping such as a tokenizer's ``BatchEncoding``, by
keyword; a tuple or list of arguments, for a network that takes several. Anything else that can be iterated is a loader
of such calls, and a ``Dataset`` becomes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, default_collate

from rbue.call_sites.batch import Batch, even_parts
from rbue.call_sites.following import plain_class
from rbue.errors import InvalidInput
from rbue.torch_internals import tree_map_only

_LABELS = ("label", "labels")
DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds"}
"""What encoder-decoders of transformers call the input of their decoder."""
_BY_ITSELF = (Batch, Tensor, np.ndarray, Mapping)
_DATASET_BATCH = 64
"""Samples do not depend on the size of a batch, so nobody has to choose the one in which a Dataset is read."""


def one_call(x: Any, network: nn.Module, inputs: int = 1) -> Batch | None:
    """``x`` as the arguments of one call; None if it is a loader.

    A tuple or list holds arguments if it has as many entries as the example of the conversion, ``inputs``, or if the
    network cannot do with one, or if an entry, such as None or a flag, can be no batch. Else it holds batches.
    """
    _refuse_packed(x)
    x = _tables_as_arrays(x)
    if isinstance(x, _BY_ITSELF):
        return _by_itself(x, network)
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
        _refuse_labels(x)
        _refuse_named(x, "x", network)
        _refuse_ragged(x)
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
        for batch in DataLoader(x, batch_size=_DATASET_BATCH, collate_fn=_collated):
            yield beside(_loaded(batch, network, inputs), network)
        return
    _refuse_keyed(x)
    if isinstance(x, (str, bytes)) or not isinstance(x, Iterable):
        raise InvalidInput(
            f"x must be a tensor, an array, a dict of keyword arguments, a Dataset or a loader of these, not "
            f"{type(x).__name__}{_images_need(x)}."
        )
    for batch in x:
        yield _loaded(batch, network, inputs)


def _collated(items: list[Any]) -> Any:
    """A batch of a Dataset's items, as a DataLoader makes it."""
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:  # None as a label, images of Pillow, tensors of several sizes
        raise InvalidInput(
            f"the Dataset's items make no batch ({error}); give a DataLoader with a collate_fn that makes one."
        ) from error


def example_call(example: Any, network: nn.Module) -> Batch:
    """An example as the arguments of one call: a tuple or list is always that; of a loader, the first batch."""
    if isinstance(example, Batch):
        return example
    example = _tables_as_arrays(example)
    if _is_keyed(example):
        return Batch((example,))
    if _holds_numbers(example):
        raise InvalidInput("example is a list of numbers; give one batch of them, torch.tensor(example).")
    if isinstance(example, (tuple, list)):
        call = _by_position(example, network)
        if not any(isinstance(x, Tensor) for x in call.leaves):
            kinds = ", ".join(sorted({type(x).__name__ for x in call.leaves})) or "nothing"
            raise InvalidInput(
                f"example is a {type(example).__name__} of {kinds}; give one batch as the network takes it, as a tensor"
                f"{_images_need(next(iter(call.leaves), None))}."
            )
        most = _most_positional(network)
        if most is not None and len(example) > most:
            _refuse_named(example, "example", network, "; if its first entry is the input, give example[0]")
            raise InvalidInput(
                f"example is a {type(example).__name__} of {len(example)}, but {plain_class(network).__name__} takes "
                f"{most} argument{'s' * (most != 1)}; give one batch, such as torch.stack(images)."
            )
        return call
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
    _refuse_packed(batch)
    _refuse_keyed(batch)
    batch = _tables_as_arrays(batch)
    if isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
        _refuse_packed(first)
        if isinstance(first, (Tensor, np.ndarray)):
            return _by_position(batch[: max(inputs, _positional(network)[0])], network)
        if isinstance(first, (tuple, list)) and first and isinstance(first[0], (Tensor, np.ndarray)):
            return _by_position(first, network)  # ((one, other), label)
        batch = first
    if isinstance(batch, _BY_ITSELF):
        return _by_itself(batch, network)
    way = "; give a list of numbers as torch.tensor(x)" if isinstance(batch, Real) else _images_need(batch)
    raise InvalidInput(
        f"a loader must yield tensors, dicts of keyword arguments, or tuples whose first entry is one of these, not "
        f"{type(batch).__name__}{way}."
    )


def _images_need(x: Any) -> str:
    """What to do with images that are still files or those of Pillow."""
    images = isinstance(x, str) or type(x).__module__.startswith("PIL.")
    return "; read images as in training: torch.stack([transform(image) for image in images])" if images else ""


def _refuse_packed(x: Any) -> None:
    """Refuse a tuple whose first entry is neither an argument nor a batch: the steps of all sequences."""
    if isinstance(x, PackedSequence):
        raise InvalidInput(
            "x is a PackedSequence, whose rows are steps, not images; give the padded tensor and one of the lengths, "
            "and pack them in the network."
        )


def _tables_as_arrays(x: Any) -> Any:
    """``x`` with arrays in the place of whatever numpy can read, such as a DataFrame, which iterates over names."""
    return tree_map_only(_is_table, np.asarray, x, is_leaf=_holds_numbers)


def _holds_numbers(x: Any) -> bool:
    """Whether it is a list of numbers, or of such lists; they may be millions, and are not looked at one by one."""
    return isinstance(x, list) and x != [] and (set(map(type, x)) <= {int, float} or all(map(_holds_numbers, x)))


def _is_table(x: Any) -> bool:
    return hasattr(type(x), "__array__") and not isinstance(x, (Tensor, np.ndarray, np.generic))


def _is_keyed(x: Any) -> bool:
    """Whether it holds tensors by name and is no Mapping, as a graph of torch_geometric does."""
    return hasattr(type(x), "keys") and not isinstance(x, Mapping) and not _is_table(x)


def _refuse_keyed(x: Any) -> None:
    if _is_keyed(x):
        raise InvalidInput(
            f"x is a {type(x).__name__}, which does not say which of its rows are images; give its tensors as a dict "
            "of keyword arguments, or, as for a graph, average plain calls: torch.stack([net(x) for _ in range(100)])."
        )


def _by_itself(x: Any, network: nn.Module) -> Batch:
    """What is one call without any doubt."""
    if isinstance(x, Batch):
        return x
    return _by_keyword(x, network) if isinstance(x, Mapping) else _by_position([x], network)


def _by_position(values: Sequence[Any], network: nn.Module) -> Batch:
    many = len(values) > 1
    return Batch([_as_tensors(one, f"x[{k}]" if many else "x", network) for k, one in enumerate(values)])


def _by_keyword(values: Mapping[str, Any], network: nn.Module) -> Batch:
    """Entries by keyword, without labels that the network can do without; an entry it does not take is an error.

    An encoder-decoder of transformers reads its labels as the decoder's input, one place later; without them it would
    read the encoder's.
    """
    taken = _parameters(network)
    kept = {}
    for name, value in values.items():
        known = taken.get(name)
        if name in _LABELS and (known is None or known.default is not inspect.Parameter.empty):
            continue
        if taken and known is None and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            one = next(iter(taken))
            whole = f", and if that is the dict itself, give {{{one!r}: x}}" if len(taken) == 1 else ""
            raise InvalidInput(
                f"x has the entry {name!r}, which {plain_class(network).__name__} does not take; it takes "
                f"{', '.join(taken)}{whole}; of a loader's, keep what it takes: ({{{one!r}: batch[...]}} for batch in "
                "loader)."
            )
        if isinstance(value, list) and value and isinstance(value[0], list):
            raise InvalidInput(
                f"x[{name!r}] is a list of lists; give a tensor; a tokenizer does with return_tensors='pt' and "
                "padding=True."
            )
        kept[name] = _as_tensors(value, f"x[{name!r}]", network)
    later, labels = getattr(network, "prepare_decoder_input_ids_from_labels", None), values.get("labels")
    given = "labels" in kept or any(kept.get(name) is not None for name in DECODER_INPUTS)
    if callable(later) and labels is not None and not given:
        kept["decoder_input_ids"] = later(labels=torch.as_tensor(labels))
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


def _most_positional(network: nn.Module) -> int | None:
    """How many arguments the network takes by position; None if any number, or nobody knows."""
    there = _parameters(network).values()
    return _positional(network)[1] if there and all(one.kind is not one.VAR_POSITIONAL for one in there) else None


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


def _refuse_named(x: Sequence[Any], name: str, network: nn.Module, way: str = ", and list(x) if not") -> None:
    """Refuse a named tuple, which a network takes as one argument more often than its entries are batches."""
    if hasattr(x, "_fields"):
        one = next(iter(_parameters(network)), "x")
        raise InvalidInput(
            f"{name} is a {type(x).__name__}, a named tuple; give {{{one!r}: {name}}} if that is one argument of "
            f"{plain_class(network).__name__}{way}."
        )


def labelled_batches(validation: Any, network: nn.Module, most: int) -> list[tuple[Batch, Tensor]]:
    """Batches of at most so many inputs, and their class numbers, where the network is."""
    if isinstance(validation, Dataset):
        validation = DataLoader(validation, batch_size=most, collate_fn=_collated)
    validation = _tables_as_arrays(validation)
    if isinstance(validation, (str, Tensor, np.ndarray)) or not isinstance(validation, Iterable):
        raise _not_labelled(validation)
    batches = []
    batch: Any
    most_inputs = _most_positional(network)
    for batch in [validation] if isinstance(validation, Mapping) or _is_pair(validation) else validation:
        batch = _tables_as_arrays(batch)
        if isinstance(batch, Mapping):
            name = next((name for name in ("labels", "label") if name in batch), None)
            if name is None:
                raise InvalidInput(f"validation holds a dict without 'labels', only {', '.join(map(repr, batch))}.")
            batch = batch, batch[name]
        if not _is_pair(batch):
            raise _not_labelled(batch)
        several = len(batch[0]) if isinstance(batch[0], (tuple, list)) else 1  # ((one, other), label)
        inputs = one_call(batch[0], network, several) if several <= (most_inputs or several) else None
        if inputs is None:
            way = "; give torch.stack(x)" if several > 1 else ""
            raise InvalidInput(f"the inputs of validation must be tensors, not {type(batch[0]).__name__}{way}.")
        inputs = beside(inputs, network)
        inputs.check(network)
        labels = _labels(batch[1]).to(inputs.device)
        if labels.is_floating_point() or labels.is_complex():
            raise InvalidInput(f"the labels of validation must be class numbers, not {labels.dtype}; give integers.")
        if labels.dim() == 0 or len(inputs) != len(labels):
            raise InvalidInput(f"validation has {len(inputs)} images but {labels.shape[:1].numel()} labels.")
        parts = even_parts(len(inputs), most)  # all of a pair at once may be more than the memory holds
        batches += [(inputs[part], labels[part].long()) for part in parts]
    if not batches:
        raise InvalidInput("the loader gave no batch; there is nothing to tune with.")
    return batches


def _labels(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given)
    except TypeError as error:
        raise InvalidInput(
            f"the labels of validation must be class numbers, not {given.dtype}; np.unique(y, return_inverse=True) "
            "numbers texts."
        ) from error


def _is_pair(batch: Any) -> bool:
    """Whether it is ``(x, y)``; a list of two batches is not."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    numbers = isinstance(batch[1], (tuple, list)) and all(isinstance(one, Integral) for one in batch[1])
    return numbers or isinstance(batch[1], (Tensor, np.ndarray))


def _not_labelled(found: Any) -> InvalidInput:
    way = f" of {len(found)}; give several inputs as ((a, b), y)" if isinstance(found, (tuple, list)) else ""
    return InvalidInput(
        "validation must be a pair (x, y) of inputs and class numbers, a dict with 'labels', or a loader of these, but "
        f"holds {type(found).__name__}{way}."
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
