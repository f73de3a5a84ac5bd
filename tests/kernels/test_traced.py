"""Compiled, exported and vmapped forms give the bits of the eager one, from one graph."""

import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import metrics
from torch.autograd import forward_ad

from rbue import functional, random_stream
from rbue.activations import DropReLU, RReLU
from rbue.kernels import keys_at, random_relu

SHAPES = [(3, 37), (2, 3, 5, 5)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
ACTIVATIONS = [
    pytest.param([DropReLU(0.5), RReLU()], id="drop and rrelu"),  # in one graph: compiling takes the time
    pytest.param([DropReLU(0), DropReLU(1), RReLU(0, 1)], id="others", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def one_ulp(a, b):
    low, high = torch.nextafter(b, torch.full_like(b, -math.inf)), torch.nextafter(b, torch.full_like(b, math.inf))
    return bool(((low <= a) & (a <= high) | (a.isnan() & b.isnan())).all())


def special_values(dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    values = [0.0, -0.0, -tiny, -1.0, 1.0, -math.inf, math.inf, 6.0, 7.0, math.nan, -math.nan]
    return torch.tensor(values, dtype=dtype).repeat(2, 5)  # full vectors and a rest


def outputs_and_gradients(function, inputs, *numbers):
    leaves = [x.clone().requires_grad_() for x in inputs]
    outs = function(leaves, *numbers)
    return outs, torch.autograd.grad([out.nan_to_num(0, 1, -1).sum() for out in outs], leaves)


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


class TestCompiled:
    def test_masks_are_equal_in_every_shape(self, make_x, make_keys):
        inputs = [make_x(*shape) for shape in SHAPES]
        inputs += [x.contiguous(memory_format=torch.channels_last) for x in inputs if x.dim() == 4]
        keys = [make_keys(len(x)) for x in inputs]

        def function(inputs, keys):
            return [
                random_relu(x, DropReLU(0.5, mask), k)
                for mask in ("element", "channel")
                for x, k in zip(inputs, keys, strict=True)
            ]

        compiled = torch.compile(function, fullgraph=True)
        for out, expected in zip(compiled(inputs, keys), function(inputs, keys), strict=True):
            assert out.equal(expected)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_samples_are_absorbed_alike(self, backend, make_x):
        def function(x, sample):
            return functional.drop_relu(x, 0.5, seed=2**63, sample=sample)

        x, compiled = make_x(3, 37), torch.compile(function, fullgraph=True, backend=backend)
        for sample in (0, 77, 2**31 - 1, -5):
            assert compiled(x, torch.tensor(sample)).equal(function(x, sample))

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [(1, 1), (3, 37), (2, 3, 5, 5), (2, 3, 2, 3, 3)], ids=str)
    def test_seeds_are_absorbed_alike(self, shape, make_x):
        def function(x, seed, sample):
            return functional.drop_relu(x, 0.5, seed=seed, sample=sample)

        x, compiled = make_x(*shape), torch.compile(function, fullgraph=True)
        for seed, sample in ((0, 0), (2**63 - 1, 2**31 - 1), (-1, 77), (12345, -5)):
            numbers = torch.tensor(seed), torch.tensor(sample)
            assert compiled(x, *numbers).equal(function(x, *numbers))

    @pytest.mark.parametrize("activations", ACTIVATIONS)
    @pytest.mark.parametrize("dtypes", [DTYPES[:2], pytest.param(DTYPES[2:], marks=pytest.mark.slow)], ids=str)
    def test_special_values_and_gradients_are_equal_in_every_type(self, activations, dtypes, make_keys):
        keys = make_keys(2)
        cases = [(activation, special_values(dtype)) for activation in activations for dtype in dtypes]
        kinds, inputs = zip(*cases, strict=True)

        def function(inputs):
            return [random_relu(x, kind, keys, cap=6.0) for kind, x in zip(kinds, inputs, strict=True)]

        compiled = outputs_and_gradients(torch.compile(function, fullgraph=True), inputs)
        eager = outputs_and_gradients(function, inputs)
        for outs, expected in zip(compiled, eager, strict=True):
            for kind, out, reference in zip(kinds, outs, expected, strict=True):
                assert out.dtype == reference.dtype
                assert one_ulp(out, reference)
                if isinstance(kind, DropReLU):
                    assert torch.equal(out.nan_to_num(), reference.nan_to_num())

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_new_numbers_and_sizes_need_no_new_graph(self, backend, make_x):
        counter = CompileCounterWithBackend(backend)

        def function(x, seed, sample):
            return functional.drop_relu(x, 0.5, seed=seed, sample=sample)

        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
        for number, size in enumerate([(3, 9, 5, 6), (7, 9, 6, 4), (3, 5, 11, 2), (64, 3, 8, 8)]):
            arguments = make_x(*size), torch.tensor(number << 40), torch.tensor(number)
            assert compiled(*arguments).equal(function(*arguments))
        assert counter.frame_count == 1

    def test_ten_samples_need_one_graph(self, make_x):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            lambda x, sample: functional.rrelu(x, seed=0, sample=sample), fullgraph=True, backend=counter
        )
        x = make_x(3, 37)
        outs = [compiled(x, torch.tensor(sample)) for sample in range(10)]
        assert counter.frame_count == 1
        for sample, out in enumerate(outs):
            assert out.equal(functional.rrelu(x, seed=0, sample=sample))

    def test_in_place_writes_arrive(self, make_x):
        def function(x, sample):
            y = x * 2
            functional.drop_relu(y, 0.5, seed=1, sample=sample, inplace=True)
            return y

        x, sample = make_x(3, 37), torch.tensor(5)
        compiled, eager = (
            outputs_and_gradients(lambda inputs, sample, run=run: [run(inputs[0], sample)], [x], sample)
            for run in (torch.compile(function, fullgraph=True, backend="aot_eager"), function)
        )
        assert compiled[0][0].equal(eager[0][0])
        assert compiled[1][0].equal(eager[1][0])

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["drop_relu", "rrelu"])
    def test_a_small_network_learns_the_same(self, name, make_x):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6 * 25, 5)).double()
        activation = getattr(functional, name)

        def loss(x, sample):
            x = activation(network[1](network[0](x)), seed=1, sample=sample, site=1)
            return activation(network[3](network[2](x)), seed=1, sample=sample, site=2).square().sum()

        arguments = make_x(4, 3, 7, 7, dtype=torch.float64), torch.tensor(3)
        compiled, eager = (
            torch.autograd.grad(run(*arguments), list(network.parameters()))
            for run in (torch.compile(loss, fullgraph=True), loss)
        )
        for gradient, expected in zip(compiled, eager, strict=True):
            assert torch.allclose(gradient, expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*range(1, 20), 31, 33, 63, 65, 1023, 65_537])
