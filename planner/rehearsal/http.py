"""As much of HTTP/1.1 as servers, router and client of a rehearsal speak: one request a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from planner.rehearsal.script import LOOPBACK

MOST_BODY_BYTES: Final = 16 * 2**20
"""A prompt of a million tokens, as numbers, has about 8 MB."""
MOST_HEAD_LINES: Final = 100
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request: its method, path and body."""

    method: str
    path: str
    body: bytes

    def document(self) -> dict[str, Any]:
        """The body as a JSON object; a ValueError where it is none."""
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")  # noqa: TRY004  # the client's mistake, told as one
        return value


Answering: TypeAlias = Callable[[HttpRequest, asyncio.StreamWriter], Awaitable[None]]


async def serve(answer: Answering, port: int) -> None:
    """Answer on a port of this machine alone, until cancelled."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            asked = await _request(reader)
            try:
                await answer(asked, writer)
            except (KeyError, TypeError, ValueError) as problem:
                reply(writer, 400, {"error": {"message": str(problem), "type": "BadRequestError"}})
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, LOOPBACK, port, backlog=1024)
    async with server:
        await server.serve_forever()


async def _request(reader: asyncio.StreamReader) -> HttpRequest:
    """The next request of a connection; a ValueError where it is none."""
    method, path, _ = (await reader.readline()).decode("latin-1").split(" ", 2)
    length = int((await _head(reader)).get("content-length", "0"))
    if not 0 <= length <= MOST_BODY_BYTES:
        raise ValueError(f"a body of {length} bytes")
    return HttpRequest(method=method, path=path, body=await reader.readexactly(length))


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    """The header fields by their name in lower case."""
    head: dict[str, str] = {}
    for _ in range(MOST_HEAD_LINES):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            return head
        name, _, value = line.partition(":")
        head[name.strip().lower()] = value.strip()
    raise ValueError("too many header lines")


def reply(writer: asyncio.StreamWriter, status: int, document: Mapping[str, Any]) -> None:
    """A whole answer at once."""
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


def start_stream(writer: asyncio.StreamWriter) -> None:
    """The head of an answer of server-sent events, which ends with the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")


def event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def asking(
    port: int, path: str, document: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
    """Ask another process of this machine: the status, and what the body is read from."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        body = b"" if document is None else json.dumps(document).encode()
        method = "GET" if document is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        status = int((await reader.readline()).split(b" ")[1])
        await _head(reader)
        yield status, reader
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of each server-sent event, the end of the stream excluded."""
    while line := await reader.readline():
        if line.startswith(b"data: ") and line.strip() != DONE.strip():
            yield line.removeprefix(b"data: ").strip()
