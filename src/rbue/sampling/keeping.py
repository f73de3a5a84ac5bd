"""Keep logits and features beside the probabilities: what scores of unusual images are made from.

Features are the input of the classifier. One hook notes it, another has the network return it beside its scores, as one
tensor ``(rows, C + D)``. Whatever stacks, splits, shares or combines outputs then treats both alike, and they are taken
apart where samples are added up. Only the thread that asked sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rbue.call_sites.draws import first_tensor
from rbue.call_sites.following import plain_class
from rbue.errors import InvalidInput, did_you_mean
from rbue.kernels.layout import repeat_rows
from rbue.prediction import Prediction, Sums, precise_float
from rbue.sampling.passes import Reader, class_scores
from rbue.sampling.tasks import Task
from rbue.torch_internals import WeakTensorKeyDictionary

KEPT = ("logits", "features")
"""What can be kept; ``features:NAME`` are the input of another module than the classifier."""


class Keeping:
    """What predictions keep beside their probabilities.

    Attributes:
        logits: whether mean logits and the scores made from logits are kept.
        features: whether the mean features are.
        layer: the module whose input these are; empty for the classifier.
        width: how many features an image has, once a pass has shown it.
    """

    def __init__(self, keep: str | Sequence[str], task: Task) -> None:
        names = list(keep) if isinstance(keep, (tuple, list, set)) else [keep]
        self.logits = self.features = False
        self.layer, self.width = "", 0
        for name in names:
            kind, _, layer = name.partition(":") if isinstance(name, str) else (name, "", "")
            if kind not in KEPT or (layer and kind != "features"):
                guess = did_you_mean(kind, KEPT) if isinstance(kind, str) else ""
                raise InvalidInput(f"keep has {name!r}{guess}; give 'logits', 'features', 'features:LAYER' or both.")
            if kind == "logits":
                self.logits = True
            else:
                self.features, self.layer = True, layer
        if names and (not task.of_classes or task.name == "tokens"):
            raise InvalidInput(f"keep is for one class an input, which outputs={task.name!r} is not; leave it out.")
        if self.logits and task.name != "logits":
            raise InvalidInput(f"outputs={task.name!r} has no logits of classes to keep; keep 'features' alone.")

    def __bool__(self) -> bool:
        return self.logits or self.features

    @contextmanager
    def beside_scores(self, networks: Sequence[nn.Module], read: Reader = class_scores) -> Iterator[None]:
        """Inside the block the networks return scores and features, ``(rows, C + D)``; none if none are kept."""
        with ExitStack() as hooks:
            for network in networks if self.features else ():
                noted = _Noted(self, network, read)
                for layer in noted.layers:
                    if self.layer:
                        hooks.enter_context(layer.register_forward_pre_hook(noted.note, with_kwargs=True))
                    else:
                        hooks.enter_context(layer.register_forward_hook(noted.note_linear, with_kwargs=True))
                hooks.enter_context(network.register_forward_hook(noted.join))
            yield


class _Noted:
    """What the classifier of one network is given in the running pass.

    The classifier is the ``nn.Linear`` whose output are the scores. Where they are none's, as under a cap of the
    logits, it is the one that is called last, if it gives as many numbers as there are classes. The order of modules
    does not tell: other heads may stand behind it.
    """

    def __init__(self, keeping: Keeping, network: nn.Module, read: Reader) -> None:
        self.keeping, self.network, self.read = keeping, network, read
        self.thread = threading.get_ident()
        self.last: tuple[nn.Module, Tensor | None] | None = None
        self.made = WeakTensorKeyDictionary()
        if not keeping.layer:
            self.layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
            return
        named = dict(network.named_modules())
        if keeping.layer not in named:
            guess = did_you_mean(keeping.layer, named)
            raise InvalidInput(
                f"{plain_class(network).__name__} has no module {keeping.layer!r}{guess}; see named_modules()."
            )
        self.layers = [named[keeping.layer]]

    def note(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """The input of a layer."""
        if threading.get_ident() == self.thread:
            x = first_tensor((args, kwargs))
            # A module other than a linear one may change its input in place; of a map only the mean is to be held.
            self.last = module, x if x is None or isinstance(module, nn.Linear) else _an_image(x, last=False).clone()

    def note_linear(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """The input of a linear layer, of earlier ones as long as something holds their output."""
        if threading.get_ident() == self.thread:
            self.last = module, first_tensor((args, kwargs))
            if isinstance(out, Tensor):
                self.made[out] = self.last

    def _classifier(self, scores: Tensor) -> tuple[nn.Module, Tensor | None] | None:
        """The linear layer whose output are the scores, with its input, or the one that was called last."""
        place = scores.untyped_storage().data_ptr()
        for out, (layer, x) in reversed(list(self.made.items())):
            if out.untyped_storage().data_ptr() == place and layer.out_features == scores.shape[1]:
                return layer, x
        return self.last

    def join(self, module: nn.Module, args: tuple, output: Any) -> Tensor | None:
        """Scores and features of the rows of a pass."""
        if threading.get_ident() != self.thread:
            return None
        scores = one_class(self.read(output), rows=1)
        layer, x = self._classifier(scores) or (None, None)
        self.last = None
        self.made.clear()
        linear = isinstance(layer, nn.Linear)
        if not self.keeping.layer and (not linear or layer.out_features != scores.shape[1]):  # type: ignore[union-attr]
            raise InvalidInput(
                f"{plain_class(self.network).__name__} does not end in a linear layer that makes its {scores.shape[1]} "
                "scores; name the module whose input are the features: keep=('features:NAME',)."
            )
        features = None if x is None else _an_image(x, last=linear)
        if features is None or len(scores) % len(features):
            given = "was not called" if x is None else f"was given the shape {tuple(x.shape)}"
            raise InvalidInput(
                f"the module {self.keeping.layer or 'that makes the scores'!r} {given} in a pass with {len(scores)} "
                "rows; the input of a module has to be (B, ...) to be features: keep=('features:NAME',) names another."
            )
        if len(features) < len(scores):  # it came before the first random site, and all samples share it
            features = repeat_rows(features, len(scores) // len(features))
        self.keeping.width = features.shape[1]
        # Under autocast as short as the classifier reads them: plans ask of outputs what their type can hold.
        return torch.cat([scores, features.to(scores.dtype)], 1)


def _an_image(x: Tensor, last: bool) -> Tensor:
    """One vector an image, ``(B, D)``: the mean over pixels of ``(B, D, ...)``, over tokens of ``(B, T, D)``.

    ``last`` says that features stand last however many dimensions there are, as a linear layer takes them.
    """
    if x.dim() <= 2:
        return x.reshape(len(x), -1)
    return x.flatten(1, -2).mean(1) if last or x.dim() == 3 else x.flatten(2).mean(2)


def one_class(scores: Tensor, rows: int = 2) -> Tensor:
    """Scores of one class an image, after so many dimensions of rows; one number an image is given a dimension."""
    if scores.dim() > rows + 1:
        shape = ", ".join(map(str, ["B", *scores.shape[rows:]]))
        raise InvalidInput(f"keep is for one class an image, but the network returned ({shape}); leave it out.")
    return scores.unsqueeze(rows) if scores.dim() == rows else scores


class KeptSums:
    """Sums over the samples of one batch, in memory that does not grow with them."""

    def __init__(self, keeping: Keeping, images: int, device: torch.device) -> None:
        self.keeping, self.sums, self.float = keeping, Sums(images), precise_float(device)

    def take(self, rows: Tensor, out: Tensor) -> Tensor:
        """Add outputs ``(s, b, C + D)`` of the images ``rows``; gives the scores ``(s, b, C)`` in them."""
        if not self.keeping:
            return out
        scores = one_class(out)
        if self.keeping.features:
            scores, features = scores.split([scores.shape[2] - self.keeping.width, self.keeping.width], 2)
            self.sums.add("features", rows, features.sum(0, dtype=self.float))
        if self.keeping.logits:
            precise = scores.to(self.float)
            self.sums.add("logits", rows, precise.sum(0))
            self.sums.add("energy", rows, -precise.logsumexp(2).sum(0))
            self.sums.add("max_logit", rows, precise.amax(2).sum(0))
        return scores

    def means(self, counts: Tensor) -> dict[str, Tensor]:
        """The fields of a :class:`~rbue.prediction.Prediction`, of so many samples an image."""
        assert self.sums.keys() <= Prediction.__dataclass_fields__.keys()
        return {name: self.sums.mean(name, counts) for name in self.sums}
