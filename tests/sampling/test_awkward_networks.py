"""Networks whose code looks at its batch, at random numbers or at row numbers: samples are those of plain calls."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import assert_drawn_as_one_by_one, drawn_one_by_one
from torch import nn

import rbue
from rbue.call_sites import conversion_of
from rbue.errors import RbueWarning
from rbue.sampling.rounding import agree
from rbue.sampling.shared_prefix import row_numbers

COMPANY = "depend on the batch"


class Layers(nn.Module):
    def __init__(self, hidden=32, classes=4):
        super().__init__()
        self.first, self.last = nn.Linear(6, hidden), nn.Linear(hidden, classes)


class PlacesOfRows(Layers):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(500, 32))

    def forward(self, x):
        return self.last(torch.relu(self.first(x) + self.places[: len(x)]))


class Summed(Layers):
    def forward(self, x):
        return self.last(torch.relu(self.first(x).cumsum(0)))


class OneRowIsSpecial(Layers):
    def forward(self, x):
        h = self.first(x)
        return self.last(torch.relu(h - 1 if len(h) > 1 else h))


class EarlyExit(Layers):
    def __init__(self):
        super().__init__(64)
        self.early, self.more = nn.Linear(64, 4), nn.Linear(64, 64)

    def forward(self, x):
        h = torch.relu(self.first(x))
        early = self.early(h)
        return early if early.softmax(1).amax(1).min() > 0.3 else self.last(torch.relu(self.more(h)))


class HowManyAreUnsure(EarlyExit):
    """Asks for a size that random numbers decide, in one of several ways."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask

    def forward(self, x):
        h = torch.relu(self.first(x))
        early = self.early(h)
        unsure = early.softmax(1).amax(1) < 0.3
        return self.last(torch.relu(self.more(h))) if self.ask(h, unsure) else early


ASKED = {
    "nonzero": lambda h, unsure: len(unsure.nonzero()),
    "where": lambda h, unsure: torch.where(unsure)[0].numel(),
    "mask": lambda h, unsure: (2 * h[unsure]).shape[0],
    "masked_select": lambda h, unsure: h[:, 0].masked_select(unsure).size(0),
    "unique": lambda h, unsure: unsure.int().unique().shape == (2,),
    "loop": lambda h, unsure: list(h[unsure]),
    "slice": lambda h, unsure: h[: unsure.sum()].shape[0],
}


class AsLongAs(Layers):
    def forward(self, x):
        h = torch.relu(self.first(x))
        while h.norm().item() > 0.5:
            h = 0.7 * h
        return self.last(h)


class Sorted(Layers):
    """Puts the batch in an order and back, with a class that is ruled out."""

    def __init__(self):
        super().__init__(16)
        self.between = nn.GRU(16, 16, batch_first=True)

    def forward(self, x):
        order = x.sum((1, 2)).argsort()
        out = self.last(self.between(torch.relu(self.first(x))[order])[1][-1])[order.argsort()]
        return torch.cat([out, torch.full_like(out[:, :1], -100.0)], 1)


class Selected(Layers):
    def forward(self, x):
        order = x.sum(1).argsort()
        return self.last(torch.relu(self.first(x)).index_select(dim=0, index=order))


def converted(make, x, seed=0, activation=None):
    torch.manual_seed(seed)
    return rbue.convert(make().eval(), activation or rbue.DropReLU(0.8), example=x)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.RReLU()])
