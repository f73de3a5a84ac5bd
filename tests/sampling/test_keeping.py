"""What ``predict(keep=...)`` keeps, against plain calls with a hook."""

from __future__ import annotations

import threading

import pytest
import torch
from networks import TwoLayers, build
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue.errors import InvalidInput
from rbue.sampling.keeping import Keeping, KeptSums, _Noted
from rbue.sampling.passes import PassRunner
from rbue.sampling.tasks import task_of

BOTH = ("logits", "features")


def one_by_one(net, x, samples, layer="head"):
    """Logits ``(S, B, C)`` and features ``(S, B, D)`` of the independent samples of seed 0."""
    noted = []
    hook = net.get_submodule(layer).register_forward_pre_hook(lambda module, args: noted.append(args[0].clone()))
    rbue.seed(net.eval(), 0)
    with torch.no_grad():
        logits = torch.stack([net(x) for _ in range(samples)])
    hook.remove()
    return logits, torch.stack(noted)


def converted(name="residual", activation=None, where="all", batch=5):
    net, x = build(name, batch=batch)
    return rbue.convert(net, activation or rbue.DropReLU(0.8), where=where, example=x), x


def check(prediction, logits, features):
    expected = {
        "logits": logits.mean(0),
        "energy": -logits.double().logsumexp(2).mean(0),
        "max_logit": logits.amax(2).mean(0),
        "features": features.mean(0),
        "probs": logits.softmax(2).mean(0),
    }
    for name, values in expected.items():
        torch.testing.assert_close(getattr(prediction, name), values.float(), atol=2e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("name", "memory"),
    [("residual", None), ("residual", 1), ("dense", None), ("view", None)],
    ids=["residual", "one row a pass", "dense", "nothing to share"],
)
@pytest.mark.parametrize(
    ("activation", "where"),
    [(rbue.DropReLU(0.8), "all"), (rbue.RReLU(), "last"), (rbue.Dropout(0.3), "last")],
    ids=["all", "last", "dropout"],
)
def test_the_means_of_plain_passes(name, activation, where, memory):
    net, x = converted(name, activation, where)
    found = rbue.predict(net, x, samples=7, draws="independent", memory=memory, keep=BOTH)
    check(found, *one_by_one(net, x, 7))
    assert torch.equal(found.probs, rbue.predict(net, x, samples=7, draws="independent", memory=memory).probs)


def test_every_way_to_give_images_and_one_image_alone():
    net, x = converted()
    expected = rbue.predict(net, x, samples=20, keep=BOTH)
    given = {
        "array": x.numpy(),
        "dict": {"x": x},
        "dataset": TensorDataset(x, torch.zeros(5)),
        "loader": DataLoader(TensorDataset(x, torch.zeros(5)), batch_size=2),
        "singles": [x[k : k + 1] for k in range(5)],
    }
    for kind, images in given.items():
        found = rbue.predict(net, images, samples=20, keep=BOTH)
        for name in ("probs", "logits", "energy", "max_logit", "features"):
            torch.testing.assert_close(
                getattr(found, name), getattr(expected, name), atol=1e-6, rtol=1e-5, msg=f"{kind} {name}"
            )


def test_balanced_augmented_and_adaptive_samples():
    net, x = converted(batch=6)
    for how in ({"draws": "balanced"}, {"augment": [rbue.augment.Flip()]}):
        logits = rbue.predict(net, x, samples=8, outputs=_itself, return_samples=True, **how).samples
        found = rbue.predict(net, x, samples=8, keep="logits", **how)
        torch.testing.assert_close(found.logits, logits.mean(0), atol=1e-6, rtol=1e-5)
        assert found.features is None
    rule = rbue.Adaptive(tolerance=0.002, first=4)
    found = rbue.predict(net, x, samples=32, draws="independent", adaptive=rule, keep=BOTH)
    assert len(found.samples_used.unique()) > 1
    logits, features = one_by_one(net, x, 32)
    for image, drawn in enumerate(found.samples_used.tolist()):
        torch.testing.assert_close(found.logits[image], logits[:drawn, image].mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.features[image], features[:drawn, image].mean(0), atol=1e-5, rtol=1e-5)


