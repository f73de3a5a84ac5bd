"""The Lightning callback, with Lightning itself; importing that takes seconds."""

import sys
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue import ConversionError, InvalidInput, RbueError

SAMPLES = 9
X = torch.randn(30, 20, generator=torch.Generator().manual_seed(1))
Y = torch.arange(30) % 3


def test_without_lightning_the_error_says_what_to_install(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "rbue.integrations.lightning", raising=False)
    with pytest.raises(RbueError, match=r"pip install 'rbue\[lightning\]'"):
        import rbue.integrations.lightning  # noqa: F401


def network(outputs=3):
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, outputs))


@pytest.fixture(scope="module")
def lit():
    """A class of modules around one network, and the callback."""
    pl = pytest.importorskip("lightning.pytorch")
    from rbue.integrations import lightning

    class Lit(pl.LightningModule):
        Sampling = lightning.Sampling

        def __init__(self, convert=True, **parts):
            super().__init__()
            torch.manual_seed(0)
            self.net = network()
            if convert:
                rbue.convert(self.net, rbue.DropReLU(0.7), example=X[:2])
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("own_loss", loss, batch_size=len(batch[0]))

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Lit


def loader(batch_size=8):
    return DataLoader(TensorDataset(X, Y), batch_size)


@pytest.fixture
def trainer(tmp_path):
    from lightning.pytorch import Trainer

    def make(*callbacks, **settings):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        checkpoints = {"enable_checkpointing": any("Checkpoint" in type(one).__name__ for one in callbacks)}
        given = {"accelerator": "cpu", "default_root_dir": tmp_path, **quiet, **checkpoints, **settings}
        return Trainer(callbacks=list(callbacks), **given)

    return make


def expected_scores(net, x=X, y=Y, stage="val", **settings):
    probs = rbue.predict(net, x, samples=SAMPLES, seed=2, **settings).probs
    functions = {name: getattr(rbue.metrics, name) for name in ("accuracy", "nll", "ece", "brier")}
    scores = {f"{stage}_{name}": function(probs, y).item() for name, function in functions.items()}
    scores[f"{stage}_aurc"] = rbue.metrics.aurc(probs.amax(1), probs.argmax(1) == y).item()
    return {name: pytest.approx(value, rel=1e-5) for name, value in scores.items()}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 30])
def test_validation_and_test_are_predict(lit, trainer, batch_size):
    module, fit = lit(), trainer(lit.Sampling(SAMPLES, seed=2))
    (found,) = fit.validate(module, loader(batch_size), verbose=False)
    expected = expected_scores(module.net)
    assert found == expected | {"own_loss": expected["val_nll"]}  # a step of one's own sees the mean
    assert fit.validate(module, loader(batch_size), verbose=False) == [found]
    (found,) = fit.test(module, loader(batch_size), verbose=False)
    assert found == expected_scores(module.net, stage="test") | {"own_loss": expected["val_nll"]}
    assert not module.net._forward_hooks


@pytest.mark.slow
def test_prediction_is_predict(lit, trainer):
    module, fit = lit(), trainer(lit.Sampling(SAMPLES, seed=2))
    found = fit.predict(module, loader(8))
    expected = rbue.predict(module.net, X, samples=SAMPLES, seed=2)
    assert [len(one) for one in found] == [8, 8, 8, 6]
    assert all(isinstance(one, rbue.Prediction) for one in found)
    assert torch.allclose(torch.cat([one.probs for one in found]), expected.probs, atol=1e-6)
    assert torch.equal(torch.cat([one.votes for one in found]), expected.votes)
    assert "predict_step" not in vars(module)


@pytest.mark.slow
def test_a_predict_step_of_ones_own_sees_the_mean(lit, trainer):
    class Own(lit):
        def predict_step(self, batch):
            return self(batch[0]).softmax(1)

    module = Own()
    found = trainer(lit.Sampling(SAMPLES, seed=2)).predict(module, loader(8))
    assert torch.allclose(torch.cat(found), rbue.predict(module.net, X, samples=SAMPLES, seed=2).probs, atol=1e-6)


