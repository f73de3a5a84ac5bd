"""Which engine runs the steps, and that they are those of the plain loop.

Without a GPU, graphs, streams and the compiler are stand-ins; the real compiler is in the slow tests.
"""

import gc
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from test_trainer import RECIPE, RELATED, batches, fresh

from rbue.errors import InvalidInput, RbueWarning
from rbue.lab.methods import parse
from rbue.lab.processes import Rank
from rbue.lab.training import Job, Recipe, engines, train, train_together
from rbue.lab.training.engines import engine_for
from rbue.lab.training.step import TrainingStep


def test_steps_inside_undone_leave_no_trace():
    """Also not in the counters, the momentum or the running statistics of BatchNorm."""
    method = parse("mc-droprelu:0.8")
    step = TrainingStep(fresh(method), method, batches(), RECIPE, 0)
    step.start_epoch(0)
    step(20)

    def everything():
        momenta = [state["momentum_buffer"] for state in step.optimiser.state.values()]
        counters = [step.done, step.loss_sum, step.correct]
        return [*step.network.parameters(), *step.network.buffers(), *momenta, *counters]

    before = [value.clone() for value in everything()]
    with step.undone():
        step(20)
        assert not all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))


@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_steps_of_several_processes_are_not_captured(engine, monkeypatch):
    method = parse("single")
    step = TrainingStep(fresh(method), method, batches(), RECIPE, 0, Rank(0, 2))
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    with pytest.raises(InvalidInput, match=f"the {engine} engine trains in one process, not in 2"):
        engine_for(step, engine)


