"""Whatever cannot be made random is refused in one clear sentence, never silently left plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from style_networks import mlp, rows
from torch import Tensor, nn
from torch.ao.nn.intrinsic.quantized import LinearReLU
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import rbue
from rbue import ConversionError, InvalidInput


@torch.jit.script
def scripted_relu(x: Tensor) -> Tensor:
    return torch.relu(x)


class CallsScripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scripted_relu(F.relu(x))


@torch.jit.script
def scripted_sigmoid_if(x: Tensor, many: bool) -> Tensor:
    if many:
        return x * torch.sigmoid(x)
    return x


class CallsScriptedBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scripted_sigmoid_if(F.relu(x), False)


class HoldsScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = scripted_relu

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class TakesTwo(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.relu()


class Final(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Final:
        if any(isinstance(base, cls) for base in bases):
            raise TypeError("it has no subclasses")
        return super().__new__(cls, name, bases, namespace)


class KeepsItsClass(nn.ReLU, metaclass=Final):
    """Its class cannot be followed."""


class Clips(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clip(min=0)


def own_forward() -> nn.Module:
    network = mlp()
    forward = network.forward
    network.forward = lambda x: forward(x)
    return network


def bound_forward() -> nn.Module:
    network = mlp()
    network.forward = network.forward  # whose repr has the whole network, in many lines
    return network


def convert(network: Any = None, activation: Any = None, **options: Any) -> Callable[[], Any]:
    activation = rbue.DropReLU(0.5) if activation is None else activation
    return lambda: rbue.convert(mlp() if network is None else network(), activation, **options)


x = rows()
CASES: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "no ReLU": (
        convert(lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Tanh()), example=x),
        ConversionError,
        ["Sequential", "GELU, Tanh", "rbue.Dropout(p)"],
    ),
    "no activation": (
        convert(lambda: nn.Linear(4, 4), example=x),
        ConversionError,
        ["Linear", "no other", "rbue.Dropout(p)"],
    ),
    "no known activation": (
        convert(lambda: nn.Linear(4, 4), rbue.DropActivation(), example=x),
        ConversionError,
        ["no activation that DropActivation knows", "rbue.Dropout(p)"],
    ),
    "network and activation in each other's place": (
        lambda: rbue.convert(rbue.DropReLU(0.5), mlp()),  # type: ignore[arg-type]
        InvalidInput,
        ["the network must be a torch.nn.Module, not DropReLU"],
    ),
    "example in the place of where": (convert(where=x), InvalidInput, ["tensor of shape", "give example=x."]),
    "scripted": (convert(lambda: torch.jit.script(mlp())), ConversionError, ["the network", "scripted"]),
    "traced": (convert(lambda: torch.jit.trace(mlp(), x)), ConversionError, ["the network", "traced"]),
    "scripted part": (
        convert(lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.ReLU()))),
        ConversionError,
        ["1 is a scripted"],
    ),
    "traced part": (
        convert(lambda: nn.Sequential(nn.ReLU(), torch.jit.trace(mlp(), x))),
        ConversionError,
        ["1 is a scripted or traced"],
    ),
    "exported part": (
        convert(lambda: nn.Sequential(nn.ReLU(), torch.export.export(mlp(), (x,)).module())),
        ConversionError,
        ["1 is an exported program", "before torch.export"],
    ),
    "exported part that works in place": (
        convert(lambda: nn.Sequential(nn.ReLU(), torch.export.export(nn.ReLU6(inplace=True), (x.clone(),)).module())),
        ConversionError,
        ["1 is an exported program"],
    ),
    "exported clip": (
        convert(lambda: nn.Sequential(nn.ReLU(), torch.export.export(Clips(), (x,)).module())),
        ConversionError,
        ["1 is an exported program"],
    ),
    "scripted function": (convert(CallsScripted), ConversionError, ["the scripted function scripted_relu"]),
    "scripted branch": (convert(CallsScriptedBranch), ConversionError, ["scripted_sigmoid_if", "or set PYTORCH_JIT=0"]),
    "scripted attribute": (convert(HoldsScripted), ConversionError, ["the scripted function activation"]),
    "nested DataParallel": (
        convert(lambda: nn.Sequential(nn.DataParallel(mlp()))),
        ConversionError,
        ["0 is a DataParallel"],
    ),
    "fused recurrence": (
        convert(lambda: nn.Sequential(nn.RNN(4, 4, nonlinearity="relu"))),
        ConversionError,
        ["0 is an nn.RNN", "'relu'"],
    ),
    "fused cell": (convert(lambda: nn.RNNCell(4, 4, nonlinearity="relu")), ConversionError, ["nn.RNNCell"]),
    "quantized": (
        convert(lambda: nn.Sequential(nn.ReLU(), LinearReLU(4, 4))),
        ConversionError,
        ["1 is a quantized LinearReLU", "before it was quantized"],
    ),
    "forward on the instance": (convert(own_forward, example=x), ConversionError, ["Sequential", "instance"]),
    "bound forward": (convert(bound_forward, example=x), ConversionError, ["instance", "in the class instead."]),
    "pattern picks nothing": (convert(where="layer9.*", example=x), InvalidInput, ["'layer9.*'", "2 ReLU"]),
    "path of a container": (
        convert(lambda: nn.Sequential(mlp()), where="0", example=x),
        InvalidInput,
        ["picks none", "where='0.*'"],
    ),
    "unknown name in a list": (convert(where=["1", "2"], example=x), InvalidInput, ["where='2' picks none of the 2"]),
    "example is a number": (convert(example=7), InvalidInput, ["not int", "as tensors"]),
    "function picks nothing": (convert(where=lambda site: False, example=x), InvalidInput, ["picks none"]),
    "no index": (convert(where=[], example=x), InvalidInput, ["where=[]", "picks none"]),
    "index too large": (convert(where=[0, 2], example=x), InvalidInput, ["no site 2", "0 to 1"]),
    "index too small": (convert(where=-3, example=x), InvalidInput, ["no site -3"]),
    "bool": (convert(where=True, example=x), InvalidInput, ["True"]),
    "bool in a list": (convert(where=[False], example=x), InvalidInput, ["False"]),
    "float in a list": (convert(where=[0.5], example=x), InvalidInput, ["0.5"]),
    "where is None": (convert(where=None, example=x), InvalidInput, ["None"]),
    "where is a float": (convert(where=1.5, example=x), InvalidInput, ["1.5"]),
    "missing example": (convert(where="last"), InvalidInput, ["'last'", "example=x"]),
    "wrong activation": (convert(activation="drop"), InvalidInput, ["'drop'", "DropReLU"]),
    "activation class": (convert(activation=rbue.DropReLU), InvalidInput, ["DropReLU(q)"]),
    "not a module": (convert(lambda: F.relu), InvalidInput, ["torch.nn.Module", "function"]),
    "sites of a wrong activation": (lambda: rbue.sites(mlp(), x, "drop"), InvalidInput, ["'drop'", "DropReLU"]),
    "sites of no module": (lambda: rbue.sites("net", x), InvalidInput, ["torch.nn.Module", "str"]),
    "example of a wrong type": (convert(example="image.png"), InvalidInput, ["str"]),
    "wrong mode": (lambda: rbue.mode(convert()(), "sample").__enter__(), InvalidInput, ["'sample'", "random"]),
    "revert of a plain network": (lambda: rbue.revert(mlp()), ConversionError, ["Sequential is not converted; call"]),
    "seed of a plain network": (lambda: rbue.seed(mlp(), 0), ConversionError, ["not converted"]),
    "mode of a plain network": (lambda: rbue.mode(mlp(), "mean").__enter__(), ConversionError, ["not converted"]),
    "seed of a wrapper": (
        lambda: rbue.seed(AveragedModel(convert()()), 0),
        ConversionError,
        ["AveragedModel is not converted", "inside it at 'module' is"],
    ),
    "wrapper around a converted network": (
        convert(lambda: AveragedModel(convert()()), example=x),
        ConversionError,
        ["AveragedModel has no ReLU of its own", "converted network at 'module'"],
    ),
    "seed of a wrong type": (lambda: rbue.seed(convert()(), 1.5), InvalidInput, ["1.5"]),
    "no ReLU met": (lambda: convert(lambda: nn.Linear(4, 4))()(x), ConversionError, ["Linear has no ReLU call site"]),
    "no ReLU met, but others": (
        lambda: rbue.predict(convert(lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU()))(), x),
        ConversionError,
        ["no ReLU", "it uses GELU instead", "rbue.DropActivation(q)"],
    ),
    "no weights": (
        convert(lambda: mlp().to("meta"), example=x),
        InvalidInput,
        ["on meta", "example on cpu", "x.to('me"],
    ),
    "traced by torch.fx": (
        lambda: torch.fx.symbolic_trace(convert()()),
        InvalidInput,
        ["torch.fx", "trace the network first"],
    ),
    "no input": (lambda: convert()()(), InvalidInput, ["batch dimension", "among its inputs."]),
    **{
        f"called with {kind}": (lambda given=given: convert()()(given), InvalidInput, [f"not {kind};", "np.asarray(x)"])
        for given, kind in ((None, "NoneType"), (x.numpy(), "ndarray"), (x.tolist(), "float"), (x[0, 0], "Tensor"))
    },
    "first input without rows": (lambda: convert(TakesTwo)()(x[:0], x), InvalidInput, ["it has no rows"]),
}


@pytest.mark.parametrize(("act", "kind", "words"), CASES.values(), ids=CASES)
def test_error_says_what_was_wrong(act: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        act()
    assert isinstance(caught.value, rbue.RbueError)
    sentence = str(caught.value).splitlines()[0]
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("network", "error"),
    [
        (CallsScripted, ConversionError),
        (own_forward, ConversionError),
        (lambda: nn.Sequential(nn.ReLU(), KeepsItsClass()), TypeError),
    ],
)
def test_refusal_leaves_the_network_untouched(network: Callable[[], nn.Module], error: type[Exception]) -> None:
    net = network()
    before = [(type(module), sorted(module.__dict__)) for module in net.modules()]
    with pytest.raises(error):
        rbue.convert(net, rbue.DropReLU(0.5), example=rows())
    assert [(type(module), sorted(module.__dict__)) for module in net.modules()] == before


@pytest.mark.parametrize(
    "example", [rows(), (rows(),), [rows()], {"input": rows()}], ids=["tensor", "tuple", "list", "dict"]
)
def test_example_may_be_a_tensor_a_tuple_or_keywords(example: Any) -> None:
    assert len(rbue.sites(mlp(), example)) == 2


def test_recurrences_without_relu_are_fine() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LSTMCell(4, 4))
    assert len(rbue.sites(network, rows())) == 1


class CallsItsClass(nn.Sequential):
    def forward(self, x):
        return super(self.__class__, self).forward(x)


def test_endless_recursion_is_explained():
    network, x = CallsItsClass(nn.Linear(3, 4), nn.ReLU()), torch.zeros(2, 3)
    with pytest.raises(rbue.ConversionError, match=r"CallsItsClass calls itself without end .* make that super\(\)"):
        rbue.sites(network, x)
    rbue.convert(network, rbue.DropReLU(0.9))
    with pytest.raises(rbue.ConversionError, match=r"make that super\(\)"):
        network(x)


def test_a_clamp_by_a_tensor_of_zero_is_named():
    class Clamps(nn.Module):
        def forward(self, x):
            return torch.relu(x.clamp(min=torch.tensor(0.0)) - 1)

    class Elsewhere(nn.Module):
        def forward(self, x):
            return torch.relu(x.clamp(min=torch.tensor(-1.0, device=x.device)))

    for device in ("cpu", "meta"):
        assert len(rbue.sites(Elsewhere(), torch.randn(2, 3, device=device))) == 1
    with pytest.warns(rbue.RbueWarning, match=r"a clamp in the network .* write clamp\(min=0\)"):
        assert len(rbue.sites(Clamps(), torch.randn(2, 3))) == 1
