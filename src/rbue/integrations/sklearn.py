"""Estimators of scikit-learn: a network with random activations, trained by a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue.activations import DropReLU, Randomness
from rbue.call_sites import convert, seed, set_temperature
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.untouched import forked_generators
from rbue.errors import InvalidInput, RbueError, whole_number
from rbue.sampling import predict
from rbue.sampling.tasks import mean_and_variance, positive_variance

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise RbueError("rbue.integrations.sklearn needs scikit-learn 1.6; run pip install 'rbue[sklearn]'.") from error

__all__ = ["RbueClassifier", "RbueRegressor"]

Module = nn.Module | Callable[[int, int], nn.Module] | None


class _Estimator(BaseEstimator):
    """Training and sampling, which classes and numbers have in common."""

    def __init__(
        self,
        module: Module = None,
        *,
        q: float = 0.9,
        activation: Randomness | None = None,
        samples: int = 30,
        epochs: int = 100,
        lr: float = 1e-3,
        batch_size: int = 32,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.module = module
        self.q = q
        self.activation = activation
        self.samples = samples
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def _train(self, x: np.ndarray, y: np.ndarray, outputs: int, loss: Callable[[Any, Tensor], Tensor]) -> None:
        """Adam on shuffled batches; torch's own random numbers are as before afterwards."""
        epochs, batch_size = whole_number(self.epochs, "epochs"), whole_number(self.batch_size, "batch_size")
        whole_number(self.samples, "samples")
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        device = torch.device(self.device)
        with forked_generators(device), torch.enable_grad():
            torch.default_generator.manual_seed(self.seed_)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(self.seed_)
            network = self._network(x.shape[1], outputs).to(device)
            images = self._tensor(x, network)
            targets = torch.as_tensor(y, device=device)
            targets = targets.to(images.dtype) if targets.is_floating_point() else targets
            if CONVERSION not in network.__dict__:
                activation = DropReLU(self.q) if self.activation is None else self.activation
                convert(network, activation, example=images[:2])
            set_temperature(network, 1.0)  # one that a given module keeps was fitted to other weights
            seed(network, self.seed_)
            optimizer = torch.optim.Adam(network.parameters(), self.lr)
            network.train()
            for _ in range(epochs):
                # Parts of almost one size: a last batch of one row would stop a BatchNorm.
                for rows in torch.randperm(len(images)).tensor_split(-(-len(images) // batch_size)):
                    optimizer.zero_grad()
                    loss(network(images[rows]), targets[rows]).backward()
                    optimizer.step()
        self.network_ = network.eval()

    def _network(self, features: int, outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return deepcopy(self.module)
        make = self._mlp if self.module is None else self.module
        network = make(features, outputs) if callable(make) else None
        if not isinstance(network, nn.Module):
            found = f"it made {type(network).__name__}" if callable(make) else f"is {make!r}"
            raise InvalidInput(
                f"module must be a torch.nn.Module, or make one of the numbers of features and outputs, but {found}."
            )
        return network

    @staticmethod
    def _mlp(features: int, outputs: int) -> nn.Module:
        """Small, and in scikit-learn's precision: in a shorter one, a row's answer varies a little with the batch."""
        layers = nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
        return nn.Sequential(*layers).double()

    @staticmethod
    def _tensor(x: np.ndarray, network: nn.Module) -> Tensor:
        parameter = next(network.parameters())
        return torch.as_tensor(x, dtype=parameter.dtype, device=parameter.device)

    def _sampled(self, X: Any, outputs: str | None) -> Any:
        """The prediction; each row draws the bits of image 0, so that its answer is its own in whatever company."""
        check_is_fitted(self)
        x = self._tensor(validate_data(self, X, reset=False, dtype=np.float64), self.network_)
        index = torch.zeros(len(x), dtype=torch.int64)
        return predict(self.network_, x, self.samples, self.seed_, index, outputs=outputs)


class RbueClassifier(ClassifierMixin, _Estimator):
    """A classifier whose probabilities are the mean of many random passes.

    Args:
        module: a ``torch.nn.Module`` that returns logits ``(n, classes)``, of which a copy is trained; or a function
            that makes one of the numbers of features and classes; None is a network with two hidden layers of 64.
        q: probability that a ReLU stays one (:class:`rbue.DropReLU`).
        activation: another activation in its place, such as ``rbue.DropActivation(0.9)``. A module that is converted
            already stays as it is.
        samples: number of passes of a prediction.
        epochs: how often training goes through the data.
        lr: learning rate of Adam.
        batch_size: rows of a training step.
        random_state: as everywhere in scikit-learn; it decides weights, order, masks and samples.
        device: where the network is, such as ``"cuda"``.

    Attributes:
        classes_: the classes.
        network_: the trained network, converted: ``rbue.save``, ``rbue.export`` and ``rbue.predict`` take it.
        seed_: the seed of the samples.

    Features should have similar scales: put a ``StandardScaler`` before it.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RbueClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape, model.score(X, y) > 0.9
    ((2, 3), True)
    """

    def fit(self, X: Any, y: Any) -> RbueClassifier:
        """Train a fresh network by cross entropy."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs two classes or more."
            )
        self._train(X, labels, len(self.classes_), partial(_entropy, classes=len(self.classes_)))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Mean probabilities ``(n, classes)``."""
        probs = self.predict_samples(X).probs.double()
        return (probs / probs.sum(1, keepdim=True)).cpu().numpy()  # float32 sums to one less exactly

    def predict(self, X: Any) -> np.ndarray:
        """The most probable classes."""
        found = self.predict_proba(X)  # which says what is missing before there are classes
        return self.classes_[found.argmax(1)]

    def predict_samples(self, X: Any) -> Any:
        """The whole :class:`rbue.Prediction`: entropy, mutual information, votes."""
        return self._sampled(X, None)


class RbueRegressor(RegressorMixin, _Estimator):
    """A regressor with a standard deviation for each prediction, from the mean and the spread of many random passes.

    The network of its own returns a mean and a variance and is trained by the Gaussian likelihood: the standard
    deviation holds the noise of the data and what the samples disagree about. Targets are standardised inside.

    Args:
        module: a ``torch.nn.Module`` of which a copy is trained, or a function that makes one of the numbers of
            features and outputs. It returns one number a row and is trained by squared errors; its standard deviation
            is then only what the samples disagree about. None is a network with two hidden layers of 64.
        outputs: ``"gaussian"`` for a module that returns a mean and a positive variance too, as :func:`rbue.predict`
            takes them. Default: ``"gaussian"`` without a module, else ``"values"``.
        q: probability that a ReLU stays one (:class:`rbue.DropReLU`).
        activation: another activation in its place.
        samples: number of passes of a prediction.
        epochs: how often training goes through the data.
        lr: learning rate of Adam.
        batch_size: rows of a training step.
        random_state: as everywhere in scikit-learn; it decides weights, order, masks and samples.
        device: where the network is.

    Attributes:
        network_: the trained network, converted; it predicts ``(y - mean_) / scale_``.
        mean_, scale_: mean and standard deviation of the targets.
        seed_: the seed of the samples.

    >>> X = np.linspace(-1, 1, 80)[:, None]
    >>> model = RbueRegressor(epochs=40, random_state=0).fit(X, 3 * X[:, 0] + 10)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape, model.score(X, 3 * X[:, 0] + 10) > 0.9
    ((2,), (2,), True)
    """

    def __init__(
        self,
        module: Module = None,
        *,
        outputs: Literal["gaussian", "values"] | None = None,
        q: float = 0.9,
        activation: Randomness | None = None,
        samples: int = 30,
        epochs: int = 100,
        lr: float = 1e-3,
        batch_size: int = 32,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            module,
            q=q,
            activation=activation,
            samples=samples,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            random_state=random_state,
            device=device,
        )
        self.outputs = outputs

    def fit(self, X: Any, y: Any) -> RbueRegressor:
        """Train a fresh network."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        gaussian = self._kind() == "gaussian"
        y = np.asarray(y, dtype=np.float64)
        self.mean_, self.scale_ = float(y.mean()), float(y.std()) or 1.0
        self._train(X, (y - self.mean_) / self.scale_, 2 if gaussian else 1, _likelihood if gaussian else _squares)
        return self

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the samples ``(n,)``, and the standard deviation beside it if it is asked for."""
        check_is_fitted(self)
        found = self._sampled(X, self._kind())
        mean, std = (one.double().reshape(len(one)).cpu().numpy() * self.scale_ for one in (found.mean, found.std))
        return (mean + self.mean_, std) if return_std else mean + self.mean_

    def _kind(self) -> str:
        if self.outputs not in (None, "gaussian", "values"):
            raise InvalidInput(f"outputs must be 'gaussian' or 'values', not {self.outputs!r}.")
        return self.outputs or ("gaussian" if self.module is None else "values")

    @staticmethod
    def _mlp(features: int, outputs: int) -> nn.Module:
        network = _Estimator._mlp(features, outputs)
        return nn.Sequential(network, _PositiveVariance()) if outputs == 2 else network


class _PositiveVariance(nn.Module):
    """The second of two numbers made a variance."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], F.softplus(x[:, 1]) + 1e-6], 1)


def _entropy(outputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    if outputs.shape != (len(labels), classes):
        raise InvalidInput(
            f"the module returned shape {tuple(outputs.shape)} for {len(labels)} rows of {classes} classes; return "
            "one logit for each class."
        )
    return F.cross_entropy(outputs, labels)


def _likelihood(outputs: Any, y: Tensor) -> Tensor:
    mean, variance = positive_variance(mean_and_variance(outputs)[None])[0].unbind(1)
    return F.gaussian_nll_loss(mean.reshape(y.shape), y, variance.reshape(y.shape))


def _squares(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.numel() != y.numel():
        raise InvalidInput(
            f"the module returned shape {tuple(outputs.shape)} for {len(y)} rows; return one number each."
        )
    return F.mse_loss(outputs.reshape(y.shape), y)
