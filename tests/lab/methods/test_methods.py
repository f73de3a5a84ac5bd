"""Methods: the short texts that choose them, what they make random, ensembles of any of them, a user's own."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rbue.activations import DropActivation, Dropout, DropReLU, RReLU
from rbue.call_sites import convert, seed
from rbue.errors import ConversionError, InvalidInput, RbueError
from rbue.lab import data, methods
from rbue.lab.methods import base
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for
from rbue.sampling.collect import collect

CPU = torch.device("cpu")
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("single", "single"),
        ("deep-ensemble", "deep-ensemble:4"),
        ("deep-ensemble:3", "deep-ensemble:3"),
        ("svi", "svi"),
        ("svi:0.1", "svi:0.1"),
        ("mc-rrelu", "mc-rrelu"),
        ("mc-rrelu:0.1,0.2", "mc-rrelu:0.1,0.2"),
        ("mc-droprelu", "mc-droprelu:0.9"),
        ("mc-droprelu:0.80,last", "mc-droprelu:0.8,last"),
        ("deep-ensemble:4,single", "deep-ensemble:4"),
        ("deep-ensemble:4,mc-droprelu:0.950", "deep-ensemble:4[mc-droprelu:0.95]"),
        ("deep-ensemble:2,mc-droprelu:0.8,last", "deep-ensemble:2[mc-droprelu:0.8,last]"),
        ("deep-ensemble[svi]", "deep-ensemble:4[svi]"),
    ],
)
def test_specs_have_one_canonical_form(spec, canonical):
    method = methods.parse(spec)
    assert methods.spec_of(method) == canonical
    assert methods.parse(canonical) == method
    assert isinstance(method, methods.Method)


@settings(deadline=None)
@given(st.floats(0, 1))
def test_every_q_survives_the_round_trip(q):
    assert methods.parse(methods.spec_of(methods.parse(f"mc-droprelu:{q}"))).q == q


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mc-dropreul:0.9", "did you mean 'mc-droprelu'"),
        ("nonsense", "there are"),
        ("single:1", "1 settings"),
        ("mc-droprelu:high", "'high'"),
        ("mc-droprelu:1.5", r"1\.5"),
        ("mc-rrelu:0.5,0.2", r"lower=0\.5"),
        ("deep-ensemble:1", "not 1"),
        ("deep-ensemble:2.5", r"'2\.5'"),
        ("mc-droprelu:0.9,", r"where in 'mc-droprelu:0\.9,' is empty; give it a value, or leave out the comma"),
        ("mc-droprelu: , last", "q in .* is empty"),
        ("svi:0.1,,0.05", "in .* is empty"),
        ("deep-ensemble:4[mc-droprelu", "opens a bracket; close it"),
        ("single[svi]", "single holds no other method"),
        ("mc-droprelu:0.9[]", r"the brackets of 'mc-droprelu:0\.9\[\]' are empty; put a method there"),
        ("deep-ensemble:2[deep-ensemble:2]", "must be single networks, not deep-ensemble:2"),
        ("deep-ensemble:2,svii", "did you mean 'svi'"),
        ("no_such_module:Mine", "no module 'no_such_module'"),
        ("json:Mine", "module 'json' has no 'Mine'"),
        ("json:JSONDecoder", "json:JSONDecoder is no method; it must be a frozen dataclass below"),
    ],
)
def test_bad_specs_are_explained(spec, message):
    with pytest.raises(InvalidInput, match=message):
        methods.parse(spec)


def test_a_seventh_method_needs_only_its_own_class():
    @base.register("seventh", shown=1)
    @dataclass(frozen=True)
    class Seventh(methods.Method):
        strength: float = 2.0

    try:
        assert "seventh" in methods.list_methods()
        assert methods.spec_of(methods.parse("seventh:3")) == "seventh:3.0"
    finally:
        del base._methods["seventh"]


def test_settings_that_are_true_or_false():
    assert methods.parse("svi:1.0,0.5,0.05,false").tied is False
    assert methods.spec_of(methods.parse("svi:1.0,0.5,0.05,True")) == "svi"
    assert methods.parse(methods.spec_of(methods.parse("svi:1.0,0.5,0.05,false"))).tied is False
    with pytest.raises(InvalidInput, match="must be true or false, not 'perhaps'"):
        methods.parse("svi:1.0,0.5,0.05,perhaps")


@pytest.mark.parametrize("spec", ["svi:-1", "svi:nan", "svi:1,2", "svi:1,0.5,0"])
def test_svi_refuses_settings_that_cannot_train(spec):
    with pytest.raises(InvalidInput, match="of svi must lie between"):
        methods.parse(spec)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("single,mc-droprelu:0.9,last,svi", ["single", "mc-droprelu:0.9,last", "svi"]),
        ("deep-ensemble:4,mc-droprelu:0.9", ["deep-ensemble:4", "mc-droprelu:0.9"]),
        (
            "svi deep-ensemble:4[mc-rrelu:0.1,0.2,last],single",
            ["svi", "deep-ensemble:4[mc-rrelu:0.1,0.2,last]", "single"],
        ),
        ("own.methods:Mine:0.5,last;deep-ensemble[svi", ["own.methods:Mine:0.5,last", "deep-ensemble[svi"]),
    ],
)
def test_lists_are_split_between_methods_and_not_inside_of_them(text, specs):
    assert methods.split_specs(text) == specs


def network(number=0, function=nn.ReLU):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(6, 16), function(), nn.Linear(16, 16), function(), nn.Linear(16, 3))


def drawn(converted):
    seed(converted, 3)
    return converted(X)


@pytest.mark.parametrize(
    ("spec", "activation", "where"),
    [
        ("mc-droprelu:0.7", DropReLU(0.7), "all"),
        ("mc-droprelu:0.7,last", DropReLU(0.7), "last"),
        ("mc-rrelu", RReLU(1 / 8, 1 / 3), "all"),
        ("mc-rrelu:0.1,0.6,first", RReLU(0.1, 0.6), "first"),
        ("mc-dropactivation:0.7,last", DropActivation(0.7), "last"),
        ("mc-dropout:0.2", Dropout(0.2), "last"),
        ("mc-dropout:0.2,all", Dropout(0.2), "all"),
    ],
)
def test_what_is_random_and_where(spec, activation, where):
    found = drawn(methods.parse(spec).prepare(network(), X[:1]))
    assert found.equal(drawn(convert(network(), activation, where=where, example=X[:1])))
    assert not found.equal(network()(X))


def test_activations_that_are_no_relus_are_random():
    gelus = network(function=nn.GELU)
    found = drawn(methods.parse("mc-dropactivation:0.7").prepare(gelus, X[:1]))
    wanted = convert(network(function=nn.GELU), DropActivation(0.7), example=X[:1])
    assert found.equal(drawn(wanted))
    assert not found.equal(network(function=nn.GELU)(X))
    assert methods.spec_of(methods.parse("mc-dropactivation")) == "mc-dropactivation:0.9"
    with pytest.raises(ConversionError, match=r"GELU instead; use mc-dropactivation:q, .* or mc-dropout:p, "):
        methods.parse("mc-droprelu:0.7").prepare(network(function=nn.GELU), X[:1])


@pytest.mark.parametrize(
    ("spec", "activation"),
    [("mc-droprelu:0.7,all,channel", "DropReLU"), ("mc-dropactivation:0.7,all,channel", "DropActivation")],
)
def test_masks_by_channel(spec, activation):
    assert repr(methods.parse(spec).activation()) == f"{activation}(q=0.7, mask='channel')"


class Recording(nn.Module):
    """Keeps the sizes of its batches, and works in place."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return x.mul_(2).flatten(1)[:, :3]


