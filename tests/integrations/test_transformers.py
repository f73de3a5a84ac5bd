"""The mix-in for Trainer: with a stand-in for what it calls of the Trainer, and (slow) with transformers itself."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import rbue
from rbue import InvalidInput
from rbue.integrations.transformers import Sampled

SAMPLES = 9
SEED = 4


class StandIn:
    """The part of ``transformers.Trainer`` that evaluation goes through."""

    label_names = ("labels",)

    def __init__(self, model, batch_size, world_size=1, process_index=0):
        self.model, self.batch_size = model, batch_size
        self.args = SimpleNamespace(world_size=world_size, process_index=process_index)

    def _prepare_inputs(self, inputs):
        return inputs

    def compute_loss_context_manager(self):
        return nullcontext()

    def evaluation_loop(self, data, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"):
        parts = [
            self.prediction_step(self.model, batch, prediction_loss_only) for batch in DataLoader(data, self.batch_size)
        ]
        losses, scores, labels = zip(*parts, strict=True)
        return SimpleNamespace(
            predictions=torch.cat(scores).numpy(),
            label_ids=None if labels[0] is None else torch.cat(labels).numpy(),
            metrics={} if losses[0] is None else {f"{metric_key_prefix}_loss": torch.stack(losses).mean().item()},
        )


class SampledStandIn(Sampled, StandIn):
    pass


class Tokens(nn.Module):
    """Scores of three classes for each of five tokens."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x, labels=None):
        return {"logits": self.layers(x)}


class Classes(Tokens):
    def forward(self, x, labels=None):
        return {"logits": self.layers(x).mean(1)}


def converted(kind):
    torch.manual_seed(0)
    return rbue.convert(kind(), rbue.DropReLU(0.7))