@pytest.mark.parametrize("make", [PlacesOfRows, Summed, OneRowIsSpecial, EarlyExit, AsLongAs, Sorted, Selected])
def test_samples_are_those_of_plain_calls(make, activation, images):
    for seed in range(3):
        torch.manual_seed(100 + seed)
        x = torch.randn(images, 7, 6) if make is Sorted else torch.randn(images, 6)
        net = converted(make, x, seed, activation)
        assert_drawn_as_one_by_one(net, x, 12, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("ask", ASKED)
def test_sizes_that_random_numbers_decide_are_those_of_plain_calls(ask, images):
    for seed in range(4):
        torch.manual_seed(100 + seed)
        x = torch.randn(images, 6)
        net = converted(lambda: HowManyAreUnsure(ASKED[ask]), x, seed)
        assert_drawn_as_one_by_one(net, x, 12, rtol=1e-4, atol=1e-6)


class Knobs(Layers):
    """A network that can be set to go another way."""

    def __init__(self):
        super().__init__()
        self.norm, self.steps, self.threshold = nn.BatchNorm1d(32, track_running_stats=False), 0, None
        self.config, self.settings, self.function = SimpleNamespace(center=False), {"center": False}, torch.relu
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        h = self.function(self.first(x))
        for _ in range(self.steps + self.config.center + self.settings["center"]):
            h = h - h.mean(0)
        if self.threshold is not None and h.mean() > self.threshold:
            return self.last(h)
        return self.last(torch.relu(h + self.norm(h)))


def centred(h):
    return torch.relu(h - h.mean(0))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda net: nn.init.ones_(net.norm.weight),
        lambda net: setattr(net, "steps", 1),
        lambda net: setattr(net, "threshold", 0.2),
        lambda net: setattr(net.config, "center", True),
        lambda net: net.settings.update(center=True),
        lambda net: setattr(net, "function", centred),
    ],
    ids=["weights", "number", "kind", "config", "settings", "function"],
)
def test_what_was_found_out_about_a_network_holds_until_it_changes(change):
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    net = converted(Knobs, x)
    rbue.predict(net, x, samples=3)
    plans = dict(conversion_of(net).plans)
    rbue.predict(net, x, samples=3)
    assert all(conversion_of(net).plans[key] is plan for key, plan in plans.items())  # none was made anew
    change(net)
    assert_drawn_as_one_by_one(net, x, 6, rtol=1e-4, atol=1e-6)


class Counts(Layers):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(torch.relu(self.first(x)))


def test_a_network_that_counts_its_calls_has_one_plan():
    x = torch.randn(4, 6)
    net = converted(Counts, x)
    rbue.predict(net, x, samples=3)
    (plan,) = conversion_of(net).plans.values()
    rbue.predict(net, x, samples=3)
    assert list(conversion_of(net).plans.values()) == [plan]
    assert next(iter(conversion_of(net).plans.values())) is plan


class Keeps(Layers):
    """Makes prototypes of weights once, and keeps them."""

    def __init__(self):
        super().__init__()
        self.prototypes, self.kept = nn.Parameter(torch.randn(10, 6)), None

    def forward(self, x):
        if self.kept is None:
            self.kept = torch.relu(self.first(self.prototypes))
            self.also = [self.kept]
        return torch.relu(self.first(x)) @ self.also[0].t()


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("example", [False, True])
def test_what_a_network_keeps_of_a_pass_is_not_that_of_a_pass_that_was_only_looked_at(example):
    torch.manual_seed(0)
    net, x = Keeps().eval(), torch.randn(5, 6)
    rbue.convert(net, rbue.DropReLU(0.8), example=x if example else None)
    assert net.kept is None
    assert not hasattr(net, "also")
    assert len(rbue.sites(net, x)) == 2
    other = copy.deepcopy(net)
    got = rbue.predict(net, x, samples=6, return_samples=True, draws="independent").samples
    torch.testing.assert_close(got, drawn_one_by_one(other, x, 6), rtol=1e-4, atol=1e-6)


class SequenceFirst(Layers):
    def __init__(self):
        super().__init__()
        self.between = nn.TransformerEncoderLayer(32, 4, 64)

    def forward(self, x):
        return self.last(self.between(self.first(x).transpose(0, 1)).mean(0))


class RelativeToTheLast(Layers):
    def forward(self, x):
        h = self.first(x)
        return self.last(torch.relu(h - h[-1:]))


class InChunks(Layers):
    def forward(self, x):
        return torch.cat([self.last(torch.relu(self.first(part))) for part in x.split(3)])


class SparseInside(Layers):
    def forward(self, x):
        edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 5]])
        graph = torch.sparse_coo_tensor(edges, torch.ones(4), (6, 6), check_invariants=True)
        return self.last(torch.relu(self.first(torch.sparse.mm(graph, x.T).T)))


@pytest.mark.parametrize("memory", [None, 1])
def test_a_network_may_make_sparse_tensors(memory):
    x = torch.randn(5, 6)
    net = converted(SparseInside, x)
    got = rbue.predict(net, x, samples=5, return_samples=True, draws="independent", memory=memory).samples
    torch.testing.assert_close(got, drawn_one_by_one(net, x, 5), rtol=1e-4, atol=1e-6)


class SortedBefore(Layers):
    def forward(self, x):
        order = x[:, 0].argsort()
        return self.last(torch.relu(self.first(x[order])))[order.argsort()]