@pytest.mark.slow
def test_training_goes_on_as_without_and_checkpoints_see_the_scores(lit, trainer, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    def trained(*callbacks, **settings):
        module = lit()
        rbue.seed(module.net, 5)
        fit = trainer(*callbacks, max_epochs=3, **settings)
        torch.manual_seed(7)
        fit.fit(module, loader(8), loader(8))
        return module, fit

    checkpoint = ModelCheckpoint(tmp_path, monitor="val_nll", save_top_k=3, filename="{epoch}")
    module, fit = trained(lit.Sampling(SAMPLES, seed=2), checkpoint)
    plain, _ = trained(limit_val_batches=0)
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    assert torch.equal(module.net(X), plain.net(X))  # the next bits are the same too
    expected = expected_scores(module.net)
    assert {name: fit.callback_metrics[name].item() for name in expected} == expected
    values = {path.rpartition("/")[2]: float(value) for path, value in checkpoint.best_k_models.items()}
    assert set(values) == {"epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt"}
    assert values["epoch=2.ckpt"] == expected["val_nll"]
    assert float(checkpoint.best_model_score) == min(values.values())


@pytest.mark.slow
def test_several_loaders_are_numbered_apart(lit, trainer):
    module, fit = lit(), trainer(lit.Sampling(SAMPLES, seed=2))
    other = DataLoader(TensorDataset(X[:9], Y[:9]), 4)
    fit.validate(module, [loader(8), other], verbose=False)
    found = fit.callback_metrics
    assert found["val_nll"].item() == expected_scores(module.net)["val_nll"]
    assert found["val_nll_1"].item() == expected_scores(module.net, X[:9], Y[:9])["val_nll"]


@pytest.mark.slow
def test_two_callbacks_do_not_sample_each_other(lit, trainer):
    module = lit()
    few, many = lit.Sampling(3, names="few_{metric}"), lit.Sampling(SAMPLES, names="many_{metric}")
    found = trainer(few, many).validate(module, loader(), verbose=False)[0]
    for name, samples in (("few_nll", 3), ("many_nll", SAMPLES), ("own_loss", SAMPLES)):
        expected = rbue.metrics.nll(rbue.predict(module.net, X, samples=samples).probs, Y).item()
        assert found[name] == pytest.approx(expected, rel=1e-5)
    answers = trainer(few, many).predict(module, loader())
    expected = rbue.predict(module.net, X, samples=SAMPLES)
    assert torch.allclose(torch.cat([one.probs for one in answers]), expected.probs, atol=1e-6)
    assert "predict_step" not in vars(module)


@pytest.mark.slow
@pytest.mark.parametrize("names", ["score", "{stage}", "{loss}", "{stage", "{}_{metric}"])
def test_names_that_do_not_tell_scores_apart(lit, names):
    with pytest.raises(InvalidInput, match=r"give a text with \{metric\} in it"):
        lit.Sampling(names=names)


@pytest.mark.slow
def test_settings_that_predict_does_not_have(lit):
    with pytest.raises(InvalidInput, match=r"no setting 'index', 'temprature'; it has adaptive, .*, temperature\.$"):
        lit.Sampling(temprature=1.5, index=None)


@pytest.mark.parametrize("shape", [(30, 1), (30,)])
def test_the_targets_of_a_binary_cross_entropy(shape, lit, trainer):
    class Binary(lit):
        def validation_step(self, batch, batch_idx):
            loss = F.binary_cross_entropy_with_logits(self.net(batch[0]).reshape(batch[1].shape), batch[1])
            self.log("own_loss", loss, batch_size=len(batch[0]))

    torch.manual_seed(0)
    module = Binary(convert=False, net=rbue.convert(network(1), rbue.DropReLU(0.7), example=X[:2]))
    y = Y == 1
    run = trainer(lit.Sampling(SAMPLES, seed=2, outputs="binary"))
    (found,) = run.validate(module, DataLoader(TensorDataset(X, y.float().reshape(shape)), 8), verbose=False)
    expected = expected_scores(module.net, y=y.long(), outputs="binary")
    assert found == expected | {"own_loss": expected["val_nll"]}
    with pytest.raises(InvalidInput, match=r"labels has dtype torch.float32; give integers"):
        run.validate(module, DataLoader(TensorDataset(X, torch.full(shape, 0.9)), 8), verbose=False)


def test_targets_without_a_class_are_told_of_metrics(lit, trainer):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Maps(lit):
        def validation_step(self, batch, batch_idx):
            self.net(batch[0])

    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    module = Maps(convert=False, net=rbue.convert(net, rbue.DropReLU(0.7), example=torch.rand(2, 1, 4, 4)))
    images, labels = torch.rand(6, 1, 4, 4), torch.arange(96).reshape(6, 4, 4) % 3
    labels[:, 0] = 255
    data = DataLoader(TensorDataset(images, labels), 4)
    with pytest.raises(InvalidInput, match=r"labels holds 255; for 3 classes give 0 to 2; .* add metrics= to Sampling"):
        trainer(lit.Sampling(SAMPLES)).validate(module, data, verbose=False)
    accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3, ignore_index=255, average="micro")
    sampling = lit.Sampling(SAMPLES, metrics=torchmetrics.MetricCollection([accuracy]))
    (found,) = trainer(sampling).validate(module, data, verbose=False)
    probs = rbue.predict(module.net, images, SAMPLES).probs[:, :, 1:]
    assert found == {"val_MulticlassAccuracy": pytest.approx(rbue.metrics.accuracy(probs, labels[:, 1:]).item())}


