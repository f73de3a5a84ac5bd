"""Inputs of every kind: the samples are those of a plain loop over calls with the same arguments."""

import threading
from collections import UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import StatementInPlace, build
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import rbue
from rbue.call_sites import inputs
from rbue.call_sites.batch import Batch
from rbue.errors import InvalidInput, RbueError

TOLERANCE = 2e-6


class Text(nn.Module):
    """A bag of words: ``mask`` says which count; a table of one row, a number and a flag besides."""

    def __init__(self):
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, ids, mask, positions=None, scale=None, loud=False, labels=None):
        assert labels is None
        x = self.words(ids)
        if positions is not None:
            x = x + positions[..., None]
        y = torch.relu(self.layer(x) * (1 if scale is None else scale))
        y = (y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # the mask meets what random sites made
        return self.head(y) * (3 if loud else 1)


def text(images=5):
    torch.manual_seed(0)
    ids, mask = torch.randint(0, 20, (images, 6)), torch.ones(images, 6)
    mask[-1, 2:] = 0  # of the images that a plan is made with, none has a mask
    return ids, mask


def loop(network, samples, *args, **kwargs):
    """The reference: one call a sample."""
    rbue.seed(network, 0)
    with torch.no_grad():
        return torch.stack([network(*args, **kwargs) for _ in range(samples)]).softmax(2)


def drawn(network, x, **settings):
    return rbue.predict(network, x, samples=4, return_samples=True, draws="independent", **settings).samples


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def forms():
    ids, mask = text()
    pair, words = (ids, mask), {"ids": ids, "mask": mask}
    by_two = [slice(0, 2), slice(2, 4), slice(4, 5)]
    parts = [(ids[k], mask[k]) for k in by_two]
    labels = torch.arange(5)
    return {
        "tuple": pair,
        "list": list(pair),
        "dict": words,
        "mapping": UserDict(words),
        "arrays by name": {"ids": ids.numpy(), "mask": mask.double().numpy()},
        "dict with labels": words | {"labels": labels},
        "loader of tuples": [(*part, labels[k]) for part, k in zip(parts, by_two, strict=True)],
        "loader of tuples in tuples": [(part, labels[k]) for part, k in zip(parts, by_two, strict=True)],
        "loader of dicts": [{"mask": mask[k], "ids": ids[k], "label": labels[k]} for k in by_two],
        "loader of dicts in tuples": [({"ids": ids[k], "mask": mask[k]}, labels[k]) for k in by_two],
        "DataLoader": DataLoader(TensorDataset(ids, mask, labels), batch_size=2),
        "Dataset": TensorDataset(ids, mask, labels),
        "positions of one row": words | {"positions": torch.linspace(-1, 1, 6)[None]},
        "number and flag": words | {"scale": torch.tensor(0.5), "loud": True, "positions": None},
    }


@pytest.mark.parametrize("name", forms())
@pytest.mark.parametrize("where", ["all", "last"])
def test_every_form_gives_the_samples_of_a_loop(name, where):
    ids, mask = text()
    torch.manual_seed(1)
    network = rbue.convert(Text(), rbue.DropReLU(0.6), where=where, example=(ids[:2], mask[:2]))
    x = forms()[name]
    extra = {key: x[key] for key in ("positions", "scale", "loud") if isinstance(x, dict) and key in x}
    expected = loop(network, 4, ids, mask, **extra)
    found = drawn(network, x)
    close(found, expected)
    assert all(plan.share for plan in network._rbue_conversion.plans.values())
    assert float((expected[0] - expected[1]).abs().max()) > 100 * TOLERANCE
    assert float((loop(network, 4, ids, torch.ones_like(mask))[:, -1] - found[:, -1]).abs().max()) > 100 * TOLERANCE


@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize("memory", [1, 5_000, None])
def test_samples_of_several_inputs_do_not_depend_on_batch_size_or_memory(images, memory):
    ids, mask = text()
    words = {"ids": ids, "mask": mask, "positions": torch.linspace(-1, 1, 6)[None]}
    torch.manual_seed(1)
    network = rbue.convert(Text(), rbue.DropReLU(0.6), example=words)
    whole = drawn(network, words)
    parts = [words | {"ids": a, "mask": b} for a, b in zip(ids.split(images), mask.split(images), strict=True)]
    close(drawn(network, parts, memory=memory), whole)
    order = torch.tensor([4, 0, 3])
    close(drawn(network, words | {"ids": ids[order], "mask": mask[order]}, index=order), whole[:, order])


def test_arguments_may_hold_tensors_inside():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, maps, sizes):
            return self.head(sum(torch.relu(one) for one in maps["maps"]) / sum(sizes))

    maps = [torch.randn(5, 4), torch.randn(5, 4)]
    network = rbue.convert(Pyramid(), rbue.DropReLU(0.6))
    found = drawn(network, {"maps": {"maps": maps}, "sizes": (2, 3)})
    close(found, loop(network, 4, {"maps": maps}, (2, 3)))