@pytest.mark.parametrize("descending", [False, True])
def test_rows_that_are_in_order_may_be_sorted_all_the_same(descending):
    x = torch.randn(5, 6).sort(0, descending=descending).values
    net = converted(SortedBefore, x)
    with pytest.warns(RbueWarning, match=COMPANY):
        assert_drawn_as_one_by_one(net, x, 5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize(
    ("make", "shape"), [(SequenceFirst, (8, 12, 6)), (RelativeToTheLast, (5, 6)), (InChunks, (5, 6)), (Summed, (5, 6))]
)
def test_what_depends_on_the_batch_is_said_and_the_batch_stays_whole(make, shape, memory):
    x = torch.randn(shape)
    net = converted(make, x, activation=rbue.RReLU())
    with pytest.warns(RbueWarning, match=COMPANY):
        got = rbue.predict(net, x, samples=3, memory=memory, return_samples=True, draws="independent").samples
    torch.testing.assert_close(got, drawn_one_by_one(net, x, 3), rtol=1e-4, atol=1e-6)


class SomeTakeABranch(Layers):
    """What only the images shows that lie far out, of which the first ones are none."""

    def __init__(self):
        super().__init__()
        self.more = nn.Linear(32, 32)

    def forward(self, x):
        h = torch.relu(self.first(x))
        far = (x[:, 0] > 2).nonzero()[:, 0]
        return self.last(h.index_add(0, far, torch.relu(self.more(h[far]))) if len(far) else h)


@pytest.mark.parametrize("where", [20, 400])
def test_the_same_call_gives_the_same_where_the_batch_is_found_to_matter_late(where):
    x = torch.randn(500, 6).clamp(max=1.9)
    x[where:, 0] += 1.5
    net = converted(SomeTakeABranch, x[:4])
    how = {"samples": 6, "memory": 1 << 16, "return_samples": True, "draws": "independent"}
    with pytest.warns(RbueWarning, match=COMPANY):
        first, second = (rbue.predict(net, x, **how).samples for _ in range(2))
    assert torch.equal(first, second)


def test_a_warning_is_of_the_line_that_asked_for_the_prediction():
    """Python shows one a line: at a line of rbue's there would be one for all networks."""
    x = torch.randn(4, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for make in (Summed, PlacesOfRows):
            net = converted(make, x)
            rbue.predict(net, x, samples=2)
        rbue.predict(converted(Summed, x), x, samples=2)
    assert [one.filename for one in caught] == [__file__] * 2
    assert len({one.lineno for one in caught}) == 2


@pytest.mark.parametrize("change", ["statistics", "hook", "mode"])
def test_a_plan_is_made_again_for_a_network_that_was_changed(change):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(16, 6)
    rbue.convert(net.eval(), rbue.DropReLU(0.7), example=x)
    rbue.predict(net, x, samples=5, draws="independent")
    if change == "statistics":
        net[1].track_running_stats, net[1].running_mean, net[1].running_var = False, None, None
    elif change == "hook":
        net[2].register_forward_hook(lambda module, inputs, out: out - out.mean(0))
    else:
        net[1] = nn.LayerNorm(32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_drawn_as_one_by_one(net, x, 5, rtol=1e-4, atol=1e-6)
    assert any(COMPANY in str(one.message) for one in caught) == (change != "mode")


@pytest.mark.parametrize(("before", "after"), [(False, True), ("", "centred")])
def test_a_plan_is_made_again_for_a_network_with_a_switch_that_was_turned(before, after):
    class Switched(Layers):
        centred = before

        def forward(self, x):
            h = torch.relu(self.first(x))
            return self.last(h - h.mean(0) if self.centred else h)

    x = torch.randn(16, 6)
    net = converted(Switched, x)
    net.centred = before
    rbue.predict(net, x, samples=5, draws="independent")
    net.centred = after
    with pytest.warns(RbueWarning, match=COMPANY):
        assert_drawn_as_one_by_one(net, x, 5, rtol=1e-4, atol=1e-6)


def test_a_switch_among_the_arguments_has_a_plan_of_its_own():
    class Switched(Layers):
        def forward(self, x, centred):
            h = torch.relu(self.first(x))
            return self.last(h - h.mean(0) if centred else h)

    x = torch.randn(16, 6)
    net = rbue.convert(Switched().eval(), rbue.DropReLU(0.7))
    rbue.predict(net, (x, False), samples=5)
    with pytest.warns(RbueWarning, match=COMPANY):
        rbue.predict(net, (x, True), samples=5)


def test_a_network_that_returns_its_own_memory_is_compared_with_what_it_returned_before():
    class Kept(Layers):
        def __init__(self):
            super().__init__()
            self.memory = torch.zeros(500, 4)

        def forward(self, x):
            h = torch.relu(self.first(x))
            self.memory[: len(h)] = self.last(h - h.mean(0))
            return self.memory[: len(h)]

    x = torch.randn(6, 6)
    net = converted(Kept, x)
    with pytest.warns(RbueWarning, match=COMPANY):
        got = rbue.predict(net, x, samples=5, return_samples=True, draws="independent").samples
    rbue.seed(net, 0)
    with torch.no_grad():
        torch.testing.assert_close(got, torch.stack([net(x).softmax(1) for _ in range(5)]), rtol=1e-4, atol=1e-6)


def test_numbers_that_pick_rows_are_found():
    x, rows = torch.randn(4, 3), torch.tensor([2, 0, 1, 3])
    columns, mask = rows[:, None] % 3, rows > 1
    alike = [range(4), [2, 0, 1, 3], slice(4)]
    picking = [
        (torch.Tensor.__getitem__, (x, rows), {}),
        (torch.Tensor.__getitem__, (x, (rows, 1)), {}),
        (torch.Tensor.__setitem__, (x, rows, 0.0), {}),
        (torch.index_select, (x, 0, rows), {}),
        (torch.Tensor.index_add_, (x, 0, rows, x), {}),
        (torch.Tensor.index_select, (x,), {"dim": -2, "index": rows}),
        (torch.Tensor.index_put_, (x, (rows,), x), {}),
        (torch.take, (x, rows), {}),
        *((torch.Tensor.__getitem__, (x, (one, 1)), {}) for one in alike),
        *((torch.Tensor.__getitem__, (x, one), {}) for one in alike),
    ]
    for func, args, kwargs in picking:
        assert [one is rows or one in alike for one in row_numbers(func, args, kwargs)] == [True], func
    others = [
        (torch.Tensor.__getitem__, (x, mask), {}),
        (torch.Tensor.__getitem__, (x, 0), {}),
        (torch.Tensor.__getitem__, (x, (0, 1)), {}),
        (torch.Tensor.__getitem__, (x, (rows[0], 1)), {}),
        (torch.Tensor.__getitem__, (x, [True, False, True, True]), {}),
        (torch.Tensor.__getitem__, (x, np.array([True, False, True, True])), {}),
        (torch.gather, (x, 1, columns), {}),
        (torch.Tensor.gather, (x,), {"dim": -1, "index": columns}),
        (torch.add, (x, rows[:, None]), {}),
    ]
    for func, args, kwargs in others:
        assert row_numbers(func, args, kwargs) == [], func
    assert row_numbers(torch.Tensor.__getitem__, (x, (slice(None), rows[:3])), {}) == [slice(None)], "all, of columns"


class Domains(Layers):
    """Each image is scaled as its own domain is: one number of a row, so that two samples often have the same."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.scale = rows, nn.Linear(6, 5)

    def forward(self, x, domain):
        scale = torch.relu(self.scale(x))
        return self.last(torch.tanh(self.first(x))) * (1 + scale[self.rows(len(x)), domain][:, None])


class RowsOfTheBatch(Domains):
    """One number for all: of as many rows as the batch has, which are all of them."""

    def forward(self, x, domain):
        return self.last(torch.relu(self.first(x))) * (1 + torch.relu(self.scale(x))[self.rows(len(x))][:, 4:])


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    ("make", "rows"),
    [
        *((Domains, rows) for rows in (torch.arange, range, np.arange, lambda count: list(range(count)))),
        *((RowsOfTheBatch, rows) for rows in (torch.arange, slice)),
    ],
    ids=range(6),
)
def test_samples_of_one_image_whose_network_counts_its_rows_are_drawn_as_one_by_one(make, rows, images):
    for seed in range(8):
        torch.manual_seed(seed)
        net, x = make(rows).eval(), (torch.randn(images, 6), torch.randint(0, 5, (images,)))
        rbue.convert(net, rbue.DropReLU(0.8), example=x)
        got = rbue.predict(net, x, samples=20, return_samples=True, draws="independent").samples
        rbue.seed(net, 0)
        with torch.no_grad():
            torch.testing.assert_close(got, torch.stack([net(*x).softmax(1) for _ in range(20)]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("constant", [-50.0, 100.0, -1e3])
def test_a_constant_in_the_place_of_a_score_does_not_hide_a_difference(constant):
    torch.manual_seed(0)
    scores = torch.randn(2, 2, 4)
    scores[..., 3] = constant
    other = scores.clone()
    other[1, 0, 1] += 0.02
    assert agree(scores.clone(), scores)
    assert agree(scores + 1e-5 * (scores != constant), scores)
    assert not agree(other, scores)
    assert not agree(other[1:, :1], scores[1:, :1])


class KeepsRows(nn.Module):
    """Goes on from what it kept of the call before, begins anew with other rows, and makes a table once."""

    def __init__(self, how):
        super().__init__()
        self.step, self.head, self.how, self.made = nn.Linear(14, 8), nn.Linear(8, 3), how, 0
        self.table = self.state = None
        self.states = []
        if how == "buffer":
            self.register_buffer("kept", torch.empty(0, 8))

    def forward(self, x):
        if self.table is None:
            self.table, self.made = torch.ones(7, 1), self.made + 1
        kept = {"attribute": self.state, "buffer": getattr(self, "kept", None), "list": (self.states or [None])[-1]}
        state = kept[self.how]
        if state is None or len(state) != len(x):
            state = x.new_zeros(len(x), 8)
        state = torch.relu(self.step(torch.cat([x, state], 1))) * self.table.mean()
        if self.how == "list":
            self.states.append(state)
        else:
            setattr(self, "state" if self.how == "attribute" else "kept", state)
        return self.head(state)


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("how", ["attribute", "buffer", "list"])
def test_what_a_network_keeps_of_a_pass_is_not_there_in_the_next(how, images):
    torch.manual_seed(0)
    net, x = KeepsRows(how).eval(), torch.randn(images, 6)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    first, again, cut = (
        rbue.predict(net, x, samples=6, return_samples=True, draws="independent", memory=memory).samples
        for memory in (None, None, 1)
    )
    assert torch.equal(first, again)
    torch.testing.assert_close(cut, first)
    rbue.seed(net, 0)
    expected = []
    for _ in range(6):
        net.state, net.states, net.kept = None, [], torch.empty(0, 8)
        with torch.no_grad():
            expected.append(net(x).softmax(1))
    torch.testing.assert_close(first, torch.stack(expected))
    made = net.made
    rbue.predict(net, x, samples=6, memory=1)
    assert net.made == made  # what is no pass's own stays


class MakesATableOnce(nn.Module):
    """Behind a flag or a number of its own, which says that the table is there."""

    def __init__(self, how):
        super().__init__()
        self.first, self.head, self.how = nn.Linear(6, 8), nn.Linear(8, 3), how
        self.ready, self.filled, self.tables, self.named, self.table = False, 0, [], {}, None
        self.register_buffer("inside", torch.zeros(8))

    def forward(self, x):
        table = torch.linspace(1, 2, 8)
        if not self.ready and self.filled != 8:
            if self.how == "attribute":
                self.table = table
            elif self.how == "list":
                self.tables.append(table)
            elif self.how == "dict":
                self.named["table"] = table
            elif self.how == "buffer":
                self.register_buffer("mask", table)
            if self.how == "in place":
                self.inside[:], self.filled = table, 8
            else:
                self.ready = True
        made = {"attribute": lambda: self.table, "list": lambda: self.tables[0], "dict": lambda: self.named["table"]}
        made |= {"buffer": lambda: self.mask, "in place": lambda: self.inside}
        return self.head(torch.relu(self.first(x) * made[self.how]()))


@pytest.mark.parametrize("images", [1, 3, 8])
@pytest.mark.parametrize("how", ["attribute", "list", "dict", "buffer", "in place"])
@pytest.mark.parametrize("converted_with", ["example", "nothing"])
def test_a_table_that_a_flag_says_is_there_is_there(how, images, converted_with):
    torch.manual_seed(0)
    net, x = MakesATableOnce(how).eval(), torch.randn(images, 6)
    reference = copy.deepcopy(net)
    rbue.convert(net, rbue.DropReLU(0.5), example=x if converted_with == "example" else None)
    found = [rbue.predict(net, x, samples=4, return_samples=True, draws="independent").samples for _ in range(2)]
    rbue.convert(reference, rbue.DropReLU(0.5))
    rbue.seed(reference, 0)
    with torch.no_grad():
        expected = torch.stack([reference(x).softmax(1) for _ in range(4)])
        net(x)
    for one in found:
        torch.testing.assert_close(one, expected)


class KeepsABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("kept", torch.zeros(1, 8))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.kept = torch.relu(self.first(x)) * self.scale
        return self.head(self.kept)


def test_threads_may_share_a_network_that_keeps_a_buffer():
    torch.manual_seed(0)
    net, x = rbue.convert(KeepsABuffer().eval(), rbue.DropReLU(0.5)), torch.randn(4, 6)
    rbue.predict(net, x, samples=3)
    with ThreadPoolExecutor(4) as pool:
        wrong = [job.exception() for job in [pool.submit(rbue.predict, net, x, 3) for _ in range(800)]]
    assert wrong == [None] * 800
