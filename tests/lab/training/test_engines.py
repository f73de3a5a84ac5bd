"""Which engine runs the steps, and when it changes to compiled ones; graphs and streams are stand-ins without a GPU."""

import gc
import threading
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from test_trainer import RECIPE, batches, fresh

from rbue.errors import InvalidInput, RbueWarning
from rbue.lab.methods import parse
from rbue.lab.training import Job, Recipe, compiler, engines, train, train_together
from rbue.lab.training.engines import engine_for
from rbue.lab.training.step import Share, TrainingStep


@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_steps_of_several_processes_are_not_captured(engine, monkeypatch):
    method = parse("single")
    step = TrainingStep(fresh(method), method, batches(), RECIPE, 0, Share(0, 2))
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    with pytest.raises(InvalidInput, match=f"the {engine} engine trains in one process, not in 2"):
        engine_for(step, engine)


@pytest.mark.parametrize(
    ("spec", "done", "compiling"), [("single", 0, "beside"), ("single", 199, "never"), ("svi", 0, "first")]
)
def test_compiling_is_for_many_steps_to_come(spec, done, compiling, monkeypatch):
    """And not beside steps that draw from torch's own generator, which the compiler puts back where it was."""
    method, tried = parse(spec), []
    step = TrainingStep(fresh(method), method, batches(batch=1), Recipe(epochs=300), 0)
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    monkeypatch.setattr(engines, "CapturedEngine", lambda step, compiling: tried.append(compiling))
    engine_for(step, "auto", done)
    assert tried == [compiling]


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
        step.forward = step.loss_at


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


class Compilation:
    """Says when it has ended, and what came of it; its function is the one it was given, and counts its calls."""

    made: list

    def __init__(self, function):
        self.written, self.calls, self.error = function, 0, None
        self.is_started = self.has_ended = self.cancelled = False
        Compilation.made.append(self)

    def function(self):
        if self.error is not None:
            raise self.error
        return self.called

    def called(self, places):
        self.calls += 1
        return self.written(places)

    def start(self, first_call):
        self.is_started, self.first_call = True, first_call

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def compilations(monkeypatch):
    monkeypatch.setattr(Compilation, "made", [], raising=False)
    monkeypatch.setattr(compiler, "Compilation", Compilation)
    return Compilation.made


def recorded_step(rows=20, spec="mc-droprelu:0.8"):
    method = parse(spec)
    return RecordedStep(fresh(method), method, batches(batch=rows), Recipe(batch=rows), 0)


def weights(step):
    return torch.cat([parameter.detach().flatten() for parameter in step.network.parameters()])


@pytest.mark.parametrize("compiling", ["never", "first", "beside"])
@pytest.mark.parametrize("rows", [20, 60])
def test_cudnn_searches_in_the_first_step_of_all(rows, compiling, graphs, compilations):
    """torch keeps the first kernel it got for a convolution, so a step without the search would settle it for good.

    An epoch may have fewer batches than there are steps before it.
    """
    before = torch.backends.cudnn.benchmark
    engines.CapturedEngine(recorded_step(rows), compiling)
    # The one small batch of an epoch is not worth a search.
    assert set(RecordedStep.taken) == {(rows, True), (96 % rows, False)}
    assert torch.backends.cudnn.benchmark is before


def run_epochs(step, engine, epochs, between=lambda epoch: None):
    for epoch in range(epochs):
        between(epoch)
        engine.before_epoch()
        step.start_epoch(epoch)
        for rows in step.batch_sizes():
            engine.start_step(rows)


def test_steps_are_compiled_beside_the_first_epochs(graphs, compilations):
    """They change to the compiled ones between epochs, keep training the same weights, and small batches stay as is."""
    step, plain = recorded_step(), recorded_step()
    engine = engines.CapturedEngine(step, "beside")
    (compilation,) = compilations
    assert not compilation.is_started
    names = []

    def between(epoch):
        names.append(engine.name)
        compilation.has_ended = epoch >= 2
        step.network.eval()  # as a report that evaluates leaves it

    run_epochs(step, engine, 4, between)
    run_epochs(plain, engines.PlainEngine(plain), 4)
    assert names == ["captured", "captured", "captured", "compiled"]
    assert compilation.calls == 3 + 2 * 4  # to practise, and the full batches of two epochs
    torch.testing.assert_close(weights(step), weights(plain), atol=0, rtol=0)
    assert step.forward == step.loss_at


def test_the_first_call_of_a_compiled_step_is_like_those_that_follow(graphs, compilations):
    step, seen = recorded_step(), []
    engine = engines.CapturedEngine(step, "beside")
    engine.before_epoch()
    compilations[0].first_call(seen.append)
    assert [places.tolist() for places in seen] == [list(range(20))]


def test_a_step_is_compiled_first_when_asked_to(graphs, compilations):
    engine = engines.CapturedEngine(recorded_step(), "first")
    assert engine.name == "compiled"
    assert compilations[0].calls == 3
    engine.before_epoch()
    assert not compilations[0].is_started