def test_a_tuple_may_hold_flags_and_images_may_stop_early():
    ids, mask = text()
    network = rbue.convert(Text(), rbue.DropReLU(0.6))
    x = (ids, mask, None, 0.5, True)
    close(drawn(network, x), loop(network, 4, *x))
    early = rbue.predict(network, x, samples=200, adaptive=rbue.Adaptive(0.2, first=4), draws="independent")
    assert early.samples_used.min() < 200
    samples = loop(network, int(early.samples_used.max()), *x)
    for image, count in enumerate(early.samples_used.tolist()):
        close(early.probs[image], samples[:count, image].mean(0))


def test_what_a_network_changes_in_place_is_not_the_callers():
    class Eats(nn.Module):
        def forward(self, x, table):
            return x.add_(table.mul_(2)).relu_()

    x, table = torch.randn(5, 3), torch.randn(1, 3)
    kept = x.clone(), table.clone()
    network = rbue.convert(Eats(), rbue.DropReLU(0.6), example=(x, table))
    first, again = (rbue.predict(network, (x, table), samples=3).probs for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(x, kept[0])
    assert torch.equal(table, kept[1])


def test_arrays_and_datasets_of_images():
    network, x = build("residual", batch=6)
    rbue.convert(network, rbue.DropReLU(0.6), example=x.double().numpy())
    expected = loop(network, 4, x)

    class Images(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, k):
            return {"x": x[k], "label": k}

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(image, 0) for image in x])

    array = x.double().numpy()
    mirrored = array[:, :, :, ::-1].copy()[:, :, :, ::-1]
    swapped = array.astype(">f8")
    frozen = array.copy()
    frozen.flags.writeable = False
    for given in (
        array,
        mirrored,
        swapped,
        frozen,
        [array[:4], (array[4:], None)],
        Images(),
        Stream(),
        (one for one in x.split(4)),
    ):
        close(drawn(network, given), expected)


@pytest.mark.slow
def test_a_compiled_network_takes_keywords():
    ids, mask = text()
    network = rbue.convert(Text(), rbue.DropReLU(0.6), example={"ids": ids, "mask": mask})
    compiled = torch.compile(network, backend="eager")
    close(drawn(compiled, {"ids": ids, "mask": mask}, memory=3_000), loop(network, 4, ids, mask))


@pytest.mark.parametrize("name", ["tuple", "dict", "mapping", "arrays by name", "dict with labels", "DataLoader"])
def test_sites_and_convert_take_the_same_examples(name):
    example = forms()[name]
    if name == "DataLoader":
        ids, mask = text()
        example = DataLoader([{"ids": a, "mask": b, "label": 0} for a, b in zip(ids, mask, strict=True)], batch_size=2)
    assert len(rbue.sites(Text(), example)) == 1
    network = rbue.convert(Text(), rbue.DropReLU(0.6), where="last", example=example)
    close(drawn(network, forms()["dict"]), loop(network, 4, *text()))


def test_an_example_may_be_a_dataset():
    network, x = build("residual", batch=6)
    for example in (TensorDataset(x, torch.arange(6)), DataLoader(TensorDataset(x), batch_size=2)):
        assert len(rbue.sites(network, example)) == 3
        assert len(rbue.sites(nn.ReLU(), example)) == 1  # which has no parameters to be beside of
    with pytest.raises(InvalidInput, match="not generator; give one batch"):
        rbue.sites(network, (one for one in x))


