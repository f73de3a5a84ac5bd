"""The server: routes, errors as sentences, headers.

An answer is either a prediction or ``{"error": "one sentence"}`` with a status code: 400 or 422 for what is no use, 401
without the token, 408 for an upload that takes too long, 413 for too much, 415 for an unknown kind, 429 when too
many wait, 503 while stopping, 504 when it took too long, 500 for a fault of the server, whose log says more.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from PIL import Image
from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rbue._version import __version__
from rbue.errors import InvalidInput, did_you_mean
from rbue.serving.engines import Engine
from rbue.serving.service import Metrics, Service, Settings
from rbue.serving.uploads import Refused

ASSETS = Path(__file__).with_name("assets")
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
PATHS = ("/predict", "/health", "/metrics", "/openapi.json", *PAGE)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_log = logging.getLogger("uvicorn.error")  # where the server's own lines go


class One(BaseModel):
    """What is said of one image."""

    label: str
    confidence: float
    probabilities: dict[str, float]
    entropy: float
    mutual_information: float
    samples: int
    std: dict[str, float] | None = None
    votes: dict[str, int] | None = None
    set: list[str] | None = None
    spread: dict[str, list[float]] | None = None
    scaled_from: tuple[int, int] | None = None


class Reply(BaseModel):
    """The answer to a request."""

    model: str
    predictions: list[One]
    seed: int
    draws: str
    stream_version: int
    temperature: float
    coverage: float | None
    depends_on_time: bool
    out_of_time: bool


class Fault(BaseModel):
    """Why there is no answer, in one sentence."""

    error: str


_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"images": {"type": "array", "items": {}}},
                "required": ["images"],
            }
        },
        "image/*": {"schema": {"type": "string", "format": "binary"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}
_FAULTS = (400, 401, 408, 413, 415, 422, 429, 500, 503, 504)


def create_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """The server as an ASGI application; :func:`rbue.serving.serve` runs it.

    Args:
        engine: what answers, such as :class:`rbue.serving.OnnxEngine`.
        settings: limits and the token.
    """
    service = Service(engine, settings or Settings())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such images are refused
        await service.batcher.start()
        _log.info("%s: %s", engine.title, service.batcher.words)
        yield
        await service.batcher.close()

    app = FastAPI(
        title="rbue serve",
        version=__version__,
        description="Predictions with uncertainty from random passes.",
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(_Outermost, metrics=service.metrics)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(InvalidInput, lambda _, error: _fault(422, str(error)))
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, lambda _, error: _fault(400, "the upload was cut off."))

    @app.post(
        "/predict",
        response_model=Reply,
        summary="What is on images, and how sure that is",
        openapi_extra={"requestBody": _BODY},
        responses={code: {"model": Fault} for code in _FAULTS},
    )
    async def predict(
        request: Request,
        samples: Annotated[
            int | None, Query(ge=1, description="Random passes; the most, if it may stop early.")
        ] = None,
        seed: Annotated[int | None, Query(ge=0, lt=1 << 64, description="Of the random passes.")] = None,
        tolerance: Annotated[
            float | None, Query(gt=0, lt=1, description="Stop when the mean is known within it.")
        ] = None,
        budget_ms: Annotated[
            float | None, Query(gt=0, le=3.6e6, description="Stop when so much time is over since the request came.")
        ] = None,
        spread: Annotated[int, Query(ge=0, le=10, description="Give the samples of so many classes.")] = 0,
    ) -> Response:
        """Image files as multipart/form-data, one file as image/* or .npy, or arrays as JSON ``{"images": [...]}``."""
        service.check_token(request)
        _refuse_unknown(request, ("samples", "seed", "tolerance", "budget_ms", "spread"))
        sampling = service.sampling(samples, seed, tolerance, budget_ms, spread)
        return JSONResponse(await service.answer(request, sampling, spread))

    @app.get("/health", summary="What the server is, and how it is")
    async def health() -> Response:
        found = service.health()
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics(request: Request) -> Response:
        service.check_token(request)
        return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4")

    for path, (name, kind) in PAGE.items():
        app.add_api_route(path, partial(_asset, name, kind), include_in_schema=False)
    return app


def _asset(name: str, kind: str) -> Response:
    return Response(_content(name), media_type=kind)


@cache
def _content(name: str) -> bytes:
    return (ASSETS / name).read_bytes()


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    for name in request.query_params:
        if name not in known:
            raise InvalidInput(f"there is no setting {name[:40]!r}{did_you_mean(name[:40], known)}.")
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidInput(f"{name} is given more than once; give it once.")


def _fault(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _fault(error.status, error.sentence, error.headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join(PATHS[:3])
    sentence = {
        404: f"there is nothing at this address; there are {known} and the page at /.",
        405: f"{request.method} does not work here; POST to /predict, GET the others.",
    }.get(error.status_code, f"{error.detail}.")
    return _fault(error.status_code, sentence, dict(error.headers or {}))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    given = str(first.get("input"))[:40]
    return _fault(422, f"{first['loc'][-1]} is {given!r}; {str(first['msg'])[0].lower()}{str(first['msg'])[1:]}.")


class _Outermost:
    """Adds the headers of every response, counts them, and answers where the server itself has failed."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self.metrics.requests.labels(path, str(message["status"])).inc()
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception:
            _log.exception("a request has failed")
            if started:
                raise
            sentence = "the server has failed, not your request; its log says why."
            await _fault(500, sentence)(scope, receive, sending)