def test_a_step_that_could_not_be_compiled_first_is_as_written(graphs, compilations, monkeypatch):
    def fail(self, places):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Compilation, "called", fail)
    step = recorded_step()
    with pytest.raises(RuntimeError, match="no such kernel"):
        engines.CapturedEngine(step, "first")
    assert step.forward == step.loss_at


@pytest.mark.parametrize("where", ["compiling", "running"])
def test_training_goes_on_as_written_if_the_step_cannot_be_compiled(where, graphs, compilations):
    step, plain = recorded_step(), recorded_step()
    engine = engines.CapturedEngine(step, "beside")
    (compilation,) = compilations

    def fail(places):
        raise RuntimeError("no such kernel\nand many more lines")

    if where == "compiling":
        compilation.error = TypeError("no such kernel")
    else:
        compilation.called = fail

    def between(epoch):
        compilation.has_ended = epoch == 1

    with pytest.warns(RbueWarning, match=r"the training step cannot be compiled \(no such kernel\)\.") as warned:
        run_epochs(step, engine, 3, between)
    assert len(warned) == 1
    run_epochs(plain, engines.PlainEngine(plain), 3)
    assert engine.name == "captured"
    torch.testing.assert_close(weights(step), weights(plain), atol=0, rtol=0)


def test_a_step_that_failed_frees_its_memory_before_steps_as_written_need_it(graphs, compilations):
    step, kept = recorded_step(), []
    engine = engines.CapturedEngine(step, "beside")
    (compilation,) = compilations

    def fail(places):
        activations = places.clone()
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("too large")

    def as_written(places, loss_at=step.loss_at):
        kept.append(kept[0]())
        return loss_at(places)

    engine.before_epoch()
    compilation.called, compilation.has_ended, step.loss_at = fail, True, as_written
    with pytest.warns(RbueWarning, match="too large"):
        engine.before_epoch()
    assert kept[1:] == [None] * 3


@pytest.fixture
def on_a_gpu(graphs, compilations, monkeypatch):
    """Trainings on a CPU get the engines of a GPU."""

    class Step(RecordedStep):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.device = OnPaper()

    class OnPaper:
        type = "cuda"

    monkeypatch.setattr("rbue.lab.training.trainer.TrainingStep", Step)
    monkeypatch.setattr(Step, "loss_at", as_on_a_cpu(TrainingStep.loss_at))
    monkeypatch.setattr(engines, "_COMPILING_PAYS", 1)
    return compilations


def as_on_a_cpu(loss_at):
    def method(self, places):
        device, self.device = self.device, torch.device("cpu")
        try:
            return loss_at(self, places)
        finally:
            self.device = device

    return method


def job(report=None, seed=0, recipe=RECIPE):
    method = parse("mc-droprelu:0.8")
    return Job(fresh(method, seed), method, batches(seed), recipe, seed, report=report)


def test_a_training_says_by_what_engine_it_ended(on_a_gpu):
    def ended(epoch):
        on_a_gpu[0].has_ended = True

    assert train(job(ended)).engine == "compiled"
    assert train(job()).engine == "captured"


def test_compiling_ends_with_the_training(on_a_gpu):
    train(job())
    assert [compilation.cancelled for compilation in on_a_gpu] == [True]


def test_compiling_ends_for_one_that_diverges_while_others_go_on(on_a_gpu):
    cancelled = []

    def note(epoch):
        cancelled.append([compilation.cancelled for compilation in on_a_gpu])

    train_together([job(recipe=replace(RECIPE, rate=1e30)), job(note, seed=1)])
    assert cancelled[-1] == [True, False]


def test_compiling_ends_when_a_training_is_stopped(on_a_gpu):
    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together([job(stop), job(seed=1)])
    assert [compilation.cancelled for compilation in on_a_gpu] == [True, True]


def reset_compiler():
    """Where a torch built for CUDA finds no GPU, it crashes if the first who compiles is a thread that ends."""
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


def busy():
    while True:
        pass