def test_statistics_of_batchnorm_from_every_form():
    class Normed(Text):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, ids, mask, labels=None):
            return self.norm(super().forward(ids, mask))

    torch.manual_seed(0)
    network, (ids, mask) = Normed(), text()
    rbue.convert(network, rbue.DropReLU(0.6), example=(ids, mask))
    found = []
    words = {"ids": ids, "mask": mask, "labels": torch.arange(5)}
    for x in ((ids, mask), words, TensorDataset(ids, mask), [{"ids": ids, "mask": mask}]):
        rbue.update_bn(network, x)
        found.append(network.norm.running_mean.clone())
    rbue.update_bn(network, words, batch_size=3)  # in two passes, which the mean does not show
    for other in (*found[1:], network.norm.running_mean):
        torch.testing.assert_close(other, found[0])
    network.norm.train()
    rbue.seed(network, 0)
    network.norm.momentum = None
    network.norm.reset_running_stats()
    network(ids, mask)
    torch.testing.assert_close(found[0], network.norm.running_mean)


def bad_forms():
    ids, mask = text()
    return [
        ({"ids": ids, "mask": mask[:3]}, r"x\['ids'\] has 5 rows and x\['mask'\] has 3; give as many rows as images"),
        ({"ids": ids[:1], "mask": mask}, r"x\['ids'\] has 1 rows and x\['mask'\] has 5; .* the images first"),
        ((ids, mask[:3]), r"x\[0\] has 5 rows and x\[1\] has 3"),
        ([(ids, mask), (ids, mask[:3])], r"x\[0\] has 5 rows and x\[1\] has 3"),
        ({"ids": ids, "mask": mask, "words": ids}, "the entry 'words', which Text does not take; it takes ids, mask"),
        ({"ids": ids.tolist(), "mask": mask}, r"x\['ids'\] is a list of lists; give a tensor"),
        (
            {"ids": ids[:2], "mask": mask[:2], "scale": [1, 2]},
            r"x\['scale'\] is a list of 2, as many as images, .* give a tensor, or a tuple if it is the same",
        ),
        ({"ids": ids, "mask": mask, "scale": (1, 2, 3, 4, 5)}, r"x\['scale'\] is a tuple of 5, .* give a tensor\."),
        ((ids, mask, None, tuple("abcde")), r"x\[3\] is a tuple of 5, .*; give a tensor, such as token numbers"),
        ({"ids": ids, "mask": {"a": mask, "b": [1] * 5}}, r"x\['mask'\]\['b'\] is a list of 5"),
        ({"ids": 3, "mask": None}, r"x holds no tensor, only x\['ids'\], x\['mask'\]; give tensors with a batch"),
        ({"ids": torch.tensor(3), "mask": torch.tensor(1)}, "only tensors without dimensions"),
        ({"ids": ids, "mask": mask.to_sparse()}, r"x\['mask'\] must be a dense tensor"),
        ({"ids": ids, "mask": mask[:, :0]}, r"x\['mask'\] must hold at least one value an image"),
        ({"ids": ids, "mask": mask.where(mask > 0, float("nan"))}, "x holds NaN or infinity, first in image 4"),
        ({"ids": ids, "mask": mask.to("meta")}, r"x\['mask'\] is on meta but the network is on cpu"),
        (
            {"ids": np.array([[1], [1, 2]], dtype=object), "mask": mask},
            r"x\['ids'\] is an array of object; give one of",
        ),
        (np.ma.masked_array(np.zeros(5)), r"x is a masked array, .* give x.filled\(0\)"),
        ({"ids": torch.nested.nested_tensor([ids[0], ids[1, :2]]), "mask": mask}, "a dense tensor, not a nested"),
        (np.array(["a", "b"]), "x is an array of <U1; give one of numbers"),
        (pack_sequence([mask[:3], mask[:2]]), "x is a PackedSequence, .*; give the padded tensor"),
        ([(pack_sequence([mask[:3], mask[:2]]), 1)], "x is a PackedSequence"),
        ([["a", "b"]], "a loader must yield tensors, dicts of keyword arguments, or tuples .* not str"),
        ([1.5, 2.5], "not float; give a list of numbers as torch.tensor"),
        (["cat.jpg"], r"not str; read images as in training: torch.stack\(\[transform\(image\)"),
        ("cat.jpg", r"not str; read images as in training: torch.stack"),
        (Image.new("RGB", (4, 4)), r"not Image; read images as in training: torch.stack"),
        ([(Image.new("RGB", (4, 4)), 1)], r"not Image; read images as in training: torch.stack"),
        ([{"image": ids}], r"it takes ids, mask.*; of a loader's, keep what it takes: \({'ids': batch\[...\]} for"),
        (7, "x must be a tensor, an array, a dict of keyword arguments, a Dataset or a loader of these, not int"),
    ]