def test_metrics_that_are_no_collection(lit):
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.MeanSquaredError()
    for metrics, kind in ((metric, "MeanSquaredError"), ([metric], "a list"), ({"error": metric}, "a dict")):
        with pytest.raises(InvalidInput, match=f"metrics is .*{kind}.*; give torchmetrics.MetricCollection"):
            lit.Sampling(metrics=metrics)


@pytest.mark.slow
def test_names_metrics_and_settings(lit, trainer):
    torchmetrics = pytest.importorskip("torchmetrics")
    module = lit()
    metrics = torchmetrics.MetricCollection({"error": torchmetrics.MeanSquaredError()})
    callback = lit.Sampling(SAMPLES, 2, metrics=metrics, names="{stage}/{metric}", outputs="values", network="net")
    targets = DataLoader(TensorDataset(X, torch.randn(30, 3)), 8)

    class Regression(lit):
        def validation_step(self, batch, batch_idx):
            self.log("own", F.mse_loss(self(batch[0]), batch[1]), batch_size=len(batch[0]))

    module = Regression()
    (found,) = trainer(callback).validate(module, targets, verbose=False)
    mean = rbue.predict(module.net, X, samples=SAMPLES, seed=2, outputs="values").mean
    error = (mean - targets.dataset.tensors[1]).square().mean().item()
    assert found == {"val/error": pytest.approx(error), "own": pytest.approx(error)}
    with pytest.raises(InvalidInput, match="usual scores are of class probabilities, which this network does not give"):
        trainer(lit.Sampling(SAMPLES, outputs="values", network="net")).validate(module, targets, verbose=False)


@pytest.mark.slow
def test_a_step_that_does_not_call_the_network_once(lit, trainer):
    class Twice(lit):
        def validation_step(self, batch, batch_idx):
            self(batch[0]), self(batch[0].flip(1))

    class Never(lit):
        def validation_step(self, batch, batch_idx):
            pass

    for kind in (Twice, Never):
        module = kind()
        (found,) = trainer(lit.Sampling(SAMPLES, seed=2)).validate(module, loader(8), verbose=False)
        assert found == expected_scores(module.net)


@pytest.mark.slow
def test_a_module_that_is_converted_itself(lit, trainer):
    module = lit(convert=False)
    rbue.convert(module, rbue.DropReLU(0.7), example=X[:2])
    fit = trainer(lit.Sampling(SAMPLES, seed=2))
    (found,) = fit.validate(module, loader(8), verbose=False)
    expected = expected_scores(module)
    assert found == expected | {"own_loss": expected["val_nll"]}
    assert torch.allclose(fit.predict(module, loader(8))[1].probs, rbue.predict(module, X, SAMPLES, 2).probs[8:16])


