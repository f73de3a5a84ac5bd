"""Keep a converted network in a file, and make one from it again that predicts the same, bit for bit.

The file is safetensors: the state dict, BatchNorm statistics included, and one JSON value with what a state dict
forgets: what is random and where, the temperature, the classes. Nothing in it is ever executed; the network's code is
the user's, and :func:`load` is given a network of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rbue import activations, random_stream
from rbue._version import __version__
from rbue.activations import Randomness
from rbue.call_sites import Site, SiteTable, conversion_of, innermost, install
from rbue.call_sites.draws import device_of
from rbue.call_sites.following import converted_part
from rbue.call_sites.tracing import find_sites
from rbue.errors import ConversionError, InvalidInput, RbueError, one_name_each, reason, shown, warn
from rbue.files import read_safetensors, safetensors_bytes, write_bytes
from rbue.torch_internals import tree_leaves, tree_map_only

KIND, FORMAT = "converted network", 1
_ROWS = 2
"""Images of an example that are enough to find sites with."""
_LARGEST = 1 << 28
"""Numbers in an example: a file is not believed beyond that, for zeros of its shape are made to find sites with."""
_NAMED = 3
"""Names in an error; the others are counted."""


def save(model: nn.Module, file: str | Path, classes: Sequence[str] | None = None) -> None:
    """Write a converted network into a safetensors file: its weights, and what :func:`rbue.convert` made of it.

    Parameters and buffers keep their types; tensors that share memory are written once. With them are kept: the
    activation and its settings, the sites found and those that are random, the temperature, the names of the classes
    and the version of the random stream. The file appears whole or not at all.

    To find the sites again, :func:`load` needs an input. Shapes and types of the example that :func:`rbue.convert` had
    are kept for that, not its content, and one pass makes sure here that they suffice.

    Args:
        model: the network; a ``torch.compile``, ``DataParallel`` or DDP wrapper is left out.
        file: its name; ``.safetensors`` is the usual ending.
        classes: names of the classes, which :func:`rbue.conversion` shows. Default: those of the file it came from.

    >>> import tempfile
    >>> from rbue import DropReLU, convert
    >>> def build():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> net = convert(build(), DropReLU(q=0.9), example=torch.zeros(2, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(net, f"{folder}/net.safetensors", classes=["cat", "dog", "bird"])
    ...     load(f"{folder}/net.safetensors", build())
    Sequential(
      rbue: DropReLU(q=0.9) at 1 of 1 ReLU call sites; 3 classes
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    network = innermost(model)
    conversion = conversion_of(network)
    _refuse_converted_parts(network)
    tensors, same = _tensors_to_write(network)
    sites, chosen = conversion.sites, conversion.chosen
    names = class_names(conversion.classes if classes is None else classes)
    returned: list[Any] = []
    with network.register_forward_hook(lambda *given: returned.append(given[-1])):
        example = _telling_example(network, conversion.example, conversion.activation, sites) if sites else None
    scores = getattr(returned[-1], "logits", returned[-1]) if returned else None
    if names is not None and isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] > 1:
        one_name_each(names, scores.shape[1])  # one number may mean two classes, and maps have theirs at other places
    note = {
        "kind": KIND,
        "format": FORMAT,
        "rbue": __version__,
        "stream": random_stream.VERSION,
        "network": type(network).__name__,
        "activation": dict(zip(("class", "settings"), _described(conversion.activation), strict=True)),
        "sites": [[site.path, site.call, site.form, list(site.shape)] for site in sites],
        "random": None if chosen is None else [site.index for site in sites if (site.path, site.call) in chosen],
        "plain": conversion.others,
        "inputs": conversion.inputs,
        "example": example,
        "temperature": conversion.temperature,
        "temperature_augmented": conversion.temperature_augmented,
        "classes": names,
        "same": same,
    }
    write_bytes(Path(file), safetensors_bytes(tensors, note))


def load(file: str | Path, model: nn.Module, activation: Randomness | None = None, example: Any = None) -> nn.Module:
    """Give a network the weights in a file of :func:`save`, convert it as that one was, and return it.

    :func:`rbue.predict` then gives what it gave there, on the same kind of machine bit for bit. The weights stay on the
    device of ``model`` and have the types they were saved with. The sites are found again and have to be the same.

    Args:
        file: what :func:`save` wrote.
        model: a network of the same code, plain or converted; it is changed in place.
        activation: needed for an activation of your own class alone: an object equal to the one that was saved.
        example: an input to find the sites with. Needed where zeros of the shape of the first example do not lead
            through the same sites, as where code looks at numbers.

    Raises:
        InvalidInput: the file is none of :func:`save`, damaged, newer than this version, or of another network.
        ConversionError: the network has other call sites than the saved one.

    After an error the network is as it was.
    """
    network = innermost(model)
    file = Path(file)
    _refuse_converted_parts(network)
    tensors, note = _read(file)
    try:
        sites = SiteTable(_site(number, *entry) for number, entry in enumerate(note["sites"]))
        random, same = note["random"], note["same"]
        name, settings = str(note["activation"]["class"]), dict(note["activation"]["settings"])
        tensors |= {name: tensors[first] for name, first in same.items()}
        temperature, classes, others = float(note["temperature"]), class_names(note["classes"]), dict(note["plain"])
        if not 0 < temperature < math.inf:
            raise ValueError(f"a temperature of {temperature}")
        chosen = None if random is None else frozenset((sites[k].path, sites[k].call) for k in random)
        kept = None if note["example"] is None else _from_json(note["example"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:  # the last is torch's
        raise InvalidInput(f"{file} has a damaged description ({reason(error)}); save the network again.") from error
    activation = _activation(file, name, settings, activation)
    if sites and example is None and kept is None:
        raise InvalidInput(f"{file} does not say what input leads through its sites; give load(..., example=x).")
    with _weights_back_on_error(network):
        _load_tensors(file, network, tensors)
        if sites:
            example = _filled(kept, device_of(network)) if example is None else example
            found = _sites_again(file, network, example, activation)
            _refuse_other_sites(file, sites, found, activation.noun)
    conversion = install(network, activation, sites, chosen)
    conversion.others, conversion.inputs, conversion.example = others, note.get("inputs", 1), kept
    conversion.temperature, conversion.classes = temperature, None if classes is None else tuple(classes)
    conversion.temperature_augmented = bool(note.get("temperature_augmented"))
    if note.get("stream") != random_stream.VERSION:
        warn(
            f"{file} was saved with version {note.get('stream')} of the random stream and this is version "
            f"{random_stream.VERSION}: samples are others than they were there, of the same distribution."
        )
    return model


def _refuse_converted_parts(network: nn.Module) -> None:
    part = converted_part(network)
    if part is not None:
        raise ConversionError(
            f"{type(network).__name__} has a converted network inside at {part!r}, and a file holds one conversion; "
            "revert that one, or save and load it by itself."
        )


def class_names(classes: Sequence[str] | None) -> list[str] | None:
    """The names of classes as a list, if there are any."""
    if classes is None:
        return None
    listed = isinstance(classes, Iterable) and not isinstance(classes, str)
    if not listed or not all(isinstance(name, str) for name in classes):
        raise InvalidInput(f"classes must be a list of names, not {classes!r}.")
    return list(classes)


# ---- weights


def _tensors_to_write(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict, each tensor once and in memory of its own; and which further names have which of them."""
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    memory: set[int] = set()
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor) or value.is_meta or is_lazy(value):
            kind = "has no content yet" if isinstance(value, Tensor) else f"is a {type(value).__name__}"
            raise InvalidInput(f"{name} in the state dict {kind}; rbue.save keeps tensors with content alone.")
        key = value.data_ptr(), value.dtype, tuple(value.shape), value.stride(), value.device
        if value.numel() and key in first:
            same[name] = first[key]
            continue
        first[key] = name
        # Views of one memory that are not the same tensor, such as halves of a matrix, are written apart.
        place = value.untyped_storage().data_ptr()
        tensors[name] = value.clone(memory_format=torch.contiguous_format) if place in memory else value.contiguous()
        memory.add(place)
    return tensors, same


@contextmanager
def _weights_back_on_error(network: nn.Module) -> Iterator[None]:
    """Undo what is done to the tensors of a network if it is the wrong one; lazy ones stay as they became.

    The copies are in the memory of the CPU, where the file's are: a GPU may have no room for the weights twice.
    """
    own = [one for one in network.state_dict(keep_vars=True).values() if isinstance(one, Tensor) and not is_lazy(one)]
    before = [(one, one.data, one.detach().to("cpu", copy=True)) for one in own if not one.is_meta]
    try:
        yield
    except BaseException:
        for one, memory, value in before:
            with suppress(RuntimeError):  # memory that cannot be written to was not
                memory.copy_(value)
            one.data = memory
        raise


def _load_tensors(file: Path, network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into a network that has exactly these, and make it theirs in type."""
    own = {name: value for name, value in network.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    lacks = [name for name in own if name not in tensors]
    unknown = sorted(name for name in tensors if name not in own)
    both = [name for name in own if name in tensors and not is_lazy(own[name])]
    shapes = [
        f"{name} ({_by(tensors[name])}, here {_by(own[name])})"
        for name in both
        if tensors[name].shape != own[name].shape
    ]
    wrong = [
        f"{what} {_few(names)}"
        for what, names in (("it lacks", lacks), ("it also has", unknown), ("of another shape is", shapes))
        if names
    ]
    if wrong:
        raise InvalidInput(
            f"{file} is of another network than this {type(network).__name__}: {'; '.join(wrong)}; build the network "
            "as it was when it was saved."
        )
    if any(own[name].is_meta for name in both):
        raise InvalidInput("the network is on the meta device, where it has no memory; build it on a CPU or GPU.")
    for name in both:
        if own[name].dtype != tensors[name].dtype:
            own[name].data = own[name].data.to(tensors[name].dtype)  # in place: tied parameters and optimisers hold it
    network.load_state_dict(dict(tensors))
    places = Counter(own[name].data_ptr() for name in both if own[name].numel())
    for name in both:  # one memory cannot hold two tensors: the last one would win without a word
        shared = places[own[name].data_ptr()] > 1
        if shared and not torch.equal(own[name].detach().cpu().nan_to_num(), tensors[name].nan_to_num()):
            raise InvalidInput(
                f"{file} is of another network than this {type(network).__name__}: here {name} shares its memory with "
                "another tensor, and there they are different; build the network as it was when it was saved."
            )


def _by(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(map(shown, names[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a file of ours."""
    from safetensors import SafetensorError

    if not file.is_file():
        raise InvalidInput(f"there is no file {file}.")
    try:
        tensors, note = read_safetensors(file)
    except SafetensorError as error:
        raise InvalidInput(
            f"{file} is cut off or no safetensors file ({reason(error)}); give one that rbue.save wrote; weights "
            "of torch.save go into the network by load_state_dict, which rbue.convert then makes random."
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{file} cannot be read: {error}; save the network again.") from error
    except OSError as error:
        raise RbueError(f"{file} cannot be read ({error.strerror}).") from error
    if not isinstance(note, dict) or note.get("kind") != KIND:
        raise InvalidInput(
            f"{file} holds tensors, but no conversion: rbue.save did not write it; for a plain state dict use "
            "model.load_state_dict and rbue.convert."
        )
    if not isinstance(note.get("format"), int) or note["format"] > FORMAT:
        raise InvalidInput(
            f"{file} has format {shown(note.get('format'))}, by rbue {shown(note.get('rbue'))}, and rbue "
            f"{__version__} reads up to format {FORMAT}; update rbue."
        )
    return tensors, note


# ---- activations


def _described(activation: Randomness) -> tuple[str, dict[str, Any]]:
    """The class and the settings of an activation; a class of the user's own by ``package.module:Name``."""
    kind = type(activation)
    ours = getattr(activations, kind.__name__, None) is kind
    names: list[str] = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    settings = {name: getattr(activation, name) for name in names}
    plain = (bool, int, float, str, type(None))
    return (
        kind.__name__ if ours else f"{kind.__module__}:{kind.__qualname__}",
        {name: value if isinstance(value, plain) else repr(value) for name, value in settings.items()},
    )


def _activation(file: Path, name: str, settings: dict[str, Any], given: Randomness | None) -> Randomness:
    """The activation that a file describes: one of rbue's own is made, another has to be given and fit."""
    words = shown(f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})")
    kind = getattr(activations, name) if name in activations.__all__ else None
    if kind is not None:
        try:
            made = kind(**settings)
            if not isinstance(made, Randomness):
                raise TypeError(name)
        except (TypeError, InvalidInput) as error:
            raise InvalidInput(f"{file} was saved with {words}, which this rbue does not know; update rbue.") from error
        if given is None or given == made:
            return made
    elif given is None:
        raise InvalidInput(
            f"{file} was saved with {words}, a class of your own, and nothing is imported because a file says so; give "
            "load(..., activation=...) with an object of it."
        )
    elif _described(given) == (name, settings):
        return given
    raise InvalidInput(f"{file} was saved with {words}, and activation is {given!r}; give the same one.")


# ---- sites


def _places(sites: SiteTable) -> list[tuple[str, int, str]]:
    """What makes them the same sites; their shapes may be others."""
    return [(site.path, site.call, site.form) for site in sites]


def _refuse_other_sites(file: Path, saved: SiteTable, found: SiteTable, noun: str) -> None:
    if _places(saved) == _places(found):
        return
    lost, new = (
        [f"{site.name} ({site.form})" for site in these if (site.path, site.call, site.form) not in _places(others)]
        for these, others in ((saved, found), (found, saved))
    )
    what = [f"{word} {_few(names)}" for word, names in (("it lacks", lost), ("it also has", new)) if names]
    raise ConversionError(
        f"the network has other {noun} call sites than the one in {file}: "
        f"{'; '.join(what) or 'they run in another order'}; build it as it was when it was saved."
    )


def _site(number: int, path: Any, call: Any, form: Any, shape: Any) -> Site:
    """A site as it stands in a note."""
    if not (isinstance(path, str) and type(call) is int and isinstance(form, str)):
        raise TypeError(f"site {number} is {path} {call} {form}")
    return Site(number, path, call, form, tuple(shape))


def _sites_again(file: Path, network: nn.Module, example: Any, activation: Randomness) -> SiteTable:
    try:
        return find_sites(network, example, activation)[0]
    except RbueError:
        raise
    except Exception as error:  # of the network's own code, or torch's
        raise ConversionError(
            f"{type(network).__name__} cannot run on the example in {file} that its sites are found with "
            f"({reason(error)}); give load(..., example=x) with an input that it takes."
        ) from error


def _telling_example(network: nn.Module, example: Any, activation: Randomness, sites: SiteTable) -> Any:
    """What an input of zeros has to look like to lead through these sites, ready for JSON; None if none does."""
    for candidate in _candidates(network, example):
        with suppress(Exception):  # a network that does not take it, or has other sites then
            described = _to_json(candidate)
            found, _ = find_sites(network, _filled(candidate, device_of(network)), activation)
            if _places(found) == _places(sites):
                return described
    return None


def _candidates(network: nn.Module, example: Any) -> Iterator[Any]:
    """The example with few rows; the same in the type the network has by now; with all of its rows."""
    first = next((x for x in tree_leaves(example) if isinstance(x, Tensor) and x.dim()), None)
    rows = 0 if first is None else len(first)
    dtype = next((one.dtype for one in network.parameters() if one.is_floating_point()), torch.float32)

    def few(x: Tensor) -> Tensor:
        return x[:_ROWS] if x.dim() and len(x) == rows else x

    yield tree_map_only(Tensor, few, example)
    yield tree_map_only(Tensor, lambda x: few(x).to(dtype) if x.is_floating_point() else few(x), example)
    yield example


def _filled(example: Any, device: torch.device) -> Any:
    """Zeros in the place of tensors without content."""
    return tree_map_only(Tensor, lambda x: torch.zeros(x.shape, dtype=x.dtype, device=device), example)


def _to_json(value: Any) -> dict[str, Any]:
    """An example whose tensors have no content, ready for JSON.

    Raises:
        TypeError: it holds something that a file cannot.
    """
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _to_json(one) for key, one in value.items()}}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_to_json(one) for one in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(type(value).__name__)


def _from_json(value: Mapping[str, Any]) -> Any:
    """What :func:`_to_json` was given, on the meta device."""
    if "shape" in value:
        found = torch.empty(value["shape"], dtype=getattr(torch, value["dtype"]), device="meta")
        if found.numel() > _LARGEST:
            raise ValueError(f"an example of shape {value['shape']}")
        return found
    if "dict" in value:
        return {key: _from_json(one) for key, one in value["dict"].items()}
    for kind in (tuple, list):
        if kind.__name__ in value:
            return kind(_from_json(one) for one in value[kind.__name__])
    return value["value"]