@pytest.mark.parametrize(("x", "message"), bad_forms())
def test_bad_input_is_one_clear_sentence(x, message):
    network = rbue.convert(Text(), rbue.DropReLU(0.5), example=text())
    with pytest.raises(InvalidInput, match=message) as error:
        rbue.predict(network, x, samples=2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("item", [lambda k: (torch.randn(6), None), lambda k: torch.randn(6 + k)])
def test_items_of_a_dataset_that_make_no_batch(item):
    class Items(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, k):
            return item(k)

    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    with pytest.raises(InvalidInput, match=r"items make no batch \(.*\); give a DataLoader with a collate_fn"):
        rbue.predict(network, Items(), samples=2)


@pytest.mark.parametrize("x", [torch.randn(6), [torch.randn(6)] * 3, np.zeros(6, np.float32)])
@pytest.mark.parametrize("example", [None, torch.randn(4, 6)])
def test_an_input_without_a_batch_is_named(x, example):
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5), example=example)
    message = r"x has shape \(6,\), which the network takes only as one of a batch; give x.unsqueeze\(0\)"
    with pytest.raises(InvalidInput, match=message):
        rbue.predict(network, x, samples=2)


class Neighbours(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("among", torch.rand(nodes, nodes))

    def forward(self, x, among=None):
        return self.head((self.among if among is None else among) @ torch.relu(self.layer(x)))


@pytest.mark.parametrize("more", [{}, {"among": torch.rand(5, 5)}], ids=["nodes", "nodes and edges"])
def test_rows_that_the_network_takes_only_together_are_no_images(more):
    network = rbue.convert(Neighbours(5), rbue.DropReLU(0.5))
    with pytest.raises(InvalidInput, match=r"Neighbours takes 5 rows together .* average plain calls: torch.stack"):
        rbue.predict(network, {"x": torch.randn(5, 6), **more}, samples=2)


def test_an_error_of_the_networks_own_stays_what_it_is():
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        rbue.predict(network, torch.randn(4, 5), samples=2)
    with pytest.raises(KeyError, match="scores"):
        rbue.predict(network, torch.randn(4, 6), samples=2, outputs=lambda out: {}["scores"])


def test_a_network_of_one_dict_is_given_it_by_name():
    class OfADict(StatementInPlace):
        def forward(self, batch):
            return super().forward(batch["image"]["x"] + batch["more"][0])

    x = torch.randn(4, 6)
    network, batch = rbue.convert(OfADict(), rbue.DropReLU(0.5)), {"image": {"x": x}, "more": [x]}
    with pytest.raises(InvalidInput, match=r"it takes batch, and if that is the dict itself, give {'batch': x}"):
        rbue.predict(network, batch, samples=2)
    close(drawn(network, {"batch": batch}), loop(network, 4, batch))


def test_a_network_of_one_named_tuple_is_given_it_by_name():
    class OfPairs(StatementInPlace):
        def forward(self, pair):
            return super().forward(pair.x + pair.more)

    pair = namedtuple("Pair", "x more")(torch.randn(4, 6), torch.randn(4, 6))
    network = rbue.convert(OfPairs(), rbue.DropReLU(0.5), example={"pair": pair})
    with pytest.raises(InvalidInput, match=r"x is a Pair, a named tuple; give {'pair': x} if that is one argument of"):
        rbue.predict(network, pair, samples=2)
    with pytest.raises(InvalidInput, match=r"example is a Pair, .* {'pair': example} if .*, give example\[0\]"):
        rbue.sites(network, pair)
    close(drawn(network, {"pair": pair}), loop(network, 4, pair))


@pytest.mark.parametrize("use", [rbue.sites, lambda net, x: rbue.convert(net, rbue.DropReLU(0.5), example=x)])
def test_an_example_of_another_type_is_named(use):
    network = StatementInPlace()
    with pytest.raises(InvalidInput, match=r"x is torch.float64 but .* give x.to\(torch.float32"):
        use(network, torch.randn(4, 6).double())
    assert not rbue.conversion(network)
    with pytest.raises(InvalidInput, match=r"x is torch.float64 but the network is torch.float32"):
        rbue.tune(network, (torch.randn(4, 6).double(), torch.arange(4)))


@pytest.mark.parametrize("use", [rbue.sites, lambda net, x: rbue.convert(net, rbue.DropReLU(0.5), example=x)])
@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((1, 3, 4, 4), r"example is a tuple of int; give one batch as the network takes it, as a tensor\."),
        ([], "example is a list of nothing; give one batch"),
        ([[0.5, 1], [2, 3]], r"example is a list of numbers; give one batch of them, torch\.tensor\(example\)\."),
        ([Image.new("RGB", (4, 4))] * 3, r"a list of Image; .* as a tensor; read images as in training: torch.stack"),
        ([torch.randn(6)] * 3, r"a list of 3, but StatementInPlace takes 1 argument; .* torch.stack\(images\)"),
        (torch.ones(4, 6).byte(), r"x is torch.uint8 .*; give images as in training, such as x.to\(.*\) / 255, norm"),
    ],
)
def test_an_example_that_is_no_batch_is_named(use, example, message):
    network = StatementInPlace()
    with pytest.raises(InvalidInput, match=message) as error:
        use(network, example)
    assert "\n" not in str(error.value)
    assert not rbue.conversion(network)