def _itself(output):
    return output


def test_another_layer_and_maps_averaged_over_pixels():
    net, x = converted()
    found = rbue.predict(net, x, samples=6, draws="independent", keep="features:conv2")
    _, maps = one_by_one(net, x, 6, "conv2")
    torch.testing.assert_close(found.features, maps.mean((0, 3, 4)), atol=1e-6, rtol=1e-5)
    # conv1's input comes before the first random site of a shared prefix: all samples have it
    rbue.revert(net)
    rbue.convert(net, rbue.DropReLU(0.8), where="last", example=x)
    found = rbue.predict(net, x, samples=6, keep="features:conv1")
    _, maps = one_by_one(net, x, 1, "conv1")
    torch.testing.assert_close(found.features, maps[0].mean((2, 3)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 6), (5, 4, 6)], ids=["changed in place", "tokens"])
def test_the_input_of_a_module_that_is_not_linear(shape):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3)), torch.randn(shape)
    net(x)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    found = rbue.predict(net, x, samples=4, draws="independent", keep="features:1").features
    _, features = one_by_one(net, x, 4, "1")
    torch.testing.assert_close(found, features.mean(0) if x.dim() == 2 else features.mean((0, 2)), atol=1e-6, rtol=1e-5)


def test_features_are_as_short_as_the_scores_and_of_one_pass():
    net, x = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 3)), torch.randn(5, 6)
    with Keeping("features:0", task_of(None)).beside_scores([net]), torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype is torch.bfloat16  # or a plan would ask for more than the classifier can hold
        net[0] = nn.Linear(6, 8)
        with pytest.raises(InvalidInput, match="the module '0' was not called"):
            net(x)


class TwoHeads(nn.Module):
    """The head that answers is neither the last module nor the last linear layer in the list of modules."""

    def __init__(self, classes=3):
        super().__init__()
        self.first, self.head, self.other = nn.Linear(6, 8), nn.Linear(8, classes), nn.Linear(8, 9)

    def forward(self, x):
        y = F.relu(self.first(x))
        self.other(y)
        return self.head(2 * y)


class Gated(nn.Module):
    """A linear layer in the middle, and a convolution that makes the scores."""

    def __init__(self):
        super().__init__()
        self.first, self.gate, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Conv2d(4, 3, 6)

    def forward(self, x):
        y = F.relu(self.first(x))
        return self.head(y * self.gate(y.mean((2, 3))).sigmoid()[:, :, None, None]).flatten(1)


class Tokens(TwoLayers):
    """A linear layer of tokens ``(B, T, D)``, whose scores are averaged."""

    def forward(self, x):
        return self.head(F.relu(self.first(x))).mean(1)


@pytest.mark.parametrize(("kind", "shape"), [(TwoHeads, (5, 6)), (Tokens, (5, 4, 6))])
def test_the_classifier_is_the_linear_layer_called_last(kind, shape):
    torch.manual_seed(0)
    net, x = kind(), torch.randn(shape)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    found = rbue.predict(net, x, samples=5, draws="independent", keep=BOTH)
    logits, features = one_by_one(net, x, 5)
    check(found, logits, features if features.dim() == 3 else features.mean(2))


class AuxiliaryLast(TwoLayers):
    """A head of as many classes that is called after the classifier."""

    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(6, self.head.out_features)

    def forward(self, x):
        return {"logits": self.head(F.relu(self.first(x))), "aux": self.aux(x)}


