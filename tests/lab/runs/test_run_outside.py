"""Images from elsewhere: what networks of every method keep, what a run comes to, and what is not measured again."""

from __future__ import annotations

import json
import math

import pytest
import torch

from rbue import random_stream
from rbue.call_sites import seed as restart
from rbue.decisions import out_of_distribution as ood
from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.data.outside import at_most, outside
from rbue.lab.methods.gaussian_layers import weight_draw
from rbue.lab.runs import out_of_distribution as outsiders
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import fresh_network, load_networks
from rbue.lab.runs.out_of_distribution import OF_SPREAD, SCORES, OodSetting, means, measure_outside, sets_for
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.training import Normalise, recipe_for
from rbue.sampling.adaptive import Adaptive

CPU = torch.device("cpu")
METHODS = ("single", "mc-dropout:0.3", "mc-droprelu:0.8", "mc-rrelu", "svi", "deep-ensemble:2", "deep-ensemble:2[svi]")
SETTING = OodSetting(samples=6, images=60, training_images=200, k=5)


def config(method, model="small_cnn"):
    return RunConfig(method=method, model=model, width=0.25, recipe=recipe_for("digits", epochs=1, batch=128))


def plainly(run, networks, images, samples):
    """Mean logits and features of samples that are drawn one by one, and the mean energy."""
    x = Normalise(images.mean, images.std, CPU)(torch.from_numpy(images.images))
    logits, features = [], []
    hooks = [one.head.register_forward_pre_hook(lambda _, args: features.append(args[0].clone())) for one in networks]
    count = samples if run.parsed.limit is None else run.parsed.limit
    with torch.no_grad():
        for number, network in enumerate(networks):
            network.eval()
            if hasattr(network, "_rbue_conversion"):
                restart(network, number)
            for sample in range(count // len(networks)):
                if "svi" in run.method:
                    with weight_draw(network, number, sample):
                        logits.append(network(x))
                else:
                    logits.append(network(x))
    for hook in hooks:
        hook.remove()
    stacked = torch.stack(logits)
    return stacked.mean(0), torch.stack(features).mean(0), -stacked.logsumexp(2).mean(0)


def check_kept(method, model="small_cnn"):
    run, images = config(method, model), at_most(data.load("digits", "test"), 9)
    networks = [fresh_network(member, images, CPU) for member in run.members()]
    found = predict_images(run, networks, images, Passes(6), CPU, keep=("logits", "features"))
    for values, expected in zip(
        (found.logits, found.features, found.energy), plainly(run, networks, images, 6), strict=True
    ):
        torch.testing.assert_close(values, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for net in networks for module in net.modules())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_mean_of_its_samples(method):
    check_kept(method)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "vgg13", "densenet121"])
@pytest.mark.parametrize("method", METHODS)
def test_every_network_of_the_laboratory_does(method, model):
    check_kept(method, model)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in ("deep-ensemble:2", "mc-droprelu:0.9"):
        train_run(config(method), root, CPU)
    return root


def test_what_is_measured(root):
    run = config("mc-droprelu:0.9")
    entry = measure_outside(run, root, CPU, ["colour-digits"], SETTING)
    networks = load_networks(run, root, CPU)
    training = at_most(data.load("digits", "train"), 200)
    inside = at_most(data.load("digits", "test"), 60)
    others = outside("colour-digits", inside, 60).images

    def predicted(images):
        return predict_images(run, networks, images, Passes(6), CPU, keep=("logits", "features"))

    detectors = {
        "nearest": ood.KNearest.fit(predicted(training), k=5),
        "mahalanobis": ood.Mahalanobis.fit(predicted(training), training.labels),
    }
    one, other = (ood.scores(predicted(images), detectors=detectors) for images in (inside, others))
    found = entry["sets"]["colour-digits"]
    assert tuple(found["scores"]) == SCORES
    for name, measures in found["scores"].items():
        assert measures == pytest.approx(ood.detection(one[name], other[name])._asdict()), name
    for which, scored in (("inside", one), ("outside", other)):
        shares = scored["entropy"] / math.log(10)
        counted = [int(((shares * 24).floor().clamp(0, 23) == place).sum()) for place in range(24)]
        assert found["entropies"][which] == counted
    assert (entry["samples"], entry["k"], entry["training_data"]["count"]) == (6, 5, 200)
    assert found["data"]["variant"].endswith("resized from 16x16 to 8x8 (antialiased bilinear)")
    assert found["data"]["mean"] == list(inside.mean)
    assert {"environment", "device", "images", "left_out"} <= found.keys()
    kept = json.loads((RunFolder.of(run, root).path / "ood.json").read_text())
    assert kept == {"samples=6,seed=0,images=60,training_images=200,k=5": entry}