@pytest.mark.parametrize("use", [rbue.sites, lambda net, x: rbue.convert(net, rbue.DropReLU(0.5), example=x)])
def test_an_example_without_a_batch_is_named(use):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    message = r"x has shape \(3, 8, 8\), which the network takes only as one of a batch; give x.unsqueeze\(0\)"
    with pytest.raises(InvalidInput, match=message):
        use(network, torch.randn(3, 8, 8))


@pytest.mark.parametrize("use", [rbue.sites, rbue.predict, lambda net, x: rbue.predict(net, {"x": x})])
def test_a_long_list_of_numbers_is_refused_without_a_look_at_each(use, monkeypatch):
    seen = []
    monkeypatch.setattr(inputs, "_is_table", lambda x: seen.append(x) or False)
    with pytest.raises(InvalidInput, match="a list of "):
        use(rbue.convert(StatementInPlace(), rbue.DropReLU(0.5)), torch.randn(30, 6).tolist())
    assert len(seen) < 10


class OfAList(StatementInPlace):
    """As detectors are: images as a list, and targets for training."""

    def forward(self, images, targets=None):
        if targets is not None:
            targets[0].items()
        return super().forward(torch.stack([image.mean(0).repeat(3) for image in images]))


@pytest.mark.filterwarnings("ignore:an image's samples depend")
def test_a_network_of_a_list_says_what_its_images_are():
    images = [torch.randn(3, 2), torch.randn(3, 2)]
    with pytest.raises(AttributeError, match="items") as error:
        rbue.convert(OfAList(), rbue.DropReLU(0.5), example=images)
    assert "OfAList with 2 arguments, one for each entry of the example" in error.value.__notes__[0]
    network = rbue.convert(OfAList(), rbue.DropReLU(0.5), example=(images,))
    with pytest.raises(RbueError, match=r"rows for .* the first tensor given, \(.*, 2\); give a list .* stacked"):
        rbue.predict(network, {"images": images}, samples=2, outputs=lambda out: out)
    found = rbue.predict(network, torch.stack(images), samples=3, return_samples=True, draws="independent").samples
    close(found, loop(network, 3, images))