def test_a_head_called_after_the_classifier_is_not_taken_for_it():
    torch.manual_seed(0)
    net, x = AuxiliaryLast(), torch.randn(5, 6)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    alone = rbue.convert(nn.Sequential(net.first, nn.ReLU(), net.head), rbue.DropReLU(0.8), example=x)
    found, expected = (rbue.predict(one, x, samples=400, keep=BOTH) for one in (net, alone))
    torch.testing.assert_close(found.features, expected.features, atol=0.1, rtol=0.1)  # sites of other names
    assert found.features.shape == (5, 8)
    at_once, apart = (rbue.predict(net, x, samples=20, keep=BOTH, memory=memory) for memory in (None, 1))
    torch.testing.assert_close(apart.features, at_once.features)


class OfTwo(nn.Linear):
    """A linear layer that is two, and gives the second one's output in another view."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 4), nn.Linear(4, outputs)

    def forward(self, x):
        return self.up(self.down(x)).view(-1, self.out_features)


def test_of_layers_that_share_an_output_the_outer_one_is_the_classifier():
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), OfTwo(8, 3)), torch.randn(5, 6)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    assert rbue.predict(net, x, samples=3, keep="features").features.shape == (5, 8)


class Remembering(nn.Sequential):
    """Holds the output of every pass."""

    def forward(self, x):
        self.outputs = [*getattr(self, "outputs", ()), super().forward(x)]
        return self.outputs[-1]


def test_features_take_no_pass_more_and_hold_no_other_layers_tensors(monkeypatch):
    passes, held = [], []
    run, find = PassRunner._stacked, _Noted._classifier

    def counted(runner, *args, **how):
        passes.append(1)
        return run(runner, *args, **how)

    def seen(noted, scores):
        held.append(len(noted.made))
        return find(noted, scores)

    monkeypatch.setattr(PassRunner, "_stacked", counted)
    monkeypatch.setattr(_Noted, "_classifier", seen)
    for keep in ((), "features"):
        layers = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]
        net = rbue.convert(nn.Sequential(*layers), rbue.DropReLU(0.8), example=torch.randn(2, 6))
        passes.append(0)
        rbue.predict(net, torch.randn(2, 6), samples=5, keep=keep)
    middle = len(passes) - passes[::-1].index(0)
    assert sum(passes[:middle]) == sum(passes[middle:])
    net = rbue.convert(Remembering(*layers), rbue.DropReLU(0.8), example=torch.randn(2, 6))
    rbue.predict(net, torch.randn(2, 6), samples=5, keep="features", memory=1)
    assert set(held) == {1}


class HeadByInput(TwoLayers):
    """Two heads, of which the images choose one."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 3)

    def forward(self, x):
        h = F.relu(self.first(x))
        return self.head(h) if x.mean() > 0 else self.other(h)


def test_batches_may_go_through_different_heads():
    net = rbue.convert(HeadByInput(), rbue.DropReLU(0.8), example=torch.rand(4, 6))
    found = rbue.predict(net, [torch.rand(4, 6), -torch.rand(4, 6)], samples=5, keep="features")
    assert found.features.shape == (8, 8)


def test_features_of_probabilities_and_of_one_logit():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    for last, outputs in ((nn.Softmax(1), "probs"), (nn.Flatten(0), "binary"), (nn.Identity(), "binary")):
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3 if outputs == "probs" else 1), last)
        rbue.convert(net, rbue.DropReLU(0.8), example=x)
        found = rbue.predict(net, x, samples=5, draws="independent", outputs=outputs, keep="features")
        assert found.probs.shape == (4, 3 if outputs == "probs" else 2)
        torch.testing.assert_close(found.features, one_by_one(net, x, 5, "2")[1].mean(0), atol=1e-6, rtol=1e-5)


def test_a_temperature_scales_no_logits():
    net, x = converted()
    plain = rbue.predict(net, x, samples=5, keep=BOTH)
    scaled = rbue.predict(net, x, samples=5, keep=BOTH, temperature=3.0)
    assert not torch.equal(plain.probs, scaled.probs)
    for name in ("logits", "energy", "features"):
        assert torch.equal(getattr(plain, name), getattr(scaled, name))