def test_compiled_masks_are_equal_in_every_size(size, dtype, make_x, make_keys):
    x, keys = make_x(3, size, dtype=dtype), make_keys(3)
    out = torch.compile(lambda x, keys: random_relu(x, DropReLU(0.5), keys), fullgraph=True, dynamic=False)(x, keys)
    assert out.equal(random_relu(x, DropReLU(0.5), keys))


class Exported(nn.Module):
    def forward(self, x, seed, sample):
        return (
            functional.drop_relu(x, 0.5, seed=seed, sample=sample),
            functional.rrelu(x, seed=seed, sample=sample, site=1),
        )


def test_exported_programs_draw_the_same_after_saving(make_x, tmp_path):
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(
        Exported(), (make_x(4, 3, 5, 5), torch.tensor(0), torch.tensor(0)), dynamic_shapes=({0: batch}, None, None)
    )
    torch.export.save(program, tmp_path / "program.pt2")
    forms = program.module(), torch.export.load(tmp_path / "program.pt2").module()
    for rows, seed, sample in ((4, 0, 0), (1, 2**40 + 3, 5), (7, -1, 2**31 - 1)):
        arguments = make_x(rows, 3, 5, 5, seed=rows), torch.tensor(seed), torch.tensor(sample)
        for form in forms:
            for out, expected in zip(form(*arguments), Exported()(*arguments), strict=True):
                assert out.equal(expected)


