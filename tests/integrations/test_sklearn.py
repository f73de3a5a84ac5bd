"""The estimators do what scikit-learn asks of one, and say what rbue.predict says."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import rbue
from rbue import InvalidInput
from rbue.integrations.sklearn import RbueClassifier, RbueRegressor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4))
NAMES = np.array(["low", "middle", "high"])[np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.5])]
Y = 100 + 20 * X[:, 0] + RANDOM.normal(size=60)
QUICK = {"epochs": 6, "lr": 0.01, "samples": 8, "random_state": 0}


@pytest.mark.slow
@parametrize_with_checks([RbueClassifier(), RbueRegressor()])
def test_what_scikit_learn_asks_of_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def classifier():
    return RbueClassifier(**QUICK).fit(X, NAMES)


@pytest.fixture(scope="module")
def regressor():
    return RbueRegressor(**QUICK | {"epochs": 20}).fit(X, Y)


def direct(model, rows, **settings):
    index = torch.zeros(len(rows), dtype=torch.int64)
    return rbue.predict(model.network_, rows, samples=8, seed=model.seed_, index=index, **settings)


def test_a_classifier_says_what_predict_says(classifier):
    found = direct(classifier, X)
    probs = classifier.predict_proba(X)
    assert np.abs(probs - found.probs.numpy()).max() < 1e-6
    assert np.abs(probs.sum(1) - 1).max() < 1e-14
    assert (classifier.predict(X) == classifier.classes_[found.label.numpy()]).all()
    assert classifier.score(X, NAMES) == (classifier.predict(X) == NAMES).mean() > 0.6
    assert np.array_equal(probs, classifier.predict_proba(X))
    assert np.abs(probs[20:21] - classifier.predict_proba(X[20:21])).max() < 1e-7  # alone as in a batch
    assert classifier.predict_samples(X).mutual_information.max() > 0


def test_a_regressor_says_what_predict_says(regressor):
    found = direct(regressor, X, outputs="gaussian")
    mean, std = regressor.predict(X, return_std=True)
    assert np.allclose(mean, Y.mean() + Y.std() * found.mean.numpy())
    assert np.allclose(std, Y.std() * found.std.numpy())
    assert np.array_equal(mean, regressor.predict(X))
    assert regressor.score(X, Y) > 0.8
    assert found.epistemic.min() > 0
    assert std.min() > 0


def test_copies_are_equal(classifier, regressor):
    assert np.array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(X), classifier.predict_proba(X))
    again = clone(regressor)
    assert not hasattr(again, "network_")
    with torch.no_grad():
        assert np.array_equal(again.fit(X, Y).predict(X), regressor.predict(X))


def test_targets_that_are_all_the_same_are_learned():
    model = RbueRegressor(**QUICK | {"epochs": 1}).fit(X, np.full(len(X), 5.0))
    assert (model.mean_, model.scale_) == (5, 1)
    assert np.isfinite(model.predict(X)).all()


def test_torchs_random_numbers_are_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    model = RbueClassifier(**QUICK | {"epochs": 1}).fit(X, NAMES)
    model.predict(X)
    assert torch.equal(torch.rand(3), expected)


def test_pipelines_and_searches():
    scores = cross_val_score(make_pipeline(StandardScaler(), RbueClassifier(**QUICK)), X, NAMES, cv=2)
    assert scores.min() > 0.4
    search = GridSearchCV(RbueRegressor(**QUICK | {"epochs": 2}), {"q": [0.5, 0.95]}, cv=2).fit(X, Y)
    assert search.best_params_["q"] in (0.5, 0.95)
    assert "DropReLU" in str(rbue.conversion(search.best_estimator_.network_))


class Own(nn.Module):
    """A network with BatchNorm and a GELU."""

    def __init__(self, features=4, outputs=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, outputs))

    def forward(self, x):
        return self.layers(x)


def test_a_module_of_ones_own():
    module = Own()
    before = [one.clone() for one in module.parameters()]
    settings = QUICK | {"activation": rbue.DropActivation(0.8), "batch_size": 59}  # one row would be left over
    model = RbueClassifier(module, **settings).fit(X, NAMES)
    assert all(map(torch.equal, before, module.parameters()))  # a copy was trained
    assert not hasattr(module, "_rbue_conversion")
    assert np.abs(model.predict_proba(X) - direct(model, X).probs.numpy()).max() < 1e-6
    made = RbueRegressor(Own, **settings).fit(X, Y)
    _, std = made.predict(X, return_std=True)
    assert np.allclose(std, Y.std() * direct(made, X, outputs="values").std.numpy()[:, 0])
    converted = rbue.convert(Own(), rbue.DropActivation(0.3))
    kept = RbueClassifier(converted, **settings).fit(X, NAMES)
    assert "0.3" in str(rbue.conversion(kept.network_))
    rbue.seed(converted, 1)  # other bits come next, but random_state decides
    assert np.array_equal(RbueClassifier(converted, **settings).fit(X, NAMES).predict_proba(X), kept.predict_proba(X))


def raw(features, outputs):
    """Its second number is no variance."""
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, outputs))


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (RbueClassifier(lambda features, outputs: 3), NAMES, "made int"),
        (RbueClassifier("resnet"), NAMES, "torch.nn.Module.*but is .resnet"),
        (RbueClassifier(epochs=0), NAMES, "epochs is 0"),
        (RbueClassifier(samples=0), NAMES, "samples is 0"),
        (RbueClassifier(), np.array(["yes"] * 60), "y has one class, 'yes'; "),
        (RbueClassifier(Own(), activation=rbue.DropActivation(0.8)), Y > 100, r"\(30, 3\) for 30 rows of 2 classes"),
        (RbueClassifier(Own(), activation=rbue.DropActivation(0.8)), np.arange(60) % 4, "rows of 4 classes"),
        (RbueRegressor(outputs="quantiles"), Y, "'gaussian' or 'values', not 'quantiles'"),
        (RbueRegressor(raw, outputs="gaussian", random_state=0), Y, "returned the variance -.* return its exp"),
        (RbueRegressor(Own(), activation=rbue.DropActivation(0.8)), Y, r"shape \(30, 3\) for 30 rows"),
    ],
)
def test_what_cannot_be_is_said(model, y, message):
    with pytest.raises(InvalidInput, match=message):
        model.fit(X, y)


def test_a_temperature_of_other_weights_is_forgotten():
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    rbue.convert(module, rbue.DropReLU(0.9), example=torch.randn(2, 4).double())
    fresh = RbueClassifier(module, **QUICK).fit(X, NAMES).predict_proba(X)
    rbue.set_temperature(module, 5.0)
    assert np.array_equal(RbueClassifier(module, **QUICK).fit(X, NAMES).predict_proba(X), fresh)
    assert rbue.predict(module, torch.randn(2, 4).double(), samples=2).temperature == 5  # the caller's own keeps it
