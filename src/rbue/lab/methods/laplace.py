"""Laplace approximation of the last layer (Daxberger et al., 2021, https://arxiv.org/abs/2106.14806), by laplace-torch.

A plain network is trained. Then its last layer becomes a Gaussian: the mean is what was trained, the precision is the
curvature of the loss there (a Kronecker-factored Gauss-Newton matrix) plus that of a normal prior, which maximises the
marginal likelihood. All of that is laplace-torch's. It takes the training images, which are not there at test time;
so samples of the layer are drawn when training ends, and stored. A prediction needs the features of an image once. It
is the mean over samples; laplace-torch's own default is a probit formula, less sure where a network is overfit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from rbue.call_sites import evaluating
from rbue.errors import InvalidInput, RbueError
from rbue.lab.methods.base import TrainingBatches, outputs_of, register
from rbue.lab.methods.members import StoredSamples, in_order_of_calls
from rbue.sampling.passes import class_scores


class SampledLastLayer(nn.Module):
    """A network, and samples of the weights and biases of its last layer ``(S, P)``, which are frozen parameters."""

    def __init__(self, network: nn.Module, last: str, samples: int) -> None:
        super().__init__()
        self.network, self.last = network, last
        size = sum(one.numel() for one in network.get_submodule(last).parameters())
        self.samples = nn.Parameter(torch.zeros(samples, size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of the plain network."""
        return class_scores(self.network(x))

    def features(self, x: Tensor) -> Tensor:
        """What goes into the last layer."""
        seen: list[Tensor] = []
        layer = self.network.get_submodule(self.last)
        with layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
            self.network(x)
        return seen[-1]

    def outputs(self, x: Tensor, numbers: list[int]) -> Tensor:
        """Class scores of some samples."""
        features = outputs_of(self.features, x)
        shape = self.network.get_submodule(self.last).get_parameter("weight").shape
        weights, biases = self.samples[numbers].tensor_split([shape.numel()], 1)
        scores = torch.einsum("bf,scf->sbc", features, weights.unflatten(1, shape))
        return scores + biases.unsqueeze(1) if biases.numel() else scores

    def fit(self, batches: TrainingBatches) -> None:
        """Draw the samples."""
        from laplace import Laplace  # slow to import, and not everyone's

        device = self.samples.device
        # It views weights as one vector, which those with the channels last are not.
        network = deepcopy(self.network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        with evaluating(self), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a link function that samples do not have
            found = Laplace(
                network,
                "classification",
                subset_of_weights="last_layer",
                hessian_structure="kron",
                last_layer_name=self.last,
            )
            found.fit(_Loader(batches))
            found.optimize_prior_precision(method="marglik")
            drawn = found.sample(len(self.samples), generator=torch.Generator(device).manual_seed(0))
        self.samples.copy_(drawn.detach())


class _Loader:
    """Batches in the form of a torch loader."""

    def __init__(self, batches: TrainingBatches) -> None:
        self.batches = batches
        self.dataset = range(sum(len(y) for _, y in batches()))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches())


@register("laplace")
@dataclass(frozen=True)
class LastLayerLaplace(StoredSamples):
    """A plain network with a Gaussian over its last layer, of which ``samples`` are drawn when training ends."""

    samples: int = 100
    draws_samples = True  # there could be more of them

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise InvalidInput(f"samples of laplace must be at least 2, not {self.samples}.")

    @property
    def limit(self) -> int:
        """As many as were drawn."""
        return self.samples

    def check_training(self, epochs: int, average: str | None) -> None:
        """Only training needs laplace-torch: what is stored can be used without it."""
        if find_spec("laplace") is None:
            raise RbueError("the method laplace needs laplace-torch, which is not here; `pip install 'rbue[laplace]'`.")

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Find the last layer, and give the network room for its samples."""
        paths = {one: path for path, one in network.named_modules() if isinstance(one, (nn.Conv2d, nn.Linear))}
        called = in_order_of_calls(network, paths, example)
        name = type(network).__name__
        if not called or not isinstance(called[-1], nn.Linear):
            raise InvalidInput(f"the last layer of {name} is no nn.Linear, which laplace makes Gaussian.")
        prepared = SampledLastLayer(network, paths[called[-1]], self.samples)
        x = torch.randn_like(example)
        with torch.no_grad(), evaluating(prepared):
            same = torch.equal(called[-1](prepared.features(x)), prepared(x))
        if not same:
            raise InvalidInput(f"{name} does more after its last nn.Linear, so laplace cannot make that one Gaussian.")
        return prepared

    def end_epoch(self, network: nn.Module, epoch: int, epochs: int, batches: TrainingBatches) -> None:
        """Fit the Gaussian when training ends."""
        if epoch == epochs:
            network.fit(batches)  # type: ignore[operator]