@pytest.mark.parametrize(("name", "done", "compiled"), [("auto", 0, True), ("auto", 1, False), ("compiled", 1, True)])
def test_compiling_is_for_many_pixels_to_come(name, done, compiled, monkeypatch):
    method, tried = parse("single"), []
    epochs = -(-60_000 * 128 * 32 * 32 // (96 * 8 * 8))
    step = TrainingStep(fresh(method), method, batches(), Recipe(epochs=epochs), 0)
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    monkeypatch.setattr(engines, "CapturedEngine", lambda step, compiled: tried.append(compiled))
    engine_for(step, name, done)
    assert tried == [compiled]


class RecordedStep(TrainingStep):
    """Notes the steps it takes; while a graph is captured it takes none, as a step on a GPU would not."""

    capturing: "Graph | None" = None
    taken: list

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for parameter in self.network.parameters():  # as on a GPU
            self.optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def __call__(self, rows):
        assert self.network.training
        if RecordedStep.capturing is not None:
            RecordedStep.capturing.step = self, rows, self.forward
        else:
            RecordedStep.taken.append((rows, torch.backends.cudnn.benchmark))
            super().__call__(rows)


class Graph:
    def replay(self):
        step, rows, forward = self.step
        step.forward = forward
        TrainingStep.__call__(step, rows)
        step.forward = None


@pytest.fixture
def graphs(monkeypatch):
    """Stand-ins for what torch offers on a GPU."""

    @contextmanager
    def capture(graph, **_):
        RecordedStep.capturing = graph
        yield
        RecordedStep.capturing = None

    class Stream:
        def __init__(self, *_):
            pass

        def synchronize(self):
            pass

    monkeypatch.setattr(RecordedStep, "taken", [], raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for name in ("stream", "synchronize", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", capture)


@pytest.fixture
def compiled_calls(monkeypatch):
    """The compiler returns the function as it is written, and notes its calls."""
    calls = []

    def compiled(function):
        def called(places):
            calls.append(len(places))
            return function(places)

        return called

    monkeypatch.setattr(engines, "_compiled", compiled)
    return calls


def recorded_step(rows=20, spec="mc-droprelu:0.8", **changes):
    method = parse(spec)
    return RecordedStep(fresh(method), method, batches(batch=rows), Recipe(batch=rows, **changes), 0)


def weights(step):
    return torch.cat([parameter.detach().flatten() for parameter in step.network.parameters()])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [20, 60])
def test_cudnn_searches_in_the_first_step_of_all(rows, compiled, graphs, compiled_calls):
    """torch keeps the first kernel it got for a convolution, so a step without the search would settle it for good.

    An epoch may have fewer batches than there are steps before it.
    """
    before = torch.backends.cudnn.benchmark
    engines.CapturedEngine(recorded_step(rows), compiled)
    # The one small batch of an epoch is not worth a search.
    assert set(RecordedStep.taken) == {(rows, True), (96 % rows, False)}
    assert torch.backends.cudnn.benchmark is before


@pytest.mark.parametrize("compiled", [False, True])
def test_captured_steps_train_the_same_weights_and_only_full_batches_are_compiled(compiled, graphs, compiled_calls):
    step, plain = recorded_step(), recorded_step()
    for one, engine in ((step, engines.CapturedEngine(step, compiled)), (plain, engines.PlainEngine(plain))):
        for epoch in range(2):
            one.network.eval()  # as a report that evaluates leaves it
            one.start_epoch(epoch)
            for rows in one.batch_sizes():
                engine.start_step(rows)
    assert compiled_calls == [20] * (3 + 2 * 4) * compiled  # to warm up, and the full batches of two epochs
    torch.testing.assert_close(weights(step), weights(plain), atol=0, rtol=0)
    assert step.forward is None


def test_captured_steps_move_the_average_and_warming_up_does_not(graphs):
    step, plain = (recorded_step(average="ema", average_decay=0.9) for _ in range(2))
    start = {name: value.detach().clone() for name, value in step.network.named_parameters()}
    captured = engines.CapturedEngine(step)
    assert all(torch.equal(value, start[name]) for name, value in step.average.tensors.items())
    for one, engine in ((step, captured), (plain, engines.PlainEngine(plain))):
        one.start_epoch(0)
        for rows in one.batch_sizes():
            engine.start_step(rows)
    for name, value in step.average.tensors.items():
        assert torch.equal(value, plain.average.tensors[name])
        assert not torch.equal(value, start[name])


@pytest.fixture
def on_a_gpu(graphs, compiled_calls, monkeypatch):
    """Trainings on a CPU get the engines of a GPU."""

    class OnPaper:
        type = "cuda"

    class Step(RecordedStep):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.device = OnPaper()

        def loss_at(self, places):
            device, self.device = self.device, torch.device("cpu")
            try:
                return super().loss_at(places)
            finally:
                self.device = device

    monkeypatch.setattr("rbue.lab.training.trainer.TrainingStep", Step)
    monkeypatch.setattr(engines, "_COMPILING_PAYS", 2 * 96 * 8 * 8)  # two epochs
    return Step


def job(recipe=RECIPE):
    method = parse("mc-droprelu:0.8")
    return Job(fresh(method), method, batches(), recipe, 0)


def test_a_training_says_by_what_engine_it_ran(on_a_gpu):
    assert train(job()).engine == "compiled"
    assert train(job(Recipe(epochs=1, batch=20))).engine == "captured"
    assert train(job(Recipe(epochs=1, batch=4))).engine == "captured", "more steps of fewer pixels"
    assert train(job(), "plain").engine == "plain"


def test_a_step_that_cannot_be_compiled_trains_as_written_in_memory_that_is_free(on_a_gpu, monkeypatch):
    activations = []

    def compiled(function):
        def called(places):
            large = places.clone()
            activations.append(weakref.ref(large))
            raise TypeError("no such kernel\nand many more lines")

        return called

    class NotedEngine(engines.CapturedEngine):
        def __init__(self, step, compiled):
            assert all(one() is None for one in activations)
            super().__init__(step, compiled)

    expected = train(job(), "plain")
    monkeypatch.setattr(engines, "_compiled", compiled)
    monkeypatch.setattr(engines, "CapturedEngine", NotedEngine)
    with pytest.warns(RbueWarning, match=r"the training step cannot be compiled \(no such kernel\)\.") as warned:
        found = train(job())
    assert (len(warned), len(activations), found.engine, found.loss) == (1, 1, "captured", expected.loss)
    with pytest.raises(TypeError, match="no such kernel"):
        train(job(), "compiled")


def test_a_step_that_cannot_be_captured_is_run_as_it_is(on_a_gpu, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with pytest.warns(RbueWarning) as warned:
        assert train(job()).engine == "plain"
    assert [str(one.message).partition(" (")[0][25:] for one in warned] == ["be compiled", "be captured as a graph"]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["single", "mc-dropout:0.3", "mc-droprelu:0.8", "mc-rrelu"])
def test_compiled_steps_train_the_same_weights_in_one_graph_and_keep_no_network(spec):
    found = []
    for compiled in (True, False):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # which other tests of the process have filled
        method = parse(spec)
        step = TrainingStep(fresh(method), method, batches(), RECIPE, 0)
        compiled_loss = engines._compiled(step.loss_at)
        for epoch in range(2):
            step.start_epoch(epoch)
            for rows in step.batch_sizes():
                step.forward = compiled_loss if compiled and rows == RECIPE.batch else None
                step(rows)
        found.append(weights(step))
        assert not torch._dynamo.utils.counters["graph_break"]
        network = weakref.ref(step.network)
        del step, compiled_loss
        gc.collect()
        assert network() is None
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["captured", "compiled"])
@pytest.mark.parametrize("spec", ["single", "mc-dropout:0.3", "mc-droprelu:0.8", "mc-rrelu", "svi", *RELATED])
def test_captured_steps_train_the_weights_of_the_plain_loop(spec, engine):
    """Bit for bit when captured; closely when compiled. SVI's noise is torch's own and differs under a compiler."""
    found = {}
    for name in ("plain", engine):
        method = parse(spec)
        network = fresh(method).cuda()
        data = batches(device=torch.device("cuda"))
        report = []
        summary = train(Job(network, method, data, RECIPE, 0, report=report.append), name)
        assert summary.engine == name
        found[name] = torch.tensor([epoch.loss for epoch in report])
    if spec == "svi" and engine == "compiled":
        assert bool(torch.isfinite(found[engine]).all())
    else:
        tolerance = 0.0 if engine == "captured" and spec != "svi" else 0.05
        torch.testing.assert_close(found[engine], found["plain"], atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
def test_a_long_training_compiles_its_step_and_a_second_one_does_so_in_the_same_process(monkeypatch):
    monkeypatch.setattr(engines, "_COMPILING_PAYS", 1)
    method = parse("mc-droprelu:0.8")
    for seed in (0, 1):
        network, data = fresh(method, seed).cuda(), batches(seed, device=torch.device("cuda"))
        assert train(Job(network, method, data, RECIPE, seed)).engine == "compiled"


@pytest.mark.gpu
def test_networks_side_by_side_train_as_alone():
    method = parse("mc-droprelu:0.8")

    def losses(seeds):
        reports = {seed: [] for seed in seeds}
        jobs = [
            Job(
                fresh(method, seed).cuda(),
                method,
                batches(seed, device=torch.device("cuda")),
                RECIPE,
                seed,
                report=reports[seed].append,
            )
            for seed in seeds
        ]
        train_together(jobs, "captured")
        return {seed: [epoch.loss for epoch in reports[seed]] for seed in seeds}

    together, alone = losses([0, 1, 2]), losses([1])
    assert together[1] == alone[1]
    assert together[0] != together[1]