@pytest.mark.slow
def test_mixed_precision_is_that_of_the_trainer(lit, trainer):
    class Never(lit):
        def validation_step(self, batch, batch_idx):
            pass

    module = Never()
    fit = trainer(lit.Sampling(SAMPLES, seed=2), precision="bf16-mixed")
    (found,) = fit.validate(module, loader(30), verbose=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert found == expected_scores(module.net)
    assert found["val_nll"] != expected_scores(module.net)["val_nll"]


@pytest.mark.slow
def test_what_cannot_be_is_said_and_leaves_no_trace(lit, trainer):
    def validate(module, data=None, **settings):
        trainer(lit.Sampling(SAMPLES, **settings)).validate(module, data or loader(8), verbose=False)

    with pytest.raises(ConversionError, match="Lit holds no converted network"):
        validate(lit(convert=False))
    with pytest.raises(InvalidInput, match=r"outside its converted network 'net', such as 'head\.weight'"):
        validate(lit(head=nn.Linear(3, 3)))
    validate(lit(head=nn.Linear(3, 3)), network="net")
    with pytest.raises(InvalidInput, match="several converted networks; give network='net'"):
        validate(lit(other=rbue.convert(network(), rbue.DropReLU(0.7))))
    with pytest.raises(InvalidInput, match="'nets', but Lit has no module"):
        validate(lit(), network="nets")
    with pytest.raises(InvalidInput, match="samples is 0"):
        lit.Sampling(0)

    class Never(lit):
        def validation_step(self, batch, batch_idx):
            self(batch[0])

    module = Never()
    with pytest.raises(InvalidInput, match="has no targets"):
        validate(module, DataLoader(TensorDataset(X), 8))
    assert not module.net._forward_hooks


@pytest.mark.slow
def test_a_compiled_network_is_found(lit):
    module = lit()
    module.net = torch.compile(module.net)
    assert lit.Sampling(SAMPLES)._find(module) is module.net


def validated(module, trainer, **settings):
    run = trainer(module.Sampling(SAMPLES, **settings))
    run.validate(module, loader(), verbose=False)
    return {name: float(value) for name, value in run.callback_metrics.items()}


@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_the_steps_of_a_compiled_network_get_what_all_samples_say(way, lit, trainer):
    module = lit()
    if way == "wrapped":
        module.net = torch.compile(module.net, backend="eager")
    else:
        module.net.compile(backend="eager")
    scores = validated(module, trainer)
    assert scores["own_loss"] == pytest.approx(scores["val_nll"], rel=1e-5)


class Returns(nn.Module):
    def __init__(self, kind, **more):
        super().__init__()
        self.net, self.kind, self.more = network(), kind, more

    def forward(self, x):
        return self.kind(logits=self.net(x), **self.more)


class Scores(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor | None = None


@dataclass(frozen=True)
class FrozenScores:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


@pytest.mark.parametrize("kind", [dict, SimpleNamespace, Scores])
@pytest.mark.parametrize("more", [{}, {"loss": torch.tensor(1.0)}], ids=["", "loss"])
def test_scores_inside_what_a_network_returns_are_those_of_all_samples(kind, more, lit, trainer):
    class Inside(lit):
        def forward(self, x):
            out = self.net(x)
            return out["logits"] if isinstance(out, dict) else out.logits

    module = Inside(convert=False, net=rbue.convert(Returns(kind, **more), rbue.DropReLU(0.7), example=X[:2]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", rbue.RbueWarning)
        scores = validated(module, trainer)
    assert scores["own_loss"] == pytest.approx(scores["val_nll"], rel=1e-5)
    found = [str(one.message) for one in said if issubclass(one.category, rbue.RbueWarning)]
    assert len(found) == len(more)
    assert all("the loss that the network returns is that of one random pass" in one for one in found)


def test_scores_that_cannot_be_replaced_are_said(lit, trainer):
    class Inside(lit):
        def forward(self, x):
            return self.net(x).logits

    module = Inside(convert=False, net=rbue.convert(Returns(FrozenScores), rbue.DropReLU(0.7), example=X[:2]))
    with pytest.warns(rbue.RbueWarning, match="the scores in a FrozenScores cannot be replaced"):
        validated(module, trainer)


def counting(torchmetrics):
    class Count(torchmetrics.SumMetric):
        def update(self, mean, labels):
            super().update(len(mean))

    return torchmetrics.MetricCollection({"images": Count()})


def test_the_numbers_of_another_head_take_no_place_of_the_logits(lit, trainer):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Inside(lit):
        def forward(self, x):
            out = self.net(x)
            self.own = out["logits"]
            return out["aux"]

    net = Returns(dict, aux=torch.zeros(()))
    net.register_forward_hook(lambda module, args, out: out | {"aux": 5 + out["logits"]})
    module = Inside(convert=False, net=rbue.convert(net, rbue.DropReLU(0.7), example=X[:2]))
    metrics = counting(torchmetrics)
    with pytest.warns(rbue.RbueWarning, match="returns a dict, so your steps' own numbers"):
        validated(module, trainer, outputs=lambda out: out["aux"], metrics=metrics)
    assert float(module.own.mean()) < 3


def test_what_is_not_replaced_is_said(lit, trainer):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x), 0

    class First(lit):
        def forward(self, x):
            return self.net(x)[0]

    module = First(convert=False, net=rbue.convert(Pair(), rbue.DropReLU(0.7), example=X[:2]))
    metrics = counting(torchmetrics)
    with pytest.warns(rbue.RbueWarning, match="a tuple of 2, so your steps' own numbers are those of one random"):
        scores = validated(module, trainer, outputs=lambda out: out[0], metrics=metrics)
    assert scores["val_images"] == len(X)
