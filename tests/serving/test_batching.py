"""The queue: who shares a call with whom, who has to leave, and that no answer depends on it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up_engine import POISON, MadeUp
from torch import nn

import rbue
from rbue.errors import InvalidInput
from rbue.serving import NetworkEngine, Sampling
from rbue.serving.batching import Batcher, QueueFull, Stopping

USUAL = Sampling(4)


def image(value, count=1):
    return np.full((count, 4, 4, 1), value, np.uint8)


def run(engine, use, most=4, wait=0.05, queue=8, batching="auto"):
    """Use a batcher inside a loop, and close it."""

    async def all_of_it():
        batcher = Batcher(engine, most, wait, queue, batching)
        await batcher.start()
        engine.calls.clear()
        try:
            return await use(batcher)
        finally:
            engine.go_on.set()
            await batcher.close()

    return asyncio.run(all_of_it())


def soon(seconds=20):
    return time.monotonic() + seconds


async def queued(batcher, engine, requests, sampling=USUAL):
    """Let requests wait behind a first one that takes its time; gives what became of each."""
    engine.go_on.clear()
    first = asyncio.ensure_future(batcher.answer(image(1), Sampling(9), soon()))
    while not engine.calls:
        await asyncio.sleep(0.001)
    others = [asyncio.ensure_future(batcher.answer(x, sampling, soon())) for x in requests]
    await asyncio.sleep(0.01)
    engine.go_on.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


def test_requests_share_calls_and_each_counts_from_zero():
    engine = MadeUp()
    requests = [image(10), image(20, 2), image(30, 2), image(40)]

    found = run(engine, lambda batcher: queued(batcher, engine, requests))
    assert [(size, index) for size, index, _ in engine.calls] == [(1, [0]), (4, [0, 0, 1, 0]), (2, [0, 1])]
    for x, answers in zip(requests, found, strict=True):
        alone = engine.predict(x, np.arange(len(x)), USUAL)
        assert np.array_equal(answers.probs, alone.probs)
        assert np.array_equal(answers.std, alone.std)


def test_a_network_whose_bits_depend_on_the_batch_gets_requests_one_by_one():
    engine = MadeUp(batch_dependent=True)
    requests = [image(10), image(20)]
    found = run(engine, lambda batcher: queued(batcher, engine, requests))
    assert [size for size, _, _ in engine.calls] == [1, 1, 1]
    assert all(
        np.array_equal(a.probs, engine.predict(x, np.zeros(1, int), USUAL).probs)
        for x, a in zip(requests, found, strict=True)
    )


@pytest.mark.parametrize("what", ["probs", "samples", "std"])
def test_the_largest_call_and_every_number_are_compared(what):
    class Rounding(MadeUp):
        def predict(self, x, index, sampling):
            found = super().predict(x, index, sampling)
            return replace(found, **{what: np.nextafter(getattr(found, what), 9)}) if len(x) == 4 else found

    async def joins(batcher):
        return batcher.joins

    assert run(MadeUp(), joins)
    assert not run(Rounding(), joins)
    assert run(Rounding(), joins, most=3)


def test_calls_of_one_image_are_not_shared():
    async def words(batcher):
        return batcher.words

    assert run(MadeUp(), words, most=1) == "each request has calls of its own"


def test_padded_calls_have_one_size():
    engine = MadeUp(batch_dependent=True)
    requests = [image(10), image(20, 2), image(30, 6)]
    found = run(engine, lambda batcher: queued(batcher, engine, requests), batching="padded")
    assert {size for size, _, sampling in engine.calls if sampling == USUAL} == {4}
    alone = run(engine, lambda batcher: queued(batcher, engine, requests[2:]), batching="padded")
    assert [len(answers.probs) for answers in found] == [1, 2, 6]
    assert np.array_equal(found[2].probs, alone[0].probs)


def test_off_means_off():
    engine = MadeUp()
    run(engine, lambda batcher: queued(batcher, engine, [image(10), image(20)]), batching="off")
    assert [size for size, _, _ in engine.calls] == [1, 1, 1]


@pytest.mark.parametrize("other", [Sampling(5), Sampling(4, tolerance=0.1), Sampling(4, deadline=1e12)])
def test_what_was_not_compared_runs_alone(other):
    engine = MadeUp()
    run(engine, lambda batcher: queued(batcher, engine, [image(10), image(20)], other))
    assert [size for size, _, _ in engine.calls] == [1, 1, 1]


def test_other_seeds_are_other_calls():
    engine = MadeUp()

    async def use(batcher):
        jobs = [batcher.answer(image(k), Sampling(4, seed=k % 2), soon()) for k in range(4)]
        return await asyncio.gather(*jobs)

    run(engine, use)
    assert sorted((size, sampling.seed) for size, _, sampling in engine.calls) == [(2, 0), (2, 1)]


def test_who_shares_a_call_has_asked_for_the_same_samples_kept_or_not():
    engine = MadeUp()
    wanted = [Sampling(5), USUAL, Sampling(4, keep=True)]

    async def use(batcher):
        return await asyncio.gather(*(batcher.answer(image(k), one, soon()) for k, one in enumerate(wanted)))

    found = run(engine, use)
    assert [(size, sampling.samples) for size, _, sampling in engine.calls] == [(1, 5), (2, 4)]
    assert found[2].samples.shape == (1, 4, 3)


def test_one_request_does_not_spoil_anothers_answer():
    engine = MadeUp()
    good, bad, other = run(engine, lambda batcher: queued(batcher, engine, [image(10), image(POISON), image(20)]))
    assert isinstance(bad, InvalidInput)
    assert np.array_equal(good.probs, engine.predict(image(10), np.zeros(1, int), USUAL).probs)
    assert other.probs.shape == (1, 3)


def test_the_queue_has_an_end():
    engine = MadeUp()
    found = run(engine, lambda batcher: queued(batcher, engine, [image(k) for k in range(5)]), queue=3)
    assert [isinstance(one, QueueFull) for one in found] == [False, False, False, True, True]


def test_who_waits_too_long_leaves_and_costs_nothing():
    engine = MadeUp()

    async def use(batcher):
        engine.go_on.clear()
        first = asyncio.ensure_future(batcher.answer(image(1), USUAL, soon()))
        while not engine.calls:
            await asyncio.sleep(0.001)
        late = asyncio.ensure_future(batcher.answer(image(2), USUAL, soon(0.01)))
        left = asyncio.ensure_future(batcher.answer(image(3), USUAL, soon()))
        await asyncio.sleep(0.02)
        left.cancel()
        engine.go_on.set()
        await first
        with pytest.raises(TimeoutError):
            await late

    run(engine, use, wait=0)
    assert len(engine.calls) == 1


def test_nobody_waits_for_others_longer_than_for_an_answer():
    async def use(batcher):
        with pytest.raises(TimeoutError):
            await batcher.answer(image(1), USUAL, soon(0.01))

    start = time.monotonic()
    run(MadeUp(), use, wait=10)
    assert time.monotonic() - start < 5


def test_closing_answers_those_that_wait_and_takes_no_more():
    engine = MadeUp()

    async def use(batcher):
        engine.go_on.clear()
        waiting = [asyncio.ensure_future(batcher.answer(image(k), USUAL, soon())) for k in range(3)]
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0.01)
        with pytest.raises(Stopping):
            await batcher.answer(image(9), USUAL, soon())
        engine.go_on.set()
        found = await asyncio.gather(*waiting)
        await closing
        assert not batcher.failed
        return found

    start = time.monotonic()
    assert len(run(engine, use, wait=10)) == 3
    assert time.monotonic() - start < 5


def test_a_network_answers_with_the_bits_of_predict():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = np.random.default_rng(0).standard_normal((5, 1, 6, 6)).astype(np.float32)
    rbue.convert(net, rbue.DropReLU(0.8), example=torch.from_numpy(x))
    rbue.set_temperature(net, 1.5)
    engine = NetworkEngine(net, samples=20)
    assert engine.inputs.shape == (1, 6, 6)
    engine.calls, engine.go_on = [], asyncio.Event()
    parts = [x[:1], x[1:3], x[3:]]

    async def use(batcher):
        keeping = Sampling(20, keep=True)
        plain = (batcher.answer(part, Sampling(20), soon()) for part in parts)
        return await asyncio.gather(*plain, batcher.answer(x, keeping, soon()))

    for batching in ("auto", "padded", "off"):
        *found, kept = run(engine, use, most=8, batching=batching)
        for part, answers in zip(parts, found, strict=True):
            direct = rbue.predict(net, torch.from_numpy(part), samples=20)
            if batching == "padded":
                assert np.allclose(answers.probs, direct.probs, atol=1e-6)
            else:
                assert np.array_equal(answers.probs, direct.probs)
                assert np.array_equal(answers.mutual_information, direct.mutual_information)
            assert np.array_equal(answers.votes, direct.votes)
        assert kept.samples.shape == (5, 20, 3)


def test_one_logit_an_image_is_served_as_two_classes():
    net = rbue.convert(
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)), rbue.DropReLU(0.5), example=torch.ones(1, 6)
    )
    with pytest.raises(InvalidInput, match="give outputs='binary'"):
        NetworkEngine(net)
    with pytest.raises(InvalidInput, match="outputs is 'values'; the server is for 'logits' and 'binary'"):
        NetworkEngine(net, outputs="values")
    rbue.set_temperature(net, 2.0, augmented=True)
    with pytest.raises(InvalidInput, match="fitted to augmented passes, which the server does not make"):
        NetworkEngine(net, outputs="binary")
    rbue.set_temperature(net, 1.0)
    engine = NetworkEngine(net, samples=5, classes=["no", "yes"], outputs="binary")
    answers = engine.predict(torch.ones(1, 6).numpy(), np.zeros(1, np.int64), Sampling(5))
    assert np.array_equal(answers.probs, rbue.predict(net, torch.ones(1, 6), samples=5, outputs="binary").probs)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((3, 5), r"fails for an array of shape \(1, 3, 5\) \(.+\); give shape= of one input"),
        (4, r"shape is 4; give the sizes of one input, such as \(20,\)"),
        (("4",), "a size in shape is '4'; give a whole number"),
    ],
)
def test_a_shape_that_the_network_does_not_take(shape, says):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    rbue.convert(net, rbue.DropReLU(0.9), example=torch.rand(2, 4))
    with pytest.raises(InvalidInput, match=says):
        NetworkEngine(net, shape=shape, samples=5)


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(30, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask=None):
        words = self.words(tokens) if mask is None else self.words(tokens) * mask[..., None]
        return self.last(torch.relu(words).mean(1))


@pytest.mark.parametrize(
    ("example", "takes"),
    [
        (torch.zeros(2, 7, dtype=torch.long), "whole numbers, such as tokens"),
        ((torch.zeros(2, 7, dtype=torch.long), torch.ones(2, 7)), "2 inputs"),
        ({"tokens": torch.zeros(2, 7, dtype=torch.long)}, "inputs by name"),
    ],
)
@pytest.mark.parametrize("shape", [None, (7,)])
def test_a_network_that_does_not_take_one_array_of_numbers_is_refused(example, takes, shape):
    net = rbue.convert(Texts(), rbue.DropReLU(0.5), example=example)
    with pytest.raises(InvalidInput, match=f"the network takes {takes}, and the server gives it one array"):
        NetworkEngine(net, shape=shape)


def test_arrays_lie_in_memory_as_tensors_do():
    """Some convolutions sum in another order otherwise; NumPy takes any stride for that of a size of 1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    rbue.convert(net, rbue.DropReLU(0.8), example=torch.zeros(1, 1, 6, 6))
    engine = NetworkEngine(net, samples=2, mean=(0.5,), std=(0.5,))
    strides = []
    net[0].register_forward_pre_hook(lambda _, given: strides.append(given[0].stride()))
    picture = engine.inputs.of_pixels(np.zeros((6, 6, 1), np.uint8))
    for x in (picture, np.zeros((1, 6, 6, 1), np.float32).transpose(0, 3, 1, 2)):
        engine.predict(x, np.arange(1), Sampling(2))
    assert set(strides) == {(36, 36, 6, 1)}
    assert picture.strides == (144, 144, 24, 4)


