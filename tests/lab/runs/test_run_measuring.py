"""One sweep of samples gives what separate predictions give, and a run is measured by it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rbue import metrics, random_stream
from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.lab import data
from rbue.lab.runs import measuring
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import diversity, evaluate_run, measure, predict_images, predict_images_at
from rbue.lab.runs.networks import NoWeights, fresh_network, load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.probabilities import belong_to, read_probs, write_probs
from rbue.lab.runs.training import train_run, train_runs
from rbue.lab.training import recipe_for
from rbue.prediction import of_samples
from rbue.sampling.adaptive import Adaptive

CPU = torch.device("cpu")
METHODS = ("mc-droprelu:0.8", "mc-dropout:0.2", "svi", "single", "deep-ensemble:2")
DRAWS = ("independent", "balanced")
FIELDS = ("probs", "variance", "votes", "expected_entropy", "samples_used")


def few():
    images = data.load("digits", "test")
    return replace(images, images=images.images[:8], labels=images.labels[:8])


def config(method):
    return RunConfig(method=method, width=0.5, recipe=recipe_for("digits", epochs=1, batch=64))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        train_run(config(method), root, CPU)
    return root


@pytest.mark.parametrize("method", METHODS)
def test_predictions_on_the_way_are_those_of_fewer_samples(root, method):
    run = config(method)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    limit = run.parsed.limit
    counts = sorted({count if limit is None else min(count, limit) for count in (1, 2, 5, 9)})
    swept = predict_images_at(run, networks, images, [1, 2, 5], Passes(9, 3), CPU, keep=4)
    assert [int(one.samples_used[0]) for one in swept] == counts
    for count, one in zip(counts, swept, strict=True):
        alone = predict_images(run, networks, images, Passes(count, 3), CPU, return_samples=True)
        for name in FIELDS:
            torch.testing.assert_close(getattr(one, name), getattr(alone, name), rtol=1e-6, atol=1e-8)
    assert [one.samples for one in swept[:-1]] == [None] * (len(counts) - 1)
    torch.testing.assert_close(swept[-1].samples, alone.samples[:4], rtol=1e-5, atol=1e-6)  # of other batches


@pytest.mark.parametrize("method", ["single", "mc-droprelu:0.8"])
def test_numbers_too_large_for_float16_are_measured_in_bfloat16(root, monkeypatch, method):
    run, images = config(method), few()
    networks = load_networks(run, root, CPU)
    monkeypatch.setattr(measuring, "HALVES", {"cpu": (torch.float16, torch.bfloat16)})
    fine = predict_images(run, networks, images, Passes(3), CPU)

    layers = [module for module in networks[0].modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in networks[0].modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():  # the same network, but for eps
        layers[0].weight.mul_(1e6)
        norms[0].running_mean.mul_(1e6)
        norms[0].running_var.mul_(1e12)
    with pytest.warns(RbueWarning, match=r"exceed those of torch.float16; it is measured in torch.bfloat16"):
        wide = predict_images(run, networks, images, Passes(3), CPU)
    with pytest.warns(RbueWarning, match=r"measured in torch.bfloat16"):
        (swept,) = predict_images_at(run, networks, images, [], Passes(3), CPU, keep=1)
    torch.testing.assert_close(wide.probs, fine.probs, rtol=0, atol=0.05)
    assert torch.equal(swept.probs, wide.probs)


@pytest.mark.parametrize("samples", [2, 12])
def test_a_run_is_measured_on_the_way(own, samples):
    run = config("mc-droprelu:0.8")
    result = evaluate_run(run, own, CPU, samples=samples, seed=1)
    networks, images = load_networks(run, own, CPU), data.load("digits", "test")
    labels = torch.from_numpy(images.labels)
    assert [row["samples"] for row in result["by_samples"]] == [count for count in (1, 4, 10) if count < samples]
    for row in [*result["by_samples"], result]:
        alone = measure(predict_images(run, networks, images, Passes(row["samples"], 1), CPU), labels)
        assert {name: row[name] for name in alone} == pytest.approx(alone, rel=1e-5, abs=1e-7)  # of other batches
    first = predict_images(run, networks, images, Passes(4, 1), CPU, return_samples=True)
    for name, value in diversity(first).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-8)


def test_balanced_measurements_have_a_key_of_their_own_and_independent_diversity(own):
    run = config("mc-droprelu:0.8")
    independent, balanced = (evaluate_run(run, own, CPU, samples=5, draws=draws) for draws in DRAWS)
    assert (independent["draws"], balanced["draws"]) == ("independent", "balanced")
    assert list(RunFolder.of(run, own).entries("results"))[-2:] == [
        "samples=5,seed=0",
        "samples=5,seed=0,draws=balanced",
    ]
    assert evaluate_run(run, own, CPU, samples=5, draws="balanced") == balanced
    assert balanced["nll"] != independent["nll"]
    assert balanced["jsd"] == independent["jsd"]
    networks, images = load_networks(run, own, CPU), data.load("digits", "test")
    found = predict_images(run, networks, images, Passes(5, draws="balanced"), CPU)
    assert found.draws == "balanced"
    assert balanced["nll"] == pytest.approx(float(metrics.nll(found.probs, torch.from_numpy(images.labels))), rel=1e-5)


def test_what_has_no_balanced_draws_says_so_or_has_nothing_to_balance(own):
    with pytest.raises(InvalidInput, match="svi has no balanced draws; use independent ones"):
        evaluate_run(config("svi"), own, CPU, samples=2, draws="balanced")
    assert evaluate_run(config("single"), own, CPU, samples=2, draws="balanced")["draws"] == "independent"
    assert not config("deep-ensemble:2").parsed.balances
    assert config("deep-ensemble:2[mc-rrelu]").parsed.balances
    with pytest.raises(InvalidInput, match="draws must be"):
        evaluate_run(config("single"), own, CPU, draws="even")


def test_early_stopping_counts_on_the_balance_of_a_run(own):
    run, rule = config("mc-droprelu:0.8"), Adaptive(tolerance=0.02, first=5)
    networks, images = load_networks(run, own, CPU), data.load("digits", "test")
    drawn = {
        draws: predict_images(run, networks, images, Passes(100, 0, rule, draws), CPU).samples_used.sum()
        for draws in DRAWS
    }
    assert drawn["balanced"] < 0.9 * drawn["independent"]


def test_a_method_that_is_to_give_all_its_samples_does_not_stop_early():
    """Its rows say that nothing random is left. The members of a fresh one are equal, so that it could."""
    run, rule = config("snapshot-ensemble:8"), Adaptive(0.9, 0.5, first=4)
    images = data.load("digits", "test").take(np.arange(3), "test", None)
    network = fresh_network(run, images, CPU)
    used = [predict_images(run, [network], images, Passes(count, 0, rule), CPU).samples_used.min() for count in (7, 9)]
    assert used == [4, 8]


@pytest.mark.parametrize("method", ["mc-droprelu:0.8", "deep-ensemble:2", "svi"])
def test_a_network_may_change_its_input_in_place(root, method):
    run = config(method)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    expected = predict_images(run, networks, images, Passes(3), CPU)

    def spoil(_, inputs, out):
        inputs[0].zero_()

    for network in networks:
        network.register_forward_hook(spoil)
    at_once = predict_images(run, networks, images, Passes(3), CPU)
    on_the_way = predict_images_at(run, networks, images, [1], Passes(3), CPU, keep=0)[-1]
    for found in (at_once, on_the_way):
        torch.testing.assert_close(found.probs, expected.probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["single", "mc-droprelu:0.8", "svi"])
def test_small_batches_give_the_same(root, method, monkeypatch):
    run = config(method)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    expected = predict_images(run, networks, images, Passes(3), CPU)
    calls = []
    networks[0].register_forward_hook(lambda _, inputs, out: calls.append(len(inputs[0])))
    monkeypatch.setitem(measuring.BATCH_PIXELS, "cpu", 100 * 8 * 8)
    found = predict_images(run, networks, images, Passes(3), CPU)
    assert len(calls) >= len(images) / 100
    torch.testing.assert_close(found.probs, expected.probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["mc-droprelu:0.8", "mc-dropout:0.2", "svi"])
def test_another_seed_draws_other_samples(root, method):
    run = config(method)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    first, again, other = (predict_images(run, networks, images, Passes(1, seed), CPU).probs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-3)


def test_augmented_passes_have_their_seed_and_draws_and_black_borders(root):
    run, images = config("single"), data.load("digits", "test").take(np.arange(64), "test", None)
    networks, seen = load_networks(run, root, CPU), []
    networks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    asked = [
        Passes(2, seed, draws=draws, augment="shift:2") for seed, draws in ((0, DRAWS[0]), (1, DRAWS[0]), (0, DRAWS[1]))
    ]
    first, other, balanced = (predict_images(run, networks, images, passes, CPU).probs for passes in asked)
    assert not torch.allclose(first, other)
    assert not torch.allclose(first, balanced)
    assert not any((x == 0).any() for x in seen), "0 is the mean colour, which no pixel has"


def test_every_number_is_the_measure_it_is_called():
    numbers = torch.Generator().manual_seed(0)
    samples = torch.randn(3, 50, 5, generator=numbers, dtype=torch.float64).mul(2).softmax(2)
    labels = torch.randint(0, 5, (50,), generator=numbers)
    prediction, mean = of_samples(samples), samples.mean(0)
    assert measure(prediction, labels) == pytest.approx(
        {
            "accuracy": float((mean.argmax(1) == labels).double().mean()),
            "ece": float(metrics.ece(mean, labels, bins=30)),
            "nll": float(metrics.nll(mean, labels)),
            "brier": float(metrics.brier(mean, labels)),
            "entropy": float(metrics.entropy(mean).mean()),
            "mutual_information": float(metrics.mutual_information(samples).mean()),
            "aurc": float(metrics.aurc(mean.amax(1), mean.argmax(1) == labels)),
        },
        rel=1e-5,
    )
    found = diversity(prediction)
    for name, matrix in (("jsd", metrics.jsd(samples)), ("dis", metrics.disagreement(samples))):
        pairs = [float(matrix[one]) for one in ((0, 1), (0, 2), (1, 2))]
        assert found[name] == matrix.tolist()
        assert (found[f"mean_{name}"], found[f"max_{name}"]) == (pytest.approx(sum(pairs) / 3), max(pairs))


def test_an_ensemble_costs_what_its_members_cost(own):
    whole = config("deep-ensemble:2")
    result = evaluate_run(whole, own, CPU)
    members = [RunFolder.of(member, own).read("training") for member in whole.members()]
    assert result["parameters"] == sum(one["parameters"] for one in members)
    assert result["training_seconds"] == sum(one["seconds"] for one in members)
    files = [RunFolder.of(member, own).path / "weights.safetensors" for member in whole.members()]
    assert result["stored_bytes"] == sum(file.stat().st_size for file in files) > 4 * result["parameters"]
    assert 0 < result["prediction_seconds"] < 60


def test_what_stands_in_several_files_is_stored_whole(tmp_path):
    for name in ("weights-00001-of-00002", "weights-00002-of-00002", "state"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"1234")
    assert RunFolder(tmp_path).stored_bytes == 8


def test_probabilities_taken_for_logits_are_mentioned(root):
    run = config("single")
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    networks[0].register_forward_hook(lambda _, inputs, out: out.softmax(1))
    remedy = "look like probabilities.*; if it ends in a softmax or a sigmoid, leave that out and train it again"
    with pytest.warns(RbueWarning, match=remedy):
        predict_images_at(run, networks, images, [], Passes(1), CPU, keep=0)
    with pytest.warns(RbueWarning, match=remedy):
        predict_images(run, networks, images, Passes(1), CPU)


def test_an_ensemble_has_no_curve_of_samples_and_all_members_are_compared(own, monkeypatch):
    monkeypatch.setattr(measuring, "DIVERSITY_SAMPLES", 1)
    result = evaluate_run(config("deep-ensemble:2"), own, CPU, samples=100)
    assert (result["by_samples"], result["samples"], len(result["jsd"])) == ([], 2, 2)


@pytest.fixture
def own(root, tmp_path):
    """A copy of the runs to change."""
    return shutil.copytree(root, tmp_path / "runs")


def take_weights(folder):
    for path in folder.path.glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize("was_measured", [False, True])
def test_an_ensemble_joins_stored_probabilities_and_weights(own, was_measured):
    """One member as it is published, without weights; the other with weights, but without its probabilities."""
    whole = config("deep-ensemble:2")
    wanted = evaluate_run(replace(whole, seed=0), own, CPU)
    shutil.rmtree(RunFolder.of(whole, own).path)
    published, here = whole.members()
    evaluate_run(published, own, CPU)
    take_weights(RunFolder.of(published, own))
    if was_measured:
        evaluate_run(here, own, CPU)
        RunFolder.of(here, own).probs.unlink()
    result = evaluate_run(whole, own, CPU)
    assert (result["combined_from"], result["samples"]) == ("stored probabilities", 2)
    for name in ("accuracy", "nll", "brier", "mean_jsd", "mean_dis"):
        assert result[name] == pytest.approx(wanted[name], abs=6e-3), name
    members = [read_probs(RunFolder.of(member, own).probs) for member in (published, here)]
    assert read_probs(RunFolder.of(whole, own).probs) == pytest.approx(sum(members) / 2, abs=1e-3)
    assert len(RunFolder.of(here, own).read("results")) == 1


def test_augmented_answers_of_a_member_are_not_taken_for_those_of_its_plain_pass(own):
    whole = config("deep-ensemble:2")
    evaluate_run(whole.members()[0], own, CPU, samples=2, augment="flip")
    take_weights(RunFolder.of(whole.members()[0], own))
    with pytest.raises(NoWeights, match="with other passes than samples=100,seed=0, before"):
        evaluate_run(whole, own, CPU)


def test_answers_of_a_member_that_is_measured_meanwhile_are_those_that_were_checked(own, monkeypatch):
    whole = config("deep-ensemble:2")
    published, here = (RunFolder.of(member, own) for member in whole.members())
    evaluate_run(whole.members()[0], own, CPU)
    take_weights(published)
    before, measured = read_probs(published.probs), measuring._measured

    def slowly(config, *args):
        if config == whole.members()[1]:
            write_probs(published.probs, before[::-1])
        return measured(config, *args)

    monkeypatch.setattr(measuring, "_measured", slowly)
    evaluate_run(whole, own, CPU)
    mean = (before + read_probs(here.probs)) / 2
    assert read_probs(RunFolder.of(whole, own).probs) == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("deep-ensemble:2", {"draws": "balanced", "augment": "flip,shift:1"}),
        ("deep-ensemble:2[mc-droprelu:0.8]", {"seed": 3}),
    ],
    ids=["augmented", "random"],
)
def test_passes_of_members_are_combined_if_each_made_its_share_of_those_asked_for(own, method, asked):
    whole, asked = config(method), {"samples": 12, **asked}
    one, other = (RunFolder.of(member, own) for member in whole.members())
    if not other.path.exists():
        shutil.copytree(one.path, other.path)
        (other.path / "config.json").unlink()
    for member in whole.members():
        evaluate_run(member, own, CPU, **{**asked, "samples": 6})
    folder, together = RunFolder.of(whole, own), evaluate_run(whole, own, CPU, **asked)
    assert (together["combined_from"], together["samples"]) == ("networks", 12)
    folder.write("results", {key: {**each, "samples": 24} for key, each in folder.read("results").items()})
    assert evaluate_run(whole, own, CPU, **asked)["samples"] == 12  # 24 are those of members that did not share
    shutil.rmtree(RunFolder.of(whole, own).path)
    take_weights(one)
    result = evaluate_run(whole, own, CPU, **asked)
    assert (result["combined_from"], result["samples"], result["mean_jsd"]) == ("stored probabilities", 12, None)
    mean = (read_probs(one.probs) + read_probs(other.probs)) / 2
    assert read_probs(RunFolder.of(whole, own).probs) == pytest.approx(mean, abs=1e-3)
    for samples, each in ((13, 7), (6, 3)):
        with pytest.raises(NoWeights, match=rf"{one.path.name}.* with other passes than samples={each},"):
            evaluate_run(whole, own, CPU, **{**asked, "samples": samples})
    with pytest.raises(NoWeights, match=one.path.name):
        evaluate_run(whole, own, CPU, samples=12, seed=1, augment="flip")
    if "augment" not in asked:
        one.write("results", {key: {**each, "stream_version": 0} for key, each in one.read("results").items()})
        shutil.rmtree(RunFolder.of(whole, own).path)
        with pytest.raises(NoWeights, match=one.path.name):
            evaluate_run(whole, own, CPU, **asked)


def measured_elsewhere(folder, **sha256):
    """Make the measurements of a run those of other test images."""
    results = folder.read("results")
    for one in results.values():
        one["data"]["sha256"].update(sha256)
    folder.write("results", results)


@pytest.mark.parametrize("other", ["images", "labels"])
def test_members_measured_on_different_images_are_not_combined(own, other):
    whole = config("deep-ensemble:2")
    published, here = whole.members()
    for member in (published, here):
        evaluate_run(member, own, CPU)
    take_weights(RunFolder.of(published, own))
    measured_elsewhere(RunFolder.of(here, own), **{other: "of others"})
    assert evaluate_run(whole, own, CPU)["combined_from"] == "stored probabilities"  # that one is measured again
    assert "of others" not in RunFolder.of(here, own).read("results")["samples=100,seed=0"]["data"]["sha256"].values()
    shutil.rmtree(RunFolder.of(whole, own).path)
    measured_elsewhere(RunFolder.of(published, own), **{other: "of others"})
    with pytest.raises(RbueError, match=r"single-seed0-.* was last measured on other test images than digits holds"):
        evaluate_run(whole, own, CPU)
    assert not RunFolder.of(whole, own).has_results


@pytest.mark.parametrize(
    ("kept", "message"),
    [(slice(1, None), "on other test images"), (slice(None, None, -1), "or not to the end")],
    ids=["fewer answers", "those of a measurement that was stopped before its result was written"],
)
def test_a_member_whose_stored_answers_are_not_those_of_its_result_is_not_combined(own, kept, message):
    whole = config("deep-ensemble:2")
    for member in whole.members():
        evaluate_run(member, own, CPU)
        take_weights(RunFolder.of(member, own))
    folder = RunFolder.of(whole.members()[1], own)
    write_probs(folder.probs, read_probs(folder.probs)[kept])
    with pytest.raises(RbueError, match=message):
        evaluate_run(whole, own, CPU)


def test_fewer_samples_are_fewer_members_also_from_stored_probabilities(own):
    whole = config("deep-ensemble:2")
    networks = evaluate_run(whole, own, CPU, samples=1)
    shutil.rmtree(RunFolder.of(whole, own).path)
    for member in whole.members():
        evaluate_run(member, own, CPU)
        take_weights(RunFolder.of(member, own))
    stored = evaluate_run(whole, own, CPU, samples=1)
    assert networks["samples"] == stored["samples"] == 1
    for name in ("accuracy", "nll", "brier", "mean_jsd", "mean_dis"):
        assert stored[name] == pytest.approx(networks[name], abs=6e-3), name


def test_other_test_images_in_a_folder_are_measured_anew(tmp_path):
    def draw(split, count, seed):
        numbers = np.random.default_rng(seed)
        for label in range(2):
            (tmp_path / "photos" / split / f"class{label}").mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = numbers.integers(0, 150, (8, 8)) + 100 * label
                file = tmp_path / "photos" / split / f"class{label}" / f"{number}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(file)

    draw("train", 8, 0)
    draw("test", 4, 1)
    run = RunConfig(data=f"folder:{tmp_path / 'photos'}", width=0.25, recipe=recipe_for("digits", epochs=1, batch=8))
    train_runs([run], tmp_path, CPU)
    first = evaluate_run(run, tmp_path, CPU)
    assert evaluate_run(run, tmp_path, CPU) == first
    draw("test", 6, 2)
    again = evaluate_run(run, tmp_path, CPU)
    assert (first["data"]["count"], again["data"]["count"]) == (8, 12)
    take_weights(RunFolder.of(run, tmp_path))
    draw("test", 6, 3)
    with pytest.raises(RbueError, match=r"on other test images than folder:.* holds now; its weights are not kept"):
        evaluate_run(run, tmp_path, CPU)


def test_an_ensemble_with_a_member_that_has_neither(own):
    whole = config("deep-ensemble:2")
    take_weights(RunFolder.of(whole.members()[0], own))
    with pytest.raises(RbueError, match=r"remove .* and train it again"):
        evaluate_run(whole, own, CPU)
    assert not RunFolder.of(whole.members()[1], own).has_results


def test_what_is_said_of_a_run_without_weights(own):
    """Nobody is told to remove what was measured; a run that has no results is best trained again."""
    run = config("mc-droprelu:0.8")
    evaluate_run(run, own, CPU, samples=2)
    take_weights(RunFolder.of(run, own))
    with pytest.raises(NoWeights, match=r"not kept in this folder: .* train it again with another --runs") as raised:
        evaluate_run(run, own, CPU, samples=3)
    assert "remove" not in str(raised.value)
    (RunFolder.of(run, own).path / "results.json").unlink()
    with pytest.raises(RbueError, match=r"remove .* and train it again"):
        evaluate_run(run, own, CPU, samples=3)


def drawn_by(folder, version):
    """Make the measurements of a run those of another version of the random stream."""
    results = folder.read("results")
    folder.write("results", {key: {**one, "stream_version": version, "ece": 0.5} for key, one in results.items()})


def test_results_of_another_stream_are_not_used_again(own):
    run = config("mc-droprelu:0.8")
    folder = RunFolder.of(run, own)
    right = evaluate_run(run, own, CPU, samples=2)
    evaluate_run(run, own, CPU, samples=3)
    drawn_by(folder, 0)
    assert evaluate_run(run, own, CPU, samples=2)["ece"] == right["ece"]
    results = folder.read("results")
    assert list(results) == ["samples=3,seed=0", "samples=2,seed=0"]  # the last one has the stored probabilities
    assert results["samples=2,seed=0"]["stream_version"] == random_stream.VERSION
    take_weights(folder)
    both = f"version 0 of the random stream, while this is version {random_stream.VERSION}; its weights are not kept"
    with pytest.raises(RbueError, match=both):
        evaluate_run(run, own, CPU, samples=3)
    assert evaluate_run(run, own, CPU, samples=2)["ece"] == right["ece"]


def train_again(run, root):
    """Leave the files of a training as another one would; what was measured before is marked."""
    for member in run.trainings():
        folder = RunFolder.of(member, root)
        training = folder.read("training")
        folder.write("training", {**training, "seconds": training["seconds"] + 1})
    drawn_by(RunFolder.of(run, root), random_stream.VERSION)


@pytest.mark.parametrize("method", ["single", "deep-ensemble:2", "mc-droprelu:0.8[single]"])
def test_results_of_networks_that_were_trained_again_since_are_not_used_again(own, method):
    run = config(method)
    right = evaluate_run(run, own, CPU, samples=2)
    train_again(run, own)
    assert evaluate_run(run, own, CPU, samples=2)["ece"] == right["ece"] != 0.5


def test_results_of_networks_that_were_trained_again_elsewhere_are_refused(own):
    run = config("mc-droprelu:0.8")
    evaluate_run(run, own, CPU, samples=2)
    train_again(run, own)
    take_weights(RunFolder.of(run, own))
    with pytest.raises(RbueError, match="before its networks were trained again; its weights are not kept"):
        evaluate_run(run, own, CPU, samples=2)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_the_measurement_asked_for_last_has_the_stored_probabilities(tmp_path, split):
    run = replace(config("mc-droprelu:0.8"), holdout=200)
    train_run(run, tmp_path, CPU)
    folder = RunFolder.of(run, tmp_path)
    file, probs = measuring.SPLITS[split], folder.probs if split == "test" else folder.validation_probs
    two, three, again = (evaluate_run(run, tmp_path, CPU, samples=count, split=split) for count in (2, 3, 2))
    assert again["probs_sha256"] == two["probs_sha256"] != three["probs_sha256"]
    assert list(folder.entries(file)) == ["samples=3,seed=0", "samples=2,seed=0"]
    assert belong_to(probs, again)
    write_probs(probs, read_probs(probs)[::-1])  # of a command that was stopped between two files
    evaluate_run(run, tmp_path, CPU, samples=2, split=split)
    assert belong_to(probs, again)
    take_weights(folder)
    kept = folder.entries(file)
    assert evaluate_run(run, tmp_path, CPU, samples=3, split=split) == three
    assert list(folder.entries(file).items()) == list(kept.items())


def test_without_a_checksum_only_the_last_measurement_has_the_stored_probabilities(own):
    run = config("mc-droprelu:0.8")
    folder = RunFolder.of(run, own)
    for count in (2, 3):
        evaluate_run(run, own, CPU, samples=count)
    kept = folder.entries("results").items()
    folder.write("results", {key: {k: one[k] for k in one if k != "probs_sha256"} for key, one in kept})
    noted = ["probs_sha256" in evaluate_run(run, own, CPU, samples=count) for count in (3, 2)]
    assert noted == [False, True]


def test_a_method_that_draws_nothing_has_no_stream(own):
    run = config("single")
    evaluate_run(run, own, CPU)
    drawn_by(RunFolder.of(run, own), 0)
    assert evaluate_run(run, own, CPU)["ece"] == 0.5


def test_augmented_measurements_have_a_key_of_their_own_and_more_samples_than_networks(own):
    run = config("single")
    plain = evaluate_run(run, own, CPU, samples=6)
    found = evaluate_run(run, own, CPU, samples=6, augment="shift:1, flip")
    assert (plain["samples"], found["samples"], found["augment"]) == (1, 6, "shift:1,flip")
    assert [row["samples"] for row in found["by_samples"]] == [1, 4]
    assert list(RunFolder.of(run, own).entries("results"))[-2:] == [
        "samples=6,seed=0",
        "samples=6,seed=0,augment=shift:1,flip",
    ]
    assert "augment" not in plain
    assert found["nll"] != plain["nll"]
    assert evaluate_run(run, own, CPU, samples=6, augment="shift:1,flip") == found