def test_a_tuple_of_settings_may_have_as_many_entries_as_there_are_images():
    class Sized(StatementInPlace):
        def forward(self, x, size):
            return super().forward(x * size[0] / size[1])

    network, x = rbue.convert(Sized(), rbue.DropReLU(0.5)), torch.randn(2, 6)
    close(drawn(network, {"x": x, "size": (2, 3)}), loop(network, 4, x, (2, 3)))


def test_ragged_arrays_and_a_tuple_of_two_meanings_are_named():
    class Optional(StatementInPlace):
        def forward(self, x, mask=None):
            return super().forward(x if mask is None else x * mask)

    network, x = rbue.convert(Optional(), rbue.DropReLU(0.5)), torch.randn(4, 6)
    with pytest.raises(InvalidInput, match=r"x is a list of arrays of shapes \(5,\) and \(6,\); pad them to one"):
        rbue.predict(network, [np.zeros(6), np.zeros(5)], samples=2)
    with pytest.raises(InvalidInput, match="x is a tuple of 2, which may be 2 batches or as many arguments of"):
        rbue.predict(network, (x, x), samples=2)
    assert len(rbue.predict(network, [x, x], samples=2)) == 8
    close(drawn(network, {"x": x, "mask": x}), loop(network, 4, x, x))


def test_a_list_is_one_call_only_for_networks_of_several_inputs():
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    assert len(rbue.predict(network, (x, x), samples=2)) == 8
    ids, mask = text()
    unknown = rbue.convert(Text(), rbue.DropReLU(0.5))  # no example says so, but it cannot do with one
    assert len(rbue.predict(unknown, [ids, mask], samples=2)) == 5
    assert len(rbue.predict(unknown, TensorDataset(ids, mask, torch.arange(5)), samples=2)) == 5


@pytest.mark.parametrize("make", [tuple, list])
def test_a_pair_of_inputs_and_labels_is_named(make):
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    for call in (rbue.predict, rbue.update_bn):
        if call is rbue.update_bn:
            network.norm = nn.BatchNorm1d(2)
        with pytest.raises(InvalidInput, match=f"x is a {make.__name__} of inputs and what looks like their labels"):
            call(network, make([x, torch.zeros(len(x), dtype=torch.int64)]))


def test_a_label_that_the_network_needs_is_given_to_it():
    class Conditional(StatementInPlace):
        def forward(self, x, label):
            return super().forward(x) + label[:, None]

    x, label = torch.randn(4, 6), torch.arange(4.0)
    network = rbue.convert(Conditional(), rbue.DropReLU(0.5))
    found = drawn(network, {"x": x, "label": label})
    close(found, loop(network, 4, x, label))


def test_a_mask_of_minus_infinity_is_no_broken_image():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x, mask):
            return self.head(torch.relu(x) * mask.softmax(1))

    mask = torch.zeros(4, 6)
    mask[1, 3:] = -float("inf")
    x = torch.randn(4, 6)
    network = rbue.convert(Attention(), rbue.DropReLU(0.5))
    close(drawn(network, (x, mask)), loop(network, 4, x, mask))
    with pytest.raises(InvalidInput, match="first in image 1"):
        rbue.predict(rbue.convert(StatementInPlace(), rbue.DropReLU(0.5)), mask, samples=2)


def test_a_batch_is_cut_and_repeated_like_a_tensor():
    table = torch.randn(1, 2)
    batch = Batch((torch.arange(6).reshape(3, 2), table), {"flag": True})
    assert len(batch) == 3
    assert batch[1:].call(lambda x, table, flag: (x.tolist(), len(table), flag)) == ([[2, 3], [4, 5]], 1, True)
    assert batch[torch.tensor([2, 0])].first.tolist() == [[4, 5], [0, 1]]
    repeated = batch[:1].repeat(2)  # one image does not make a table of one row an image
    assert repeated.call(lambda x, table, flag: (x.tolist(), len(table))) == ([[0, 1], [0, 1]], 1)
    assert batch[:2].form == batch[1:].form != Batch((batch.first.float(), table), {"flag": True}).form


