"""The server as a process: an address, a log, and an end that leaves no request without its answer."""

from __future__ import annotations

import logging
import signal
import socket

import uvicorn

from rbue.errors import InvalidInput, whole_number
from rbue.serving.app import create_app
from rbue.serving.engines import Engine
from rbue.serving.service import Settings

_log = logging.getLogger("uvicorn.error")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(engine: Engine, settings: Settings | None = None, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve an engine until SIGTERM or SIGINT; requests that were accepted are answered first.

    Args:
        engine: what answers.
        settings: limits and the token.
        host: address to listen at; other machines can reach it only if that is another one than localhost.
        port: likewise; 0 takes any that is free, which the log names.

    Raises:
        InvalidInput: the address cannot be used.
    """
    settings = settings or Settings()
    app = create_app(engine, settings)
    listening = bound(host, port)
    config = uvicorn.Config(
        app,
        log_level="info",
        access_log=False,  # one line a request is what /metrics is for
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(settings.timeout) + 5,
        server_header=False,
    )
    if host not in _LOCAL and settings.token is None:
        _log.warning("anyone who reaches %s can ask this server; set a token.", host)
    server = _Server(config)
    # uvicorn raises the signal again when it has stopped, to end the process by it: having stopped as asked is success.
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
        for one, handler in before.items():
            signal.signal(one, handler)


class _Server(uvicorn.Server):
    """Says where the page is when it can be opened."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            _log.info("ready at http://%s:%d", f"[{host}]" if ":" in host else host, port)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the address, or why there is none."""
    port = whole_number(port, "port", least=0, most=(1 << 16) - 1)  # of larger ones the system takes the last 16 bits
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen()  # till then another process can have the same address
        except OSError:
            found.close()
            raise
        return found
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"cannot listen at {host}:{port} ({why}); give another --host or --port.") from error