@pytest.mark.parametrize(
    ("shape", "sizes"), [((7, 3, 4, 4), [3, 3, 1]), ((3, 3, 4, 4), [3]), ((2, 3, 100, 100), [1, 1]), ((7, 5), [7])]
)
def test_the_rows_of_a_pass_depend_on_the_pixels(monkeypatch, shape, sizes):
    monkeypatch.setitem(base.PASS_PIXELS, "cpu", 48)
    recording, x = Recording(), torch.randn(shape)
    before = x.clone()
    assert base.outputs_of(recording, x).equal(2 * before.flatten(1)[:, :3])
    assert recording.sizes == sizes
    assert x.equal(before)


def samples_of(method, networks, count):
    for one in networks:
        one.eval()
    stream = method.stream(networks, X, seed=5)
    return collect(stream, X, torch.arange(len(X), dtype=torch.int32), count, seed=5, return_samples=True).samples


@pytest.mark.parametrize("spec", ["mc-droprelu:0.6", "mc-dropout:0.5,all", "svi:1,0.5,5"])
def test_an_ensemble_draws_from_its_members_in_turn_whatever_the_number_of_samples(spec):
    ensemble = methods.parse(f"deep-ensemble:3[{spec}]")
    networks = [ensemble.member.prepare(network(number), X[:1]) for number in range(3)]
    whole = samples_of(ensemble, networks, 8)
    torch.testing.assert_close(samples_of(ensemble, networks, 4), whole[:4])
    for number, one in enumerate(networks):
        stream = ensemble.member.stream([one], X, seed=5 + number)
        own = collect(stream, X, torch.arange(len(X), dtype=torch.int32), 2, seed=0, return_samples=True).samples
        torch.testing.assert_close(whole[[number, number + 3]], own)