def hugging_face(name):
    """A tiny classifier of this family with weights that make a difference, and inputs."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = dict(num_labels=3)
    if name in ("bert", "deberta", "distilbert"):
        ids = torch.randint(1, 50, (6, 7))
        mask = torch.ones_like(ids)
        mask[4:, 3:] = 0  # a plan is made with images that have no padding
        x = transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})
        if name == "bert":
            small |= dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
            config = transformers.BertConfig(intermediate_size=32, max_position_embeddings=16, **small)
            network = transformers.BertForSequenceClassification(config)
        elif name == "deberta":  # sizes are computed by scripted functions
            small |= dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
            small |= dict(relative_attention=True, pos_att_type=["p2c", "c2p"], max_position_embeddings=16)
            config = transformers.DebertaV2Config(intermediate_size=32, **small)
            network = transformers.DebertaV2ForSequenceClassification(config)
        else:
            small |= dict(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16)
            network = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**small))
    else:
        x = transformers.BatchFeature({"pixel_values": torch.randn(6, 3, 8, 8)})
        if name == "vit":
            small |= dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
            network = transformers.ViTForImageClassification(
                transformers.ViTConfig(image_size=8, patch_size=4, **small)
            )
        else:
            small |= dict(num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], patch_size=2, layer_scale_init_value=1.0)
            network = transformers.ConvNextForImageClassification(transformers.ConvNextConfig(image_size=8, **small))
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return network.eval(), x


@pytest.mark.parametrize("name", ["bert", "deberta", "distilbert", "vit", "convnext"])
def test_hugging_face_classifiers_work_as_they_are(name):
    network, x = hugging_face(name)
    rbue.convert(network, rbue.DropActivation(0.7), example=x)
    found = drawn(network, x)
    rbue.seed(network, 0)
    with torch.no_grad():
        expected = torch.stack([network(**x).logits for _ in range(4)]).softmax(2)
    close(found, expected)
    assert float((expected[0] - expected[1]).abs().max()) > 100 * TOLERANCE
    rows = [{key: value[k : k + 2] for key, value in x.items()} | {"labels": torch.tensor([0, 1])} for k in (0, 2, 4)]
    close(drawn(network, rows), expected)
    close(drawn(network, x, memory=1), expected)
    if "attention_mask" in x:
        rbue.convert(network, rbue.DropActivation(0.7), where="last", example=x)
        unmasked, masked = drawn(network, x["input_ids"]), drawn(network, x)
        close(unmasked[:, :4], masked[:, :4])
        assert float((unmasked[:, 4:] - masked[:, 4:]).abs().max()) > 100 * TOLERANCE


class Translating(nn.Module):
    """As encoder-decoders of transformers do: without labels or an input of its own the decoder reads ``ids``."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def prepare_decoder_input_ids_from_labels(self, labels):
        return labels.clamp(min=0).roll(1, 1)

    def forward(self, ids, decoder_input_ids=None, labels=None):
        assert labels is None
        read = self.words(ids if decoder_input_ids is None else decoder_input_ids)
        return self.head(torch.relu(read + self.words(ids).mean(1, keepdim=True)))


def test_the_labels_of_an_encoder_decoder_become_the_input_of_its_decoder():
    ids, labels = torch.arange(12).reshape(3, 4), torch.tensor([[9, 2, 5, -100], [7, 7, 1, 0], [3, 8, 4, 6]])
    network = rbue.convert(Translating(), rbue.DropReLU(0.7), example={"ids": ids, "labels": labels})
    later = network.prepare_decoder_input_ids_from_labels(labels)
    expected = drawn(network, {"ids": ids, "decoder_input_ids": later}, outputs="tokens")
    assert not torch.allclose(drawn(network, ids, outputs="tokens"), expected)
    close(drawn(network, {"ids": ids, "labels": labels}, outputs="tokens"), expected)
    close(drawn(network, [{"ids": ids.numpy(), "labels": labels.numpy()}], outputs="tokens"), expected)
    close(drawn(network, {"ids": ids, "labels": labels.tolist()}, outputs="tokens"), expected)
    close(drawn(network, {"labels": labels, "ids": ids, "decoder_input_ids": None}, outputs="tokens"), expected)
    close(drawn(network, {"labels": labels * 0, "ids": ids, "decoder_input_ids": later}, outputs="tokens"), expected)
    close(drawn(network, {"ids": ids, "labels": None}, outputs="tokens"), drawn(network, ids, outputs="tokens"))