class TestCompilation:
    """With a backend that compiles nothing, which takes no time; see the slow tests for the real one."""

    @pytest.fixture(autouse=True)
    def fast_backend(self, monkeypatch):
        reset_compiler()
        self.compiled = []

        def backend(graph, inputs):
            self.compiled.append(threading.current_thread())
            return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        monkeypatch.setattr(compiler, "_inductor", backend)

    def ended(self, compilation, first_call):
        compilation.start(first_call)
        compilation._backend.thread.join()
        assert compilation.has_ended
        return compilation

    def test_a_thread_compiles_and_runs_nothing(self):
        changed = torch.zeros(())

        def function(x):
            changed.add_(1)
            return x * changed

        compilation = compiler.Compilation(function)
        assert not compilation.is_started
        self.ended(compilation, lambda compiled: compiled(torch.ones(3)))
        assert changed == 0
        assert len(self.compiled) == 1
        with torch.compiler.set_stance("fail_on_recompile"):
            assert compilation.function()(torch.ones(3)).tolist() == [1, 1, 1]
        assert changed == 1
        assert self.compiled[0] is not threading.current_thread()

    def test_a_function_may_be_compiled_without_a_thread(self):
        compilation = compiler.Compilation(lambda x: x + 1)
        assert compilation.function()(torch.ones(1)) == 2
        assert self.compiled == [threading.current_thread()]
        assert not compilation.has_ended

    def test_what_a_thread_failed_with_is_raised_where_its_function_is_wanted(self):
        def fail(compiled):
            raise ValueError("no")

        compilation = self.ended(compiler.Compilation(lambda x: x), fail)
        with pytest.raises(ValueError, match="no"):
            compilation.function()

    @pytest.mark.parametrize("in_thread", [False, True])
    def test_a_network_is_not_kept_by_what_was_compiled_for_it(self, in_thread):
        class Network:
            def scaled(self, x):
                return x * 2

        network = Network()
        compilation = compiler.Compilation(network.scaled)
        if in_thread:
            self.ended(compilation, lambda compiled: compiled(torch.ones(1)))
        assert compilation.function()(torch.ones(1)) == 2
        gone = weakref.ref(network)
        del network, compilation
        gc.collect()
        assert gone() is None

    def test_one_that_is_cancelled_ends_at_once(self):
        def call(compiled):
            started.set()
            while True:  # as long as a compiler takes
                compiled(torch.ones(1))

        started, compilation = threading.Event(), compiler.Compilation(lambda x: x + 1)
        compilation.cancel()  # there is nothing to stop yet
        compiler._inductor = lambda graph, inputs: busy()  # put back by the fixture
        compilation.start(call)
        started.wait()
        compilation.cancel()
        assert compilation.has_ended
        compilation.cancel()

    def test_one_that_waits_for_another_is_cancelled_too(self):
        """And the one after it goes on waiting for the first."""
        first, second, third = (compiler.Compilation(lambda x: x + 1) for _ in range(3))
        called, go_on = [], threading.Event()
        first.start(lambda compiled: go_on.wait())
        second.start(called.append)
        third.start(lambda compiled: called.append(go_on.is_set()))
        second.cancel()
        assert second.has_ended
        assert not first.has_ended
        third._backend.thread.join(0.3)
        assert not called
        go_on.set()
        third._backend.thread.join()
        assert called == [True]

    def test_a_thread_runs_nothing_either_where_compiling_is_switched_off(self):
        called = []

        def function(number):
            called.append(number)

        with torch.compiler.set_stance("force_eager"):
            compilation = self.ended(compiler.Compilation(function), lambda compiled: compiled(1))
            assert not called
            compilation.function()(2)
        assert called == [2]
        assert not self.compiled

    def test_one_is_compiled_at_a_time(self):
        inside, most = [], []

        def call(compiled):
            inside.append(1)
            most.append(len(inside))
            compiled(torch.ones(1))

        def backend(graph, inputs):
            threading.Event().wait(0.05)
            inside.pop()
            return graph.forward

        compiler._inductor = backend  # put back by the fixture
        compilations = [compiler.Compilation(lambda x, n=n: x + n) for n in range(3)]
        for compilation in compilations:
            compilation.start(call)
        for compilation in compilations:
            compilation._backend.thread.join()
        assert most == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["mc-droprelu:0.8", "mc-rrelu"])
def test_both_passes_of_a_step_are_compiled_before_it_runs(spec):
    """By the real compiler: no code is made in the first step that is taken, and it is the step as written."""
    from torch._inductor.codecache import PyCodeCache

    reset_compiler()
    step, plain = (TrainingStep(fresh(parse(spec)), parse(spec), batches(), RECIPE, 0) for _ in range(2))
    step.start_epoch(0)
    before = weights(step)
    compilation = compiler.Compilation(step.loss_at)
    compilation.start(lambda compiled: step.next_loss(20, compiled))
    compilation._backend.thread.join()
    made = len(PyCodeCache.modules)
    assert torch.equal(weights(step), before)
    step.start_epoch(1)
    plain.start_epoch(1)
    step.forward = compilation.function()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            step(20)
            plain(20)
    assert len(PyCodeCache.modules) == made
    torch.testing.assert_close(weights(step), weights(plain), atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["single", "mc-dropout:0.3", "mc-droprelu:0.8", "mc-rrelu"])
def test_steps_compiled_beside_others_train_the_weights_of_the_plain_loop(spec, monkeypatch):
    monkeypatch.setattr(engines, "_COMPILING_PAYS", 1)
    method, found = parse(spec), {}
    recipe = Recipe(epochs=6, batch=20)
    for name in ("plain", "auto"):
        report, started = [], []

        def wait(epoch, report=report, started=started):
            report.append(epoch.loss)
            for thread in threading.enumerate():
                if thread.name == "rbue compiler":
                    started.append(thread)
                    if len(report) == 3:
                        thread.join()

        network = fresh(method).cuda()
        summary = train(Job(network, method, batches(device=torch.device("cuda")), recipe, 0, report=wait), name)
        assert summary.engine == {"plain": "plain", "auto": "compiled"}[name]
        assert bool(started) is (name == "auto")
        found[name] = torch.tensor(report)
    torch.testing.assert_close(found["auto"][:3], found["plain"][:3], atol=0, rtol=0)
    torch.testing.assert_close(found["auto"], found["plain"], atol=0.05, rtol=0.05)