def test_members_draw_as_the_ensemble_is_asked_to_and_seeds_go_round():
    ensemble, last = methods.parse("deep-ensemble:2[mc-droprelu:0.6]"), 2**64 - 1
    networks = [ensemble.member.prepare(network(number), X[:1]).eval() for number in range(2)]
    numbers, how = torch.arange(len(X), dtype=torch.int32), {"draws": "balanced", "return_samples": True}
    found = collect(ensemble.stream(networks, X, last, "balanced"), X, numbers, 4, seed=last, **how).samples
    own = collect(ensemble.member.stream(networks[1:], X, 0, "balanced"), X, numbers, 2, seed=0, **how).samples
    torch.testing.assert_close(found[1::2], own)


def test_an_ensemble_has_as_many_samples_and_networks_as_it_says():
    ensemble, networks = methods.parse("deep-ensemble:2"), [network(0), network(1)]
    torch.testing.assert_close(samples_of(ensemble, networks, 2)[1], networks[1](X).softmax(1))
    with pytest.raises(InvalidInput, match="there is no sample 2: the ensemble has 2"):
        samples_of(ensemble, networks, 3)
    with pytest.raises(InvalidInput, match="deep-ensemble:2 needs 2 networks, not 1"):
        samples_of(ensemble, networks[:1], 2)
    assert methods.parse("deep-ensemble:3[svi]").limit is None


def test_an_ensemble_of_another_method_is_trained_and_measured(tmp_path):
    recipe = recipe_for("digits", epochs=1, batch=256)
    config = RunConfig(method="deep-ensemble:2,mc-droprelu:0.8", width=0.25, seed=4, recipe=recipe)
    assert config.method == "deep-ensemble:2[mc-droprelu:0.8]"
    members = [replace(config, method="mc-droprelu:0.8", seed=number) for number in (4, 5)]
    assert config.members() == members
    folders = train_run(config, tmp_path, CPU)
    assert folders == [RunFolder.of(member, tmp_path) for member in members]
    found = evaluate_run(config, tmp_path, CPU, samples=6, seed=0)
    assert found["samples"] == 6
    assert found["mean_jsd"] > 0
    folder = RunFolder.of(config, tmp_path)
    assert json.loads((folder.path / "config.json").read_text())["method"] == config.method
    assert not set(folder.path.name) & set("[]:, /")
    assert folder.config() == config
    images = data.load("digits", "test")
    first = predict_images(config, load_networks(config, tmp_path, CPU), images, Passes(2), CPU, return_samples=True)
    alone = predict_images(
        members[0], load_networks(members[0], tmp_path, CPU), images, Passes(1), CPU, return_samples=True
    )
    assert first.samples[0].equal(alone.samples[0])


