"""What the library gives on fixed inputs: random bits, samples, gradients; its public names and operators."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LIBRARY = ("metrics", "functional", "calibration", "variance")
LABORATORY = ("models", "methods", "data", "training")


def streams() -> dict[str, Any]:
    """Random activations and networks on fixed inputs; what is exact as checksums."""
    return {"words": _words(), "functions": _functions(), "networks": dict(_networks())}


def _words() -> dict[str, Any] | None:
    """The constants and functions below everything, if their module is still there."""
    if find_spec("rbue.random_stream") is None:
        return None
    stream = import_module("rbue.random_stream")
    names = ("VERSION", "LANE_START", "MIX_MULTIPLIERS", "BITS_MULTIPLIERS")
    state = stream.absorb(stream.seed_state((1 << 63) + 5).unsqueeze(-1), torch.arange(3, dtype=torch.int32))
    words = stream.bits(stream.element_table(40).unsqueeze(-1), *state)
    return {
        **{name: getattr(stream, name) for name in names},
        "signed32": [stream.signed32(word) for word in (0, 5, 1 << 31, (1 << 32) - 1)],
        "mix_int": [stream.mix_int(word) for word in (0, 1, 12345, (1 << 32) - 1)],
        "seed_lanes": [list(stream.seed_lanes(seed)) for seed in (0, 1, 1 << 32, (1 << 64) - 1)],
        "seed_state": stream.seed_state(torch.tensor(-7)).tolist(),
        "threshold": [stream.threshold(one) for one in (0.0, 0.1, 0.5, 0.9, 1.0)],
        "bits": exact(words),
        "odd_words": exact(stream.odd_words(words)),
        "as_mantissas": exact(stream.as_mantissas(words)),
    }


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of both signs, and zero, that every type holds exactly."""
    return ((torch.arange(math.prod(shape)) * 37 + 11) % 65 - 32).div(16).reshape(shape).to(dtype)


def exact(x: Tensor) -> str:
    """Type, shape, strides and a checksum of the values in logical order."""
    values = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    kind = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} strides {list(x.stride())}"
    return f"{kind} {hashlib.sha256(values).hexdigest()[:24]}"


def _functions() -> dict[str, Any]:
    """``rbue.functional`` over types, memory formats, seeds, samples, images and sites, with gradients."""
    functional = import_module("rbue.functional")
    wide = inputs(3, 8, 5, 6)
    forms = {
        "vector": inputs(70),
        "matrix": inputs(4, 33),
        "maps": wide,
        "channels_last": wide.contiguous(memory_format=torch.channels_last),
        "volumes": inputs(2, 3, 4, 4, 2).contiguous(memory_format=torch.channels_last_3d),
        "transposed": inputs(8, 5, 6, 3).permute(3, 0, 2, 1),
        "large": inputs(2, 40_000),
        **{str(kind): inputs(3, 50, dtype=kind) for kind in (torch.float64, torch.float16, torch.bfloat16)},
    }
    numbers: dict[str, dict[str, Any]] = {
        "seed 0": {"seed": 0},
        "all numbers": {"seed": (1 << 63) + 5, "sample": 7, "site": 0xDEADBEEF},
        "tensor seed": {"seed": torch.tensor(-3), "sample": torch.tensor(9)},
    }
    functions: dict[str, Callable[..., Tensor]] = {
        "drop_relu": functional.drop_relu,
        "drop_relu q=0.3": lambda x, **more: functional.drop_relu(x, 0.3, **more),
        "rrelu": functional.rrelu,
        "rrelu 0 to 1": lambda x, **more: functional.rrelu(x, 0.0, 1.0, **more),
    }
    found: dict[str, Any] = {}
    for name, function in functions.items():
        for form, x in forms.items():
            found |= {f"{name}, {form}, {how}": exact(function(x, **more)) for how, more in numbers.items()}
        rows = {"seed": 4, "image": torch.tensor([9, 2, 2]), "sample": torch.tensor([1, 0, 5])}
        leaf = wide.clone().requires_grad_()
        function(leaf, seed=6).backward(inputs(*wide.shape).flip(0))
        assert leaf.grad is not None
        found[f"{name}, rows"] = exact(function(wide, **rows))
        found[f"{name}, one image"] = exact(function(wide[0], seed=1, image=2))
        found[f"{name}, inplace"] = exact(function(wide.clone(), seed=5, inplace=True))
        found[f"{name}, gradient"] = exact(leaf.grad)
        vmapped = torch.func.vmap(lambda sample, call=function: call(wide, seed=1, sample=sample))
        found[f"{name}, vmap"] = exact(vmapped(torch.arange(3)))
    for seed in range(3):
        kept = functional.drop_relu(-torch.ones(4, 32), 0.5, seed=seed, site=1) == 0
        found[f"mask, seed {seed}"] = [f"{int(''.join(map(str, row)), 2):08x}" for row in kept.int().tolist()]
    return found