def test_nothing_is_measured_twice_and_only_what_is_missing(root, monkeypatch):
    run = config("deep-ensemble:2")
    first = measure_outside(run, root, CPU, ["colour-digits"], SETTING)
    scores = first["sets"]["colour-digits"]["scores"]
    assert first["samples"] == 2
    assert set(SCORES) == set(scores)
    looked = []
    usual = outsiders.predict_images
    monkeypatch.setattr(
        outsiders, "predict_images", lambda *given, **more: looked.append(given[2].name) or usual(*given, **more)
    )
    again = measure_outside(run, root, CPU, ["colour-digits"], OodSetting(50, 7, images=60, training_images=200, k=5))
    assert again == first  # an ensemble gave all samples it has, whatever was asked for
    assert looked == []
    more = measure_outside(run, root, CPU, ["colour-digits-few", "colour-digits"], SETTING)
    assert looked == ["digits", "digits", "colour-digits-few"]
    assert list(more["sets"]) == ["colour-digits-few", "colour-digits"]
    assert more["sets"]["colour-digits"] == first["sets"]["colour-digits"]
    both = means(more, ["colour-digits", "colour-digits-few"])["energy"]["auroc"]
    assert both == pytest.approx(sum(one["scores"]["energy"]["auroc"] for one in more["sets"].values()) / 2)
    measure_outside(config("mc-droprelu:0.9"), root, CPU, ["colour-digits"], SETTING)
    looked.clear()
    monkeypatch.setattr(random_stream, "VERSION", random_stream.VERSION + 1)
    measure_outside(run, root, CPU, ["colour-digits"], SETTING)
    assert looked == []  # nothing random was drawn
    measure_outside(config("mc-droprelu:0.9"), root, CPU, ["colour-digits"], SETTING)
    assert looked == ["digits", "digits", "colour-digits"]
    looked.clear()
    folder = RunFolder.of(run.members()[1], root)
    training = folder.read("training")
    folder.write("training", {**training, "seconds": training["seconds"] + 1})  # as if it was trained again
    assert measure_outside(run, root, CPU, ["colour-digits"], SETTING)["sets"].keys() == {"colour-digits"}
    assert looked == ["digits", "digits", "colour-digits"]


@pytest.mark.parametrize("method", ["snapshot-ensemble:2", "packed-ensemble:2", "deep-ensemble:2[treenet:2]"])
def test_methods_without_one_classifier_have_no_detectors(method, root):
    run = RunConfig(method=method, width=0.25, recipe=recipe_for("digits", epochs=2, batch=512))
    train_run(run, root, CPU)
    entry = measure_outside(run, root, CPU, ["colour-digits-few"], SETTING)
    assert tuple(entry["sets"]["colour-digits-few"]["scores"]) == SCORES[:-2]
    assert "training_data" not in entry


def test_one_sample_has_no_spread_to_score(root):
    entry = measure_outside(config("single"), root, CPU, ["colour-digits-few"], SETTING)
    assert entry["samples"] == 1
    assert tuple(entry["sets"]["colour-digits-few"]["scores"]) == tuple(one for one in SCORES if one not in OF_SPREAD)


def test_every_way_to_measure_has_an_entry_of_its_own():
    ways = [{}, {"samples": 20}, {"seed": 1}, {"draws": "balanced"}, {"augment": "flip"}]
    ways += [{"images": 9}, {"training_images": 9}, {"k": 9}]
    assert len({OodSetting(**one).name(config("mc-droprelu:0.9")) for one in ways}) == len(ways)
    with pytest.raises(InvalidInput, match="as many samples of each; leave adaptive out"):
        OodSetting(adaptive=Adaptive())


def test_sets_that_are_usual_or_named():
    assert sets_for(RunConfig(data="cifar10"), [], []) == (["cifar100", "tiny-imagenet"], ["svhn"])
    assert sets_for(RunConfig(data="cifar10"), [], ["svhn", "svhn"]) == ([], ["svhn"])
    with pytest.raises(InvalidInput, match="no usual set outside of digits"):
        sets_for(RunConfig(), [], [])
    with pytest.raises(InvalidInput, match="svhn is named as near and as far"):
        sets_for(RunConfig(), ["svhn"], ["svhn"])
    with pytest.raises(InvalidInput, match="images is 0"):
        OodSetting(images=0)
