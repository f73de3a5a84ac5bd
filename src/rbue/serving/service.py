"""What becomes of a request for a prediction: limits, the token, reading, waiting, the reply; and what is counted."""

from __future__ import annotations

import hmac
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.requests import Request

from rbue._version import __version__
from rbue.errors import InvalidInput, a_kind, whole_number
from rbue.serving.batching import BATCHING, Batcher, QueueFull, Stopping
from rbue.serving.engines import Answers, Engine, Numbers, Sampling
from rbue.serving.uploads import Given, Refused, read, receive

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_DECODERS = 2
"""Images that are decoded at the same time: each may take the memory of as many pixels as are allowed."""


@dataclass(frozen=True)
class Conformal:
    """The threshold of :class:`rbue.decisions.conformal.LAC`: a set has every class with ``1 - p <= threshold``.

    Attributes:
        threshold: of the score.
        coverage: how often a set holds the true class.
        images: how many held-out images it was found on.
    """

    threshold: float
    coverage: float
    images: int

    def sets(self, probs: Numbers) -> NDArray[np.bool_]:
        """Booleans ``(B, C)``; the most probable class is always in."""
        found = 1 - probs.astype(np.float64) <= self.threshold
        found[np.arange(len(probs)), probs.argmax(1)] = True
        return found


@dataclass(frozen=True)
class Settings:
    """Limits of the server, and what it asks for.

    Attributes:
        token: what a client has to send as ``Authorization: Bearer TOKEN``; None: nothing.
        seed: of the samples, if a request does not say.
        batching: how requests share calls of the network (:mod:`rbue.serving.batching`).
        max_batch: images in a call of several requests.
        max_wait: seconds that a request waits for others to share its call.
        queue: requests that are being received or wait; more get 429.
        timeout: seconds for a whole request.
        max_bytes: of a request.
        max_pixels: of an image file.
        max_images: of a request.
        max_samples: of a request.
        conformal: for sets of classes; None: no sets.
    """

    token: str | None = field(default=None, repr=False)
    seed: int = 0
    batching: str = "auto"
    max_batch: int = 8
    max_wait: float = 0.005
    queue: int = 64
    timeout: float = 30.0
    max_bytes: int = 16 << 20
    max_pixels: int = 25_000_000
    max_images: int = 32
    max_samples: int = 1000
    conformal: Conformal | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("max_batch", "queue", "max_bytes", "max_pixels", "max_images", "max_samples"):
            whole_number(getattr(self, name), name)
        whole_number(self.seed, "seed", least=0, most=(1 << 64) - 1)
        if self.batching not in BATCHING:
            raise InvalidInput(f"batching must be one of {', '.join(BATCHING)}, not {self.batching!r}.")
        seconds = isinstance(self.timeout, Real) and isinstance(self.max_wait, Real)
        if not (seconds and 0 < self.timeout < float("inf") and 0 <= self.max_wait < float("inf")):
            raise InvalidInput(f"timeout {self.timeout!r} and max_wait {self.max_wait!r} must be numbers of seconds.")
        if self.token is not None and not (
            isinstance(self.token, str)
            and (self.token.isascii() and self.token.isprintable() and " " not in self.token and len(self.token) >= 8)
        ):
            raise InvalidInput("the token must be a text of at least 8 printable ASCII characters and no space.")
        if not isinstance(self.conformal, Conformal | None):
            raise InvalidInput(
                f"conformal is {self.conformal!r}; give Conformal(threshold, coverage, images) with the numbers that "
                "rbue.decisions.conformal.LAC().fit(probs, labels, 0.9) finds on held-out images."
            )


class Metrics:
    """What Prometheus is told."""

    def __init__(self, waiting: Any) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        own = partial(Histogram, registry=self.registry)
        self.requests = Counter("rbue_requests", "Requests.", ("path", "code"), registry=self.registry)
        self.seconds = own("rbue_request_seconds", "Time of a request for a prediction.", buckets=_SECONDS)
        self.call_images = own("rbue_call_images", "Images in a call of the network.", buckets=(1, 2, 4, 8, 16, 32, 64))
        self.call_seconds = own("rbue_call_seconds", "Time of a call of the network.", buckets=_SECONDS)
        self.samples = own("rbue_samples", "Samples of an image.", buckets=(1, 4, 16, 32, 64, 128, 256, 512, 1024))
        gauge = Gauge("rbue_waiting", "Requests that wait for the network.", registry=self.registry)
        gauge.set_function(waiting)

    def watch_call(self, images: int, seconds: float) -> None:
        """Note one call of the network."""
        self.call_images.observe(images)
        self.call_seconds.observe(seconds)


