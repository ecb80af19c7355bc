"""A door for Prometheus: one page of text on an address that the user names, while a command runs."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from topology.base.errors import InputError
from topology.base.prometheus import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
PAGE = "/metrics"
SLOW_S = 5.0  # a client that asks for longer is sent away
_ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:\s]*|\[[0-9a-fA-F:.]+\]):)?(?P<port>\d{1,5})")


def host_and_port(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; loopback without a host.

    >>> host_and_port("9400"), host_and_port(":9400"), host_and_port("[::1]:9400")
    (('127.0.0.1', 9400), ('127.0.0.1', 9400), ('::1', 9400))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise InputError(
            what=f"{text[:100]!r} is no address to listen on",
            cause="--prometheus takes HOST:PORT, or a port of loopback",
            fix="say --prometheus 9400, or HOST:9400 where others may ask",
        )
    return (match["host"] or LOOPBACK).strip("[]") or LOOPBACK, int(match["port"])


@contextlib.contextmanager
def scraped(address: str | None, text: Callable[[], str]) -> Iterator[int]:
    """Answer GET /metrics with a text, within the context; the port. Nothing listens without an address."""
    if address is None:
        yield 0
        return
    host, port = host_and_port(address)
    try:
        server = _server(host)((host, port), _handler(text, host))
    except (OSError, UnicodeError) as error:
        raise InputError(
            what=f"nothing can listen on {host}:{port}",
            cause=str(error),
            fix="give --prometheus another port, or an address of this machine",
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def _server(host: str) -> type[ThreadingHTTPServer]:
    """A server of the address's family whose threads end with the program."""
    import socket

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


def _is_asked_by_address(host: str | None, here: str) -> bool:
    """Whether a request names an address or the name given: pages of others make theirs point here.

    >>> [_is_asked_by_address(host, "gpu1") for host in ("127.0.0.1:9", "[::1]:9", "gpu1:9", "a.example")]
    [True, True, True, False]
    """
    name = re.sub(r":\d+$", "", host or "").strip("[]")
    with contextlib.suppress(ValueError):
        return bool(ip_address(name))
    return name in ("localhost", here)


def _handler(text: Callable[[], str], here: str) -> type[BaseHTTPRequestHandler]:
    """What answers requests: one page, and nothing is logged."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW_S

        def do_GET(self) -> None:
            """Answer the page of metrics, or that there is none of that name."""
            known = self.path.partition("?")[0] == PAGE and _is_asked_by_address(
                self.headers.get("Host"), here
            )
            with lock:
                body = text().encode() if known else f"ask for {PAGE}\n".encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if known else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
            """Say nothing: a scrape every few seconds is no news."""

    return Handler