class Cache:
    """Keys of earlier steps, to which each call adds its own; below other objects, as in transformers."""

    def __init__(self, keys):
        self.layers = [SimpleNamespace(keys=keys)]

    def update(self, keys):
        self.layers[0].keys = torch.cat([self.layers[0].keys, keys], 1)
        return self.layers[0].keys


class OneStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, cache):
        keys = cache.update(F.relu(self.first(x))[:, None])
        return self.last(keys.softmax(1).square().sum(1))


@pytest.mark.parametrize("graph", [False, True])
def test_a_cache_is_each_passes_own(graph):
    torch.manual_seed(0)
    network, x = OneStep().eval(), torch.randn(1, 6)
    keys = torch.randn(1, 4, 8, requires_grad=graph) * 1
    cache = Cache(keys)
    rbue.convert(network, rbue.DropReLU(0.5), example=(x, cache))
    rbue.seed(network, 0)
    with torch.no_grad():
        expected = torch.stack([network(x, Cache(keys)) for _ in range(4)]).softmax(2)
    for memory in (None, 1):
        close(drawn(network, {"x": x, "cache": cache}, memory=memory), expected)
    assert cache.layers[0].keys is keys


def test_objects_with_a_row_for_each_image_are_refused():
    network = rbue.convert(OneStep().eval(), rbue.DropReLU(0.5))
    with pytest.raises(rbue.InvalidInput, match=r"x\['cache'\] is a Cache with tensors of 3 rows, as many as images"):
        rbue.predict(network, {"x": torch.randn(3, 6), "cache": Cache(torch.randn(3, 4, 8))}, samples=2)


def test_settings_may_hold_what_cannot_be_copied_and_point_to_each_other():
    class Scaled(OneStep):
        def forward(self, x, settings):
            return self.last(F.relu(self.first(x))) * settings.scale

    network, x = rbue.convert(Scaled().eval(), rbue.DropReLU(0.5)), torch.randn(3, 6)
    settings = SimpleNamespace(scale=torch.ones(3), lock=threading.Lock(), nodes=[])
    settings.nodes = [SimpleNamespace(owner=settings) for _ in range(2000)]
    expected = drawn(network, {"x": x, "settings": SimpleNamespace(scale=1.0)})
    close(drawn(network, {"x": x, "settings": settings}), expected)


class Table:
    """As a DataFrame: numpy reads it, and its iterator has the names of its columns."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __iter__(self):
        return iter("abcdef")

    def __len__(self):
        return len(self.values)

    def keys(self):
        return list("abcdef")


def test_a_table_is_the_array_that_it_holds():
    x, y = torch.randn(5, 6, dtype=torch.float64).numpy(), np.arange(5) % 2
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5), example=Table(x))
    expected = drawn(network, x)
    for form in (
        Table(x),
        {"x": Table(x)},
        [Table(x)],
        [(Table(x), Table(y))],
        DataLoader([0], collate_fn=lambda _: Table(x)),
    ):
        assert torch.equal(drawn(network, form), expected)
    for pairs in ((x, y), (Table(x), Table(y)), iter([(Table(x), Table(y))])):
        assert len(rbue.tune(StatementInPlace(), pairs, where=["last"], q=[0.9]).tried) == 2


def test_labels_beside_an_array_are_named():
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    with pytest.raises(InvalidInput, match=r"inputs and what looks like their labels; give x\[0\] alone"):
        rbue.predict(network, (np.zeros((5, 6)), np.arange(5)), samples=2)


def test_a_dict_that_is_one_argument_may_hold_empty_tensors():
    class OfATable(StatementInPlace):
        def forward(self, batch):
            return super().forward(torch.cat([batch["categories"], batch["numbers"]], 1))

    network = rbue.convert(OfATable(), rbue.DropReLU(0.5))
    x = {"categories": torch.zeros(5, 0), "numbers": torch.randn(5, 6)}
    close(drawn(network, {"batch": x}), loop(network, 4, x))
    with pytest.raises(InvalidInput, match=r"x\['batch'\] must hold at least one value an image"):
        rbue.predict(network, {"batch": {"categories": torch.zeros(5, 0)}}, samples=2)