class _Small(nn.Module):
    """ReLUs of several spellings, BatchNorm and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.act, self.head = nn.ReLU6(inplace=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)) + x)
        return self.head(self.act(x.clamp(min=0) - 0.25).mean((2, 3)))


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _filled(network: nn.Module) -> nn.Module:
    """The network with fixed weights and statistics, small and of both signs; no generator is involved."""
    for name, one in network.state_dict(keep_vars=True).items():
        if one.is_floating_point():
            values = inputs(*one.shape) / max(1.0, one[0].numel() ** 0.5)
            one.data.copy_(values.abs() + 0.5 if "running_var" in name else values)
    return network.eval()


def _networks() -> Iterator[tuple[str, Any]]:
    """Converted networks: their sites, samples, masks and gradients."""
    rbue = import_module("rbue")
    makers: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "mlp": (_perceptron, inputs(6, 5)),
        "cnn": (_Small, inputs(6, 2, 7, 7)),
    }
    ways = [(rbue.DropReLU(0.8), "all"), (rbue.DropReLU(0.6), "last"), (rbue.DropReLU(0.7), [1]), (rbue.RReLU(), "all")]
    ways += [(rbue.RReLU(0.0, 0.5), "first"), (rbue.Dropout(0.3), "all"), (rbue.Dropout(0.2), "last")]
    for name, (make, x) in makers.items():
        sites = rbue.sites(_filled(make()), x)
        yield f"{name}, sites", [[one.name, one.path, one.call, one.form, list(one.shape), one.number] for one in sites]
        for activation, where in ways:
            network = rbue.convert(_filled(make()), activation, where=where, example=x)
            yield f"{name}, {activation!r}, {where}", _answers(rbue, network, x)
    network = rbue.convert(_filled(_Small()), rbue.DropReLU(0.8), example=makers["cnn"][1])
    if hasattr(rbue, "fold_batchnorm"):  # left the public names with version 0.2
        folded = rbue.fold_batchnorm(network, makers["cnn"][1])
        yield "cnn, folded", rbue.predict(folded, makers["cnn"][1], samples=3, seed=3).probs.tolist()
    with rbue.mode(network, "mean"), torch.no_grad():
        yield "cnn, mean", network(makers["cnn"][1]).tolist()
    yield "cnn, reverted", rbue.revert(network)(makers["cnn"][1]).tolist()
    # Products with the identity are exact, so these show the masks of two sites bit for bit.
    for activation in (rbue.DropReLU(0.5), rbue.RReLU(), rbue.Dropout(0.5)):
        network = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Sequential(nn.ReLU(), nn.Hardtanh(0.0, 1.0)))
        network[0].weight.data = torch.eye(32)
        rbue.convert(network, activation)
        rbue.seed(network, 11)
        yield f"masks, {activation!r}", [exact(network(inputs(5, 32))) for _ in range(3)]


def _answers(rbue: ModuleType, network: nn.Module, x: Tensor) -> dict[str, Any]:
    # Commits from before there were balanced draws know no others.
    balanced = "draws" in inspect.signature(rbue.predict).parameters
    independent = {"draws": "independent"} if balanced else {}
    drawn = rbue.predict(network, x, samples=5, seed=3, return_samples=True, **independent)
    numbered = rbue.predict(network, x, samples=3, seed=3, index=torch.arange(40, 46), memory=1, **independent)
    loaded = rbue.predict(network, [x[:4], x[4:]], samples=3, seed=1 << 40, **independent)
    rule = rbue.Adaptive(tolerance=0.05, first=8)
    rbue.seed(network, 9)
    network.train()
    network(x)
    loss = F.cross_entropy(network(x), torch.arange(len(x)) % 4)  # the second call: sample 1
    loss.backward()
    return {
        "samples": drawn.samples.tolist(),
        "votes": drawn.votes.tolist(),
        "variance": drawn.variance.tolist(),
        "mutual information": drawn.mutual_information.tolist(),
        "stream version": drawn.stream_version,
        "numbered": numbered.probs.tolist(),
        "loaded": loaded.probs.tolist(),
        **({"balanced": rbue.predict(network, x, samples=5, seed=3).probs.tolist()} if balanced else {}),
        "used": rbue.predict(network, x, samples=64, adaptive=rule, **independent).samples_used.tolist(),
        "loss": loss.item(),
        "gradients": {
            name: one.grad.flatten()[:6].tolist() for name, one in network.named_parameters() if one.grad is not None
        },
    }


def names() -> dict[str, Any]:
    """Public names: of the library with their parameters, of the laboratory alone."""
    found: dict[str, Any] = {"rbue": _described(import_module("rbue"))}
    for name in LIBRARY:
        found[f"rbue.{name}"] = _described(import_module(f"rbue.{name}"))
    for name in LABORATORY:
        moved = find_spec("rbue.lab") is not None and find_spec(f"rbue.lab.{name}") is not None
        found[name] = _public(import_module(f"rbue.lab.{name}" if moved else f"rbue.{name}"))
    return found


def _public(module: ModuleType) -> list[str]:
    return sorted(getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]))


def _described(module: ModuleType) -> dict[str, Any]:
    values = {name: getattr(module, name) for name in _public(module)}
    return {name: _description(value) for name, value in values.items()}


def _description(value: Any) -> Any:
    """Parameters of a function; of a class those of its own public methods too; otherwise the type."""
    if isinstance(value, type):
        own = {
            name: one
            for base in reversed(value.__mro__)
            if base.__module__.split(".")[0] == "rbue"
            for name, one in vars(base).items()
            if not name.startswith("_")
        }
        members = {name: parameters(getattr(value, name)) if callable(one) else "" for name, one in own.items()}
        members |= {name: parameters(one.__func__) for name, one in own.items() if isinstance(one, classmethod)}
        bases = [base.__name__ for base in value.__mro__[1:-1] if not base.__name__.startswith("_")]
        return {"class": parameters(value), "bases": bases, "members": members}
    return parameters(value) if callable(value) else type(value).__name__


def parameters(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults of parameters; annotations may change with the modules they come from."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(?)"
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = str(inspect.Signature(bare))
    return re.sub(r" at 0x\w+", "", re.sub(r"\brbue(\.\w+)*\.", "", text))


def operators() -> list[str]:
    """The schemas of the operators that are registered with torch."""
    schemas = torch._C._jit_get_all_schemas()
    return sorted(str(schema) for schema in schemas if schema.name.startswith("rbue::"))