OWN = """
from dataclasses import dataclass
from torch.nn import functional as F
from rbue.lab.methods import Method

@dataclass(frozen=True)
class Smoothed(Method):
    amount: float = 0.1

    def loss(self, network, x, y, progress):
        logits = network(x)
        return F.cross_entropy(logits, y, label_smoothing=self.amount), logits
"""


def test_a_method_of_ones_own_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN)
    (tmp_path / "own_elsewhere.py").write_text("from own_methods import Smoothed")
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("own_methods:Smoothed:0.2", "own_elsewhere:Smoothed", "deep-ensemble:2[own_methods:Smoothed:0.2]"):
        assert methods.spec_of(methods.parse(spec)) == spec  # as it was typed
    assert methods.spec_of(type(methods.parse("own_methods:Smoothed"))(0.3)) == "own_methods:Smoothed:0.3"
    with pytest.raises(InvalidInput, match="amount in 'own_methods:Smoothed:much' must be a number"):
        methods.parse("own_methods:Smoothed:much")
    recipe = recipe_for("digits", epochs=1, batch=256)
    config = RunConfig(method="own_methods:Smoothed:0.2", width=0.25, recipe=recipe)
    (folder,) = train_run(config, tmp_path, CPU)
    assert folder.path.name == f"own_methods-Smoothed-0.2-seed0-{config.id}"
    assert folder.config() == config
    assert folder.read("training")["loss"] > 0
    result = evaluate_run(config, tmp_path, CPU, samples=3)
    assert result["samples"] == 1  # all that a plain network has
    assert 0 < result["accuracy"] < 1


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("snapshot-ensemble:4", {"epochs": 3}, "snapshot-ensemble:4 needs at least 4 epochs, one a cycle, not 3"),
        ("deep-ensemble:2[snapshot-ensemble:4]", {"epochs": 3}, "at least 4 epochs"),
        ("snapshot-ensemble:4", {"average": "swa"}, r"weights cannot be averaged \(swa\) as well"),
        ("snapshot-ensemble:1", {}, "at least 2 members, not 1"),
        ("swag", {"epochs": 4}, "swag collects the weights of 1 of 4 epochs, and needs two"),
        ("swag", {"average": "ema"}, r"weights cannot be averaged \(ema\)"),
        ("swag:1", {}, "rank of swag must be at least 2, not 1"),
        ("swag:20,30,1.5", {}, r"start of swag must be .* not 1\.5"),
        ("sgld:4,3", {"epochs": 11}, r"sgld needs at least 12 epochs, one a sample, not 11; .* as in sgld:4,1\."),
        ("sgld", {"average": "swa"}, r"weights cannot be averaged \(swa\)"),
        ("sgld:0", {}, "cycles of sgld must be at least 1, not 0"),
        ("sgld:4,3,-1", {}, r"temperature of sgld must be a number of at least 0, not -1\.0"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(method, changes, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        train_run(RunConfig(method=method, recipe=recipe_for("digits", **changes)), tmp_path, CPU)
    assert not list(tmp_path.iterdir())


def test_errors_of_ones_own_methods_are_named_and_no_others():
    """Not that of a function beside the class, such as one that is told of epochs and ends the training."""

    @dataclass(frozen=True)
    class Failing(methods.Method):
        def prepare(self, network, example):
            raise network

    def fail(kind):
        with base.naming_own(methods.parse("single"), Failing()):
            Failing().prepare(kind("so"), X) if inside else stop(kind)

    def stop(kind):
        raise kind("so")

    for inside in (True, False):
        for kind in (ValueError, InvalidInput, OSError):
            with pytest.raises(RbueError if inside else kind, match="Failing failed with .*: so" if inside else "^so$"):
                fail(kind)
        for kind in (ConversionError, torch.OutOfMemoryError, KeyboardInterrupt):
            with pytest.raises(kind, match=r"^so$"):
                fail(kind)