class Service:
    """One engine with its queue, and what becomes of a request for a prediction."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        if not isinstance(engine, Engine):
            raise InvalidInput(f"engine is {a_kind(engine)}; give an engine, such as NetworkEngine(net).")
        if not isinstance(settings, Settings):
            raise InvalidInput(f"settings is {a_kind(settings)}; give Settings(...), such as Settings(queue=16).")
        if len(set(engine.classes)) < len(engine.classes):
            raise InvalidInput(f"two classes have one name among {', '.join(engine.classes)[:200]}; give each its own.")
        self.engine, self.settings = engine, settings
        self.metrics = Metrics(lambda: self.batcher.waiting)
        self.batcher: Batcher = Batcher(
            engine, settings.max_batch, settings.max_wait, settings.queue, settings.batching, self.metrics.watch_call
        )
        self.in_hand = 0
        self.decoders: anyio.CapacityLimiter | None = None

    def check_token(self, request: Request) -> None:
        """Refuse a request without the token; how long that takes says nothing about it."""
        wanted = self.settings.token
        if wanted is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), wanted.encode()):
            raise Refused(
                401,
                "this server needs its token; send the header 'Authorization: Bearer TOKEN'.",
                {"www-authenticate": "Bearer"},
            )

    def sampling(
        self, samples: int | None, seed: int | None, tolerance: float | None, budget_ms: float | None, spread: int
    ) -> Sampling:
        """The samples that a request wants."""
        engine, settings = self.engine, self.settings
        adapted = samples not in (None, engine.samples) or tolerance is not None or budget_ms is not None
        if adapted and not engine.adapts:
            raise InvalidInput(
                f"the file that is served draws {engine.samples} samples of every image; leave out samples, tolerance "
                "and budget_ms."
            )
        if spread and not engine.keeps:
            raise InvalidInput("the file that is served gives no samples, so spread has to be 0.")
        if spread and (tolerance is not None or budget_ms is not None):
            raise InvalidInput("spread needs all samples of an image; leave out tolerance and budget_ms.")
        most = max(settings.max_samples, engine.samples)
        if samples is not None and samples > most:
            raise InvalidInput(f"samples is {samples}; this server draws at most {most}.")
        deadline = None if budget_ms is None else time.monotonic() + budget_ms / 1000
        return Sampling(
            engine.samples if samples is None else samples,
            settings.seed if seed is None else seed,
            tolerance,
            deadline,
            keep=spread > 0,
        )

    async def answer(self, request: Request, sampling: Sampling, spread: int) -> dict[str, Any]:
        """The reply to a request whose body was not read yet."""
        settings = self.settings
        if self.in_hand >= settings.queue:
            raise _full(settings.queue)
        self.in_hand += 1
        start = time.monotonic()
        deadline = start + settings.timeout
        try:
            given = await self._read(request, deadline)
            try:
                with anyio.fail_after(max(0, deadline - time.monotonic())):
                    answers = await self.batcher.answer(given.x, sampling, deadline)
            except TimeoutError:
                raise Refused(504, f"there was no answer within {settings.timeout:g} s; ask again later.") from None
            except QueueFull:
                raise _full(settings.queue) from None
            except Stopping:
                raise Refused(503, "the server is stopping; ask again in a moment.", {"retry-after": "1"}) from None
        finally:
            self.in_hand -= 1
        self.metrics.seconds.observe(time.monotonic() - start)
        for used in answers.samples_used:
            self.metrics.samples.observe(used)
        return self._reply(answers, given, sampling, spread)

    async def _read(self, request: Request, deadline: float) -> Given:
        settings = self.settings
        try:
            with anyio.fail_after(max(0, deadline - time.monotonic())):
                uploads = await receive(request, settings.max_bytes, settings.max_images)
                # Decoding holds no lock of Python's most of the time, and must not hold up the other requests.
                limits = settings.max_images, settings.max_pixels
                self.decoders = self.decoders or anyio.CapacityLimiter(_DECODERS)
                return await anyio.to_thread.run_sync(read, uploads, self.engine.inputs, *limits, limiter=self.decoders)
        except TimeoutError:
            raise Refused(408, f"the request was not received within {settings.timeout:g} s; send it again.") from None

    def _reply(self, answers: Answers, given: Given, sampling: Sampling, spread: int) -> dict[str, Any]:
        conformal, names = self.settings.conformal, self.engine.classes
        sets = None if conformal is None else conformal.sets(answers.probs)

        def named(values: Numbers) -> dict[str, Any]:
            return dict(zip(names, values.tolist(), strict=True))

        predictions = []
        for k, probs in enumerate(answers.probs):
            label = int(probs.argmax())
            one: dict[str, Any] = {
                "label": names[label],
                "confidence": float(probs[label]),
                "probabilities": named(probs),
                "entropy": float(answers.entropy[k]),
                "mutual_information": float(answers.mutual_information[k]),
                "samples": int(answers.samples_used[k]),
            }
            for key in ("std", "votes"):
                values = getattr(answers, key)
                if values is not None:
                    one[key] = named(values[k])
            if sets is not None:
                one["set"] = [names[place] for place in np.flatnonzero(sets[k])]
            if spread and answers.samples is not None:
                top = np.argsort(-probs, kind="stable")[:spread]
                one["spread"] = {names[place]: answers.samples[k, :, place].tolist() for place in top}
            if k in given.scaled_from:
                one["scaled_from"] = given.scaled_from[k]
            predictions.append(one)
        return {
            "model": self.engine.title,
            "predictions": predictions,
            "seed": sampling.seed,
            **self.engine.facts,
            "coverage": None if conformal is None else conformal.coverage,
            "depends_on_time": sampling.deadline is not None,
            "out_of_time": answers.out_of_time,
        }

    def health(self) -> dict[str, Any]:
        """What the server is, and how it is."""
        engine, settings = self.engine, self.settings
        limits = ("max_bytes", "max_images", "max_pixels", "max_samples", "queue", "timeout")
        return {
            "status": "stopping" if self.batcher.closing else "failed" if self.batcher.failed else "ok",
            "model": engine.title,
            "classes": len(engine.classes),
            "arrays": engine.inputs.words,
            "images": engine.inputs.takes_images,
            "samples": engine.samples,
            "gives_spread": engine.keeps,
            "conformal": None if settings.conformal is None else asdict(settings.conformal),
            "needs_token": settings.token is not None,
            "batching": self.batcher.words,
            "waiting": self.batcher.waiting,
            "limits": {name: getattr(settings, name) for name in limits},
            "rbue": __version__,
        }


def _full(queue: int) -> Refused:
    return Refused(429, f"{queue} requests are waiting already; ask again in a moment.", {"retry-after": "1"})