X = torch.randn(11, 5, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(11) % 3


def data(labels):
    return [{"x": x} | ({} if label is None else {"labels": label}) for x, label in zip(X, labels, strict=True)]


@pytest.mark.parametrize("batch_size", [4, 11])
def test_scores_are_those_of_predict(batch_size):
    net = converted(Classes)
    trainer = SampledStandIn(net, batch_size, samples=SAMPLES, seed=SEED)
    found = trainer.evaluation_loop(data(LABELS), "", True)
    expected = rbue.predict(net, X, samples=SAMPLES, seed=SEED)
    assert np.allclose(np.exp(found.predictions), expected.probs, atol=1e-6)
    nll = rbue.metrics.nll(expected.probs, LABELS).item()
    assert found.metrics == {
        "eval_loss": pytest.approx(nll),
        "eval_nll": pytest.approx(nll),
        "eval_ece": pytest.approx(rbue.metrics.ece(expected.probs, LABELS).item()),
        "eval_accuracy": rbue.metrics.accuracy(expected.probs, LABELS).item(),
    }
    assert np.array_equal(trainer.evaluation_loop(data(LABELS), "").predictions, found.predictions)


def test_tokens_without_a_label_do_not_count():
    net = converted(Tokens)
    labels = torch.arange(55).reshape(11, 5) % 3
    labels[:, 3:] = -100
    trainer = SampledStandIn(net, 4, samples=SAMPLES, seed=SEED, outputs="tokens")
    found = trainer.evaluation_loop(data(labels), "", metric_key_prefix="test")
    expected = rbue.predict(net, X, samples=SAMPLES, seed=SEED, outputs="tokens").probs[..., :3]
    assert found.predictions.shape == (11, 5, 3)
    assert found.metrics["test_nll"] == pytest.approx(rbue.metrics.nll(expected, labels[:, :3]).item(), rel=1e-5)
    assert found.metrics["test_loss"] == found.metrics["test_nll"]


class OneForCausalLM(Tokens):
    pass


class SeeingForConditionalGeneration(Tokens):
    config = SimpleNamespace(is_encoder_decoder=False)


@pytest.mark.parametrize(("kind", "later"), [(Tokens, 0), (OneForCausalLM, 1), (SeeingForConditionalGeneration, 1)])
@pytest.mark.parametrize("outputs", [None, "tokens"])
def test_labels_of_a_causal_language_model_come_one_place_later(kind, later, outputs):
    net, labels = converted(kind), torch.arange(55).reshape(11, 5) % 3
    trainer = SampledStandIn(net, 4, samples=SAMPLES, seed=SEED, outputs=outputs)
    found = trainer.evaluation_loop(data(labels), "")
    probs = rbue.predict(net, X, samples=SAMPLES, seed=SEED, outputs="tokens").probs
    assert np.allclose(np.exp(found.predictions), probs.movedim(1, -1), atol=1e-6)
    probs, truth = probs[..., : 5 - later], labels[:, later:]
    assert found.metrics["eval_loss"] == pytest.approx(rbue.metrics.nll(probs, truth).item(), rel=1e-5)
    assert found.metrics["eval_accuracy"] == rbue.metrics.accuracy(probs, truth).item()
    trainer._seen = 0
    loss, _, _ = trainer.prediction_step(net, {"x": X, "labels": labels}, True)
    assert loss.item() == pytest.approx(found.metrics["eval_nll"], rel=1e-5)


class OneForConditionalGeneration(Tokens):
    """Its decoder reads ``x`` where it has no input of its own."""

    config = SimpleNamespace(is_encoder_decoder=True)

    def forward(self, x, decoder_input_ids=None, labels=None):
        read = x if decoder_input_ids is None else x + decoder_input_ids[..., None]
        return super().forward(read)


class TwoForConditionalGeneration(OneForConditionalGeneration):
    def prepare_decoder_input_ids_from_labels(self, labels):
        return labels.roll(1, 1)


def test_the_decoder_reads_the_labels():
    net, labels = converted(TwoForConditionalGeneration), torch.arange(55).reshape(11, 5) % 3
    found = SampledStandIn(net, 4, samples=SAMPLES, seed=SEED).evaluation_loop(data(labels), "")
    given = {"x": X, "decoder_input_ids": labels.roll(1, 1)}
    probs = rbue.predict(net, given, samples=SAMPLES, seed=SEED, outputs="tokens").probs
    assert np.allclose(np.exp(found.predictions), probs.movedim(1, -1), atol=1e-6)
    assert found.metrics["eval_loss"] == pytest.approx(rbue.metrics.nll(probs, labels).item(), rel=1e-5)
    net, trainer = converted(OneForConditionalGeneration), SampledStandIn
    with pytest.raises(InvalidInput, match=r"decoder's input of the labels.*; add 'decoder_input_ids' to the data"):
        trainer(net, 11).evaluation_loop(data(labels), "")
    rows = [{"x": x, "decoder_input_ids": one.roll(1), "labels": one} for x, one in zip(X, labels, strict=True)]
    assert trainer(net, 11, samples=SAMPLES, seed=SEED).evaluation_loop(rows, "").metrics == {
        name: pytest.approx(value, rel=1e-5) for name, value in found.metrics.items()
    }


def test_predictions_that_became_something_else_are_not_scored():
    class Probabilities(StandIn):  # preprocess_logits_for_metrics
        def evaluation_loop(self, *args):
            found = super().evaluation_loop(*args)
            found.predictions = np.exp(found.predictions)
            return found

    class SampledProbabilities(Sampled, Probabilities):
        pass

    net = converted(Classes)
    nll = rbue.metrics.nll(rbue.predict(net, X, samples=SAMPLES, seed=SEED).probs, LABELS).item()
    found = SampledProbabilities(net, 11, samples=SAMPLES, seed=SEED).evaluation_loop(data(LABELS), "")
    assert found.metrics == {"eval_loss": pytest.approx(nll)}


def test_processes_number_their_batches_apart():
    net = converted(Classes)
    expected = rbue.predict(net, X[:8], samples=SAMPLES).probs
    for process in (0, 1):
        mine = [one for k, one in enumerate(data(LABELS)[:8]) if k // 2 % 2 == process]  # batches of two, in turn
        trainer = SampledStandIn(net, 2, 2, process, samples=SAMPLES)
        found = torch.from_numpy(trainer.evaluation_loop(mine, "").predictions).exp()
        assert torch.allclose(found, expected.reshape(2, 2, 2, 3)[:, process].flatten(0, 1), atol=1e-6)


class Configured(Classes):
    """As models of transformers are, one column for each label."""

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)
        if config["num_labels"] == 1:
            self.layers[2] = nn.Linear(8, 1)


@pytest.mark.parametrize(
    ("config", "labels", "outputs"),
    [
        ({"num_labels": 1}, torch.linspace(-1, 1, 11), "values"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.ones(11, 3), "multilabel"),
        ({"num_labels": 3, "problem_type": None}, torch.ones(11, 3), "multilabel"),
    ],
)
def test_other_problems(config, labels, outputs):
    torch.manual_seed(0)
    net = rbue.convert(Configured(**config), rbue.DropReLU(0.7))
    found = SampledStandIn(net, 11, samples=SAMPLES).evaluation_loop(data(labels), "")
    expected = rbue.predict(net, X, samples=SAMPLES, outputs=outputs)
    assert np.allclose(found.predictions, rbue.integrations.as_outputs(expected), atol=1e-5)
    if outputs == "values":
        loss = (expected.mean[:, 0] - labels).square().mean()
    else:
        loss = nn.functional.binary_cross_entropy(expected.probs, labels)
    assert found.metrics == {"eval_loss": pytest.approx(loss.item(), rel=1e-5)}


def test_what_labels_have_said_holds_for_data_without_them():
    net = converted(Classes)
    trainer = SampledStandIn(net, 4, samples=SAMPLES)
    found = [trainer.evaluation_loop(one, "").predictions for one in (data(torch.ones(11, 3)), data([None] * 11))]
    assert np.array_equal(*found)
    assert np.allclose(trainer.evaluation_loop(data(LABELS), "").predictions, rbue.predict(net, X, SAMPLES).probs.log())


class Maps(nn.Module):
    """Three classes for each of 3x3 places: as many as the map is wide and high."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x, labels=None):
        return {"logits": self.layers(x)}


class MapsForSemanticSegmentation(Maps):
    config = SimpleNamespace(semantic_loss_ignore_index=255, num_labels=3)


PLACES = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("kind", "ignored"), [(Maps, -100), (MapsForSemanticSegmentation, 255)])
def test_maps(kind, ignored):
    net, labels = converted(kind), torch.arange(54).reshape(6, 3, 3) % 7 % 3
    labels[:, 0] = ignored
    rows = [{"x": x, "labels": one} for x, one in zip(PLACES, labels, strict=True)]
    found = SampledStandIn(net, 4, samples=SAMPLES).evaluation_loop(rows, "")
    probs = rbue.predict(net, PLACES, SAMPLES).probs
    assert np.allclose(np.exp(found.predictions), probs, atol=1e-6)
    nll = rbue.metrics.nll(probs[:, :, 1:], labels[:, 1:]).item()
    assert found.metrics["eval_loss"] == found.metrics["eval_nll"] == pytest.approx(nll, rel=1e-5)
    assert found.metrics["eval_accuracy"] == rbue.metrics.accuracy(probs[:, :, 1:], labels[:, 1:]).item()


def test_maps_smaller_than_their_labels():
    labels = torch.arange(6 * 36).reshape(6, 6, 6) % 5 % 3
    labels[:, :2] = 255
    rows = [{"x": x, "labels": one} for x, one in zip(PLACES, labels, strict=True)]
    net = converted(MapsForSemanticSegmentation)
    found = SampledStandIn(net, 6, samples=SAMPLES).evaluation_loop(rows, "")
    large = nn.functional.interpolate(rbue.predict(net, PLACES, SAMPLES).probs.log(), (6, 6), mode="bilinear")
    loss = nn.functional.cross_entropy(large, labels, ignore_index=255).item()
    assert found.metrics == {"eval_loss": pytest.approx(loss, rel=1e-5)}
    assert found.predictions.shape == (6, 3, 3, 3)
    with pytest.raises(InvalidInput, match=r"labels of shape \(6, 6, 6\) do not fit scores \(6, 3, 3, 3\)"):
        SampledStandIn(converted(Maps), 6, samples=2).evaluation_loop(rows, "")


class OneForCTC(Tokens):
    pass


def test_labels_without_a_loss():
    net, padded = converted(OneForCTC), torch.full((11, 5), -100)
    with pytest.raises(InvalidInput, match="the labels of OneForCTC are not one for each place of what it returns"):
        SampledStandIn(net, 4, samples=2).evaluation_loop(data(padded), "")
    found = SampledStandIn(net, 4, samples=2).evaluation_loop(data([None] * 11), "").predictions
    assert np.allclose(np.exp(found).sum(2), 1)
    boxes = {"x": X, "labels": [{"boxes": torch.rand(2, 4)}] * 11}
    with pytest.raises(InvalidInput, match="the labels of Tokens are not one for each place"):
        SampledStandIn(net, 11, samples=2).prediction_step(converted(Tokens), boxes, False)


def test_tokens_that_nothing_names():
    rows = data([None] * 11)
    with pytest.raises(
        InvalidInput, match=r"Tokens returned shape \(4, 5, 3\).*give outputs='tokens' if they come last"
    ):
        SampledStandIn(converted(Tokens), 4, samples=2).evaluation_loop(rows, "")
    for outputs in ("tokens", "logits"):
        SampledStandIn(converted(Tokens), 4, samples=2, outputs=outputs).evaluation_loop(rows, "")


def test_data_without_labels():
    found = SampledStandIn(converted(Classes), 4, samples=2).evaluation_loop([{"x": x} for x in X], "")
    assert found.predictions.shape == (11, 3)
    assert found.label_ids is None
    assert found.metrics == {}


def test_outputs_that_there_are_none_of():
    with pytest.raises(InvalidInput, match="'quantiles'"):
        SampledStandIn(converted(Classes), 4, outputs="quantiles")


@pytest.mark.slow
def test_with_transformers_itself(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class SampledTrainer(Sampled, transformers.Trainer):
        pass

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    net = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, num_labels=3, **sizes))
    tokens, mask = torch.randint(0, 50, (22, 9)), torch.ones(22, 9, dtype=torch.int64)
    mask[::2, 6:] = 0
    labels = torch.randint(0, 3, (22,))
    rbue.convert(net, rbue.DropActivation(0.8), example={"input_ids": tokens})
    rows = [
        {"input_ids": one, "attention_mask": two, "labels": three}
        for one, two, three in zip(tokens, mask, labels, strict=True)
    ]

    def trainer(batch_size, **more):
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            per_device_eval_batch_size=batch_size,
            learning_rate=0.01,
            **more,
        )
        return SampledTrainer(
            model=net, args=arguments, train_dataset=rows, eval_dataset=rows, samples=SAMPLES, seed=SEED
        )

    best = {"metric_for_best_model": "nll", "greater_is_better": False, "load_best_model_at_end": True}
    training = trainer(8, num_train_epochs=3, eval_strategy="epoch", save_strategy="epoch", **best)
    training.train()
    lowest = min(one["eval_nll"] for one in training.state.log_history if "eval_nll" in one)
    assert training.state.best_metric == lowest == training.evaluate()["eval_nll"]

    found = [trainer(batch_size).predict(rows) for batch_size in (5, 8, 22)]
    expected = rbue.predict(net, {"input_ids": tokens, "attention_mask": mask}, samples=SAMPLES, seed=SEED)
    for one in found:
        assert np.allclose(np.exp(one.predictions), expected.probs, atol=1e-6)
        assert (one.predictions.argmax(1) == expected.label.numpy()).all()
        assert one.metrics["test_nll"] == pytest.approx(rbue.metrics.nll(expected.probs, labels).item(), rel=1e-5)
        assert one.metrics["test_ece"] == pytest.approx(rbue.metrics.ece(expected.probs, labels).item(), abs=1e-6)
        assert one.metrics["test_loss"] == one.metrics["test_nll"]
    assert np.array_equal(trainer(5).predict(rows).predictions, found[0].predictions)

    def compute_metrics(evaluated):
        return {"mine": (evaluated.predictions.argmax(1) == evaluated.label_ids).mean()}

    own = trainer(5)
    own.compute_metrics = compute_metrics
    scores = own.evaluate()
    assert scores["eval_mine"] == scores["eval_accuracy"]