@pytest.mark.slow
def test_compiled_networks_run_as_they_are_written():
    net, x = converted()
    compiled = torch.compile(net, backend="eager")
    rbue.predict(compiled, x, samples=4, draws="independent")  # compiled code does not look for hooks that come later
    check(rbue.predict(compiled, x, samples=4, draws="independent", keep=BOTH), *one_by_one(net, x, 4))


def test_no_hook_is_left_and_other_threads_see_none():
    net, x = converted()
    expected = net(x).shape
    seen = []

    def images():
        thread = threading.Thread(target=lambda: seen.append(net(x).shape))
        thread.start()
        thread.join()
        yield x

    features = rbue.predict(net, images(), samples=3, keep=BOTH).features
    assert seen == [expected]
    this = threading.get_ident()
    hook = net.head.register_forward_hook(lambda *_: [*images()].clear() if threading.get_ident() == this else None)
    found = rbue.predict(net, x, samples=3, keep=BOTH).features  # another thread calls the network within each pass
    hook.remove()
    torch.testing.assert_close(found, features)
    with pytest.raises(InvalidInput):
        rbue.predict(net, x * torch.nan, samples=3, keep=BOTH)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_memory_does_not_grow_with_samples():
    keeping = Keeping(BOTH, task_of(None))
    keeping.width = 4
    sums = KeptSums(keeping, 2, torch.device("cpu"))
    for _ in range(50):
        sums.take(torch.tensor([1]), torch.ones(3, 1, 7))
    assert {name: tuple(total.shape) for name, total in sums.sums.items()} == {
        "features": (2, 4),
        "logits": (2, 3),
        "energy": (2,),
        "max_logit": (2,),
    }
    assert sums.means(torch.tensor([1, 150]))["features"].tolist() == [[0.0] * 4, [1.0] * 4]


def test_errors_are_one_sentence_with_the_way_out():
    net, x = converted()
    for keep, match in (
        ("logit", r"keep has 'logit' \(did you mean 'logits'\?\)"),
        (("logits", 3), "keep has 3"),
        (True, "keep has True"),
        ("logits:head", "keep has 'logits:head'"),
        ("features:hed", r"Residual has no module 'hed' \(did you mean 'head'\?\)"),
        ("features:drop.x", "no module 'drop.x'"),
    ):
        with pytest.raises(InvalidInput, match=match):
            rbue.predict(net, x, samples=2, keep=keep)
    with pytest.raises(InvalidInput, match="one class an input, which outputs='tokens' is not"):
        Keeping("features", task_of("tokens"))
    with pytest.raises(InvalidInput, match="one class an input, which outputs='values' is not"):
        rbue.predict(net, x, samples=2, outputs="values", keep="features")
    with pytest.raises(InvalidInput, match="outputs='probs' has no logits"):
        rbue.predict(net, x, samples=2, outputs="probs", keep=BOTH)
    times, images = converted("time-first")
    with pytest.raises(InvalidInput, match=r"the module 'first' was given the shape \(7, .* rows; the input"):
        rbue.predict(times, images, samples=2, keep="features:first")
    pixels, images = converted("per-pixel")
    with pytest.raises(InvalidInput, match=r"one class an image, but the network returned \(B, 4, 6, 6\)"):
        rbue.predict(pixels, images, samples=2, keep="logits")
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 6), nn.Flatten())
    rbue.convert(convolutions, rbue.DropReLU(0.8), example=torch.zeros(2, 3, 8, 8))
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(InvalidInput, match="Sequential does not end in a linear layer that makes its 3 scores"):
        rbue.predict(convolutions, images, samples=2, keep="features")
    assert rbue.predict(convolutions, images, samples=2, keep="features:2").features.shape == (2, 4)
    gated = rbue.convert(Gated(), rbue.DropReLU(0.8), example=images)
    with pytest.raises(InvalidInput, match="Gated does not end in a linear layer that makes its 3 scores"):
        rbue.predict(gated, images, samples=2, keep="features")
