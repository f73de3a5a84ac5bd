"""Compiled code reads the hashes that a pass kept, and gives the same numbers."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from rbue.activations import DropReLU, RReLU, kept_tables, random_relu
from rbue.activations.layout import ElementLayout

pytestmark = pytest.mark.filterwarnings("ignore")


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
        kept_tables._kept[kept_tables._key(layout)] = layout.table() if table is None else table

    return keep


class Graphs:
    """A compiler that notes how many tensors each graph takes."""

    def __init__(self):
        self.inputs = []

    def __call__(self, graph, examples):
        self.inputs.append(sum(isinstance(example, torch.Tensor) for example in examples))
        return graph.forward


@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_values_and_gradients_are_those_of_the_formula(activation, memory_format, make_x, make_keys, kept):
    x = make_x(3, 4, 5, 6).contiguous(memory_format=memory_format).requires_grad_()
    keys = make_keys(3)
    kept(x)

    def function(x):
        return random_relu(x, activation, keys)

    found, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x)[0] for out in (found, expected)))


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


def test_rows_known_only_by_name_read_the_table_and_sizes_known_only_by_name_do_not(make_x, make_keys, kept):
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, keys):
        return random_relu(x, DropReLU(0.5), keys)

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    shapes = [(3, 4, 5, 6), (7, 4, 5, 6), (9, 4, 5, 6), (9, 4, 8, 8), (8, 4, 9, 7), (6, 4, 10, 3)]
    for shape in shapes:
        x, keys = make_x(*shape), make_keys(shape[0])
        kept(make_x(1, 4, 5, 6))
        assert compiled(x, keys).equal(function(x, keys))
    assert counter.frame_count == 3


def test_nothing_is_kept_on_a_cpu_or_outside_of_keeping(make_x):
    layout = ElementLayout.of(make_x(3, 4), 3)
    kept_tables.note(layout)
    with kept_tables.keeping():
        kept_tables.note(layout)
    assert not kept_tables._kept


def test_a_table_larger_than_a_cache_is_not_kept():
    shape = (2, kept_tables._LARGEST + 1)
    with kept_tables.keeping():
        kept_tables.note(ElementLayout(shape, 2, 1, torch.contiguous_format, True, torch.device("cuda")))
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
    found = torch.compile(lambda x: random_relu(x, activation, keys), fullgraph=True)(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