def test_a_budget_stops_the_sampling():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    rbue.convert(net, rbue.DropReLU(0.5), example=torch.zeros(1, 6))
    engine = NetworkEngine(net, samples=512)
    x, index = np.outer([1, 3], np.ones(6)).astype(np.float32), np.arange(2)
    late = engine.predict(x, index, Sampling(512, tolerance=1e-6, deadline=time.monotonic() - 1))
    assert late.out_of_time
    assert late.samples_used.tolist() == [16, 16]
    first = rbue.predict(net, torch.from_numpy(x), samples=16)
    assert np.array_equal(late.probs, first.probs)
    never = engine.predict(x, index, Sampling(64, tolerance=1e-6, deadline=time.monotonic() + 600))
    assert not never.out_of_time
    assert never.samples_used.tolist() == [64, 64]
    clock_alone = engine.predict(x, index, Sampling(512, deadline=time.monotonic() + 600))
    assert clock_alone.samples_used.tolist() == [512, 512]
    settled = engine.predict(x, index, Sampling(512, tolerance=0.5))
    assert not settled.out_of_time
    assert settled.samples_used.max() < 512


def test_who_waits_no_longer_makes_room():
    async def asked():
        engine = MadeUp()
        batcher = Batcher(engine, 1, 0, 1, "off")
        x = engine.inputs.noise(1)
        waiting = asyncio.ensure_future(batcher.answer(x, Sampling(engine.samples), time.monotonic() + 60))
        await asyncio.sleep(0)
        assert batcher.waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return batcher.waiting

    assert asyncio.run(asked()) == 0