@pytest.mark.parametrize("name", ["drop_relu", "rrelu"])
class TestVmapped:
    def test_over_samples(self, name, make_x):
        x, activation = make_x(4, 3, 5, 5), getattr(functional, name)
        for form in (x, x.contiguous(memory_format=torch.channels_last)):
            outs = torch.vmap(lambda sample, x=form: activation(x, seed=1, sample=sample))(torch.arange(5))
            for sample, out in enumerate(outs):
                assert out.equal(activation(x, seed=1, sample=sample))

    def test_over_images(self, name, make_x):
        x, activation = make_x(6, 3, 5, 5), getattr(functional, name)
        numbers = torch.tensor([0, 5, 2, 2**31 - 1, 9, 1])
        outs = torch.vmap(lambda x, image: activation(x, seed=1, image=image))(x, numbers)
        assert outs.equal(activation(x, seed=1, image=numbers))

    def test_over_batches_of_any_layout(self, name, make_x):
        x, activation = make_x(2, 3, 4, 5, 5), getattr(functional, name)
        strided = x.movedim(2, -1).contiguous().movedim(-1, 2)
        outs = torch.vmap(lambda x: activation(x, seed=1))(strided)
        assert outs.equal(torch.stack([activation(part, seed=1) for part in x]))

    def test_over_seeds(self, name, make_x):
        x, activation = make_x(4, 30), getattr(functional, name)
        outs = torch.vmap(lambda seed: activation(x, seed=seed))(torch.arange(3))
        assert outs.equal(torch.stack([activation(x, seed=seed) for seed in range(3)]))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("cap", [None, 0.8])
@pytest.mark.parametrize("activation", [DropReLU(0.6), RReLU()], ids=str)
class TestSecondDerivatives:
    @pytest.fixture
    def function(self, activation, cap, inplace, make_keys):
        keys, weights = make_keys(1), torch.linspace(-1, 1, 6, dtype=torch.float64)

        def function(x):
            y = random_relu(weights * x.clone()[None], activation, keys, cap=cap, inplace=inplace)
            return (y.sum() ** 3 + (y * x).sum() ** 2) / 2

        return function

    def test_forward_mode_over_reverse_equals_reverse_over_reverse(self, function, make_x):
        x = make_x(6).double()
        expected = torch.func.jacrev(torch.func.jacrev(function))(x)
        assert expected.abs().sum() > 0
        torch.testing.assert_close(torch.func.hessian(function)(x), expected)

    def test_for_every_image(self, function, make_x):
        x = make_x(3, 6).double()
        expected = torch.stack([torch.func.hessian(function)(row) for row in x])
        torch.testing.assert_close(torch.vmap(torch.func.hessian(function))(x), expected)

    def test_of_leaves_with_a_tangent(self, function, make_x):
        x, tangent = make_x(6).double().requires_grad_(), torch.linspace(1, 2, 6, dtype=torch.float64)
        (expected,) = torch.autograd.grad(function(x), x)
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent))).tangent
        torch.testing.assert_close(found, expected @ tangent)


def test_compiled_code_makes_keys_once_and_not_for_each_element(monkeypatch):
    monkeypatch.setattr(
        random_stream, "working_words", lambda words: words
    )  # as on a GPU, where few operations are left
    table, states, numbers = (
        torch.randint(-(2**31), 2**31, shape, dtype=torch.int32) for shape in ((99,), (2, 8), (2,))
    )

    def words_at_two_sites(table, states, numbers):
        keys = keys_at(states.unsqueeze(1), numbers.unsqueeze(-1))
        return [random_stream.bits(table, *keys[:, site].unsqueeze(-1)) for site in range(2)]

    metrics.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        found = torch.compile(words_at_two_sites, fullgraph=True)(table, states, numbers)
    assert metrics.ir_nodes_pre_fusion == 3
    for words, expected in zip(found, words_at_two_sites(table, states, numbers), strict=True):
        assert words.equal(expected)


@pytest.mark.slow
def test_compiled_vmap_equals_the_loop(make_x):
    x = make_x(4, 37)

    def function(x, samples):
        return torch.vmap(lambda sample: functional.drop_relu(x, 0.5, seed=1, sample=sample))(samples)

    outs = torch.compile(function, fullgraph=True)(x, torch.arange(5))
    assert outs.equal(torch.stack([functional.drop_relu(x, 0.5, seed=1, sample=sample) for sample in range(5)]))
