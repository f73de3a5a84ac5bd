"""Compiled code reads the hashes that a pass kept, and gives the same numbers."""

import threading
import time

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rbue.activations import DropReLU, RReLU
from rbue.kernels import kept_tables, random_relu
from rbue.kernels.layout import ElementLayout


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(kept_tables, "_kept", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def kept():
    """Keep a table as a pass on a GPU would."""

    def keep(x, table=None):
        layout = ElementLayout.of(x, len(x))
        with kept_tables.keeping():
            kept_tables._kept[kept_tables._key(layout)] = layout.table() if table is None else table

    return keep


class Graphs:
    """A compiler that notes how many tensors each graph takes."""

    def __init__(self):
        self.inputs = []

    def __call__(self, graph, examples):
        self.inputs.append(sum(isinstance(example, torch.Tensor) for example in examples))
        return graph.forward


@pytest.mark.parametrize(
    ("activation", "memory_format"),
    [
        (DropReLU(0.5), torch.channels_last),
        (RReLU(), torch.contiguous_format),
        pytest.param(DropReLU(0.5), torch.contiguous_format, marks=pytest.mark.slow),
        pytest.param(RReLU(), torch.channels_last, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_formula(activation, memory_format, make_x, make_keys, kept):
    x = make_x(3, 4, 5, 6).contiguous(memory_format=memory_format).requires_grad_()
    keys = make_keys(3)
    kept(x)

    def function(x):
        return random_relu(x, activation, keys)

    found, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x)[0] for out in (found, expected)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, x, activation, keys):
        y = random_relu(self.norms[0](self.first(x)), activation, keys)
        return random_relu(self.norms[1](self.second(y)) + x, activation, keys).mean((2, 3)).square().sum()


@pytest.mark.slow
@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("of_images", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_compiled_networks_in_every_memory_format(of_weights, of_images, make_x, make_keys, kept):
    network, keys = Residual().to(memory_format=of_weights), make_keys(4)
    x = make_x(4, 8, 6, 6).contiguous(memory_format=of_images)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        kept(x.contiguous(memory_format=memory_format))
    found = []
    for run in (torch.compile(network, fullgraph=True, dynamic=False), network):
        network.zero_grad()
        run(x, RReLU(), keys).backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_table_is_read_and_not_computed(make_x, make_keys, kept):
    x, keys = make_x(3, 4, 5, 6), make_keys(3)
    wrong = torch.zeros(1, 4, 5, 6, dtype=torch.int32)
    kept(x, wrong)
    graphs = Graphs()
    out = torch.compile(lambda x: random_relu(x, DropReLU(0.5), keys), fullgraph=True, backend=graphs)(-x.abs())
    assert graphs.inputs == [3]
    rows = (out == 0).flatten(1)
    assert (rows == rows[:, :1]).all()


def test_other_tables_need_no_new_graph_and_a_new_one_is_used(make_x, make_keys, kept):
    x, keys = make_x(3, 4, 5, 6), make_keys(3)
    graphs = Graphs()
    compiled = torch.compile(lambda x: random_relu(x, DropReLU(0.5), keys), fullgraph=True, backend=graphs)
    expected = random_relu(x, DropReLU(0.5), keys)
    assert compiled(x).equal(expected)
    kept(make_x(3, 4, 7, 7))
    assert compiled(x).equal(expected)
    assert graphs.inputs == [2]
    kept(x)
    assert compiled(x).equal(expected)
    assert graphs.inputs == [2, 3]


@pytest.mark.slow
def test_rows_known_only_by_name_read_the_table_and_sizes_known_only_by_name_do_not(make_x, make_keys, kept):
    kept(make_x(1, 4, 5, 6), torch.zeros(1, 4, 5, 6, dtype=torch.int32))  # a wrong one shows that it is read
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, keys):
        return random_relu(x, DropReLU(0.5), keys)

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for rows in (3, 7, 9):
        x = -make_x(rows, 4, 5, 6).abs()
        zeros = (compiled(x, make_keys(rows, balanced=False)) == 0).flatten(1)
        assert (zeros == zeros[:, :1]).all()
    assert counter.frame_count == 2
    for shape in [(9, 4, 8, 8), (8, 4, 9, 7), (6, 4, 10, 3)]:
        x, keys = make_x(*shape), make_keys(shape[0], balanced=False)
        assert compiled(x, keys).equal(function(x, keys))
    assert counter.frame_count == 3


def test_an_exported_program_computes_its_hashes(make_x, make_keys, kept):
    x, keys = make_x(3, 4, 5, 6), make_keys(3)
    kept(x, torch.zeros(1, 4, 5, 6, dtype=torch.int32))

    class Site(torch.nn.Module):
        def forward(self, x, keys):
            return random_relu(x, DropReLU(0.5), keys)

    program = torch.export.export(Site(), (x, keys), strict=True)
    assert program.module()(x, keys).equal(random_relu(x, DropReLU(0.5), keys))
    assert not program.constants


class TestNoting:
    @pytest.fixture(autouse=True)
    def tables(self, monkeypatch):
        monkeypatch.setattr(ElementLayout, "table", lambda self: torch.zeros(self.row_shape, dtype=torch.int32))

    def layout(self, *row, device="cuda"):
        return ElementLayout((2, *row), 2, 1, torch.contiguous_format, True, torch.device(device))

    def test_only_inside_keeping_and_on_a_gpu(self):
        kept_tables.note(self.layout(8))
        with kept_tables.keeping():
            kept_tables.note(self.layout(8, device="cpu"))
        assert not kept_tables._kept
        with kept_tables.keeping():
            kept_tables.note(self.layout(8))
        assert [table.shape for table in kept_tables._kept.values()] == [(1, 8)]

    def test_a_table_is_made_once(self):
        with kept_tables.keeping():
            kept_tables.note(self.layout(8))
            (before,) = kept_tables._kept.values()
            kept_tables.note(self.layout(8))
        (after,) = kept_tables._kept.values()
        assert after is before

    def test_neither_one_nor_all_outgrow_their_limit(self, monkeypatch):
        monkeypatch.setattr(kept_tables, "_LARGEST", 10)
        monkeypatch.setattr(kept_tables, "_ALL", 17)
        with kept_tables.keeping():
            for size in (11, 10, 8, 7):
                kept_tables.note(self.layout(size))
        assert [table.numel() for table in kept_tables._kept.values()] == [10, 7]

    def test_threads_take_turns(self):
        inside, most = [], []

        def work():
            with kept_tables.keeping():
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.02)
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(most) == 1
        assert kept_tables._keeper is None

    def test_another_thread_keeps_nothing(self):
        with kept_tables.keeping():
            other = threading.Thread(target=kept_tables.note, args=[self.layout(8)])
            other.start()
            other.join()
        assert not kept_tables._kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
def test_code_compiled_for_a_gpu_gives_the_same_numbers(activation, make_x, make_keys):
    x = make_x(3, 32, 5, 6).cuda().contiguous(memory_format=torch.channels_last)
    keys = make_keys(3).cuda()
    with kept_tables.keeping():
        expected = random_relu(x, activation, keys)
    assert len(kept_tables._kept) == 1

    def compiled():
        torch._dynamo.reset()
        return torch.compile(lambda x: random_relu(x, activation, keys), fullgraph=True)(x)

    torch.testing.assert_close(compiled(), expected, rtol=1e-6, atol=0)
    for key, table in kept_tables._kept.items():
        kept_tables._kept[key] = torch.zeros_like(table)
    assert not compiled().isclose(expected).all()  # so it was read
