"""The stand-in of a router: requests to equal servers by turns, or through a prefill and a decode server."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.rehearsal.http import DONE, HttpRequest, asking, event, events, reply, serve, start_stream
from planner.rehearsal.script import LocalPort, RehearsalScript
from planner.rehearsal.server import after

_NGINX = re.compile(r"^\s*server (\S+:\d+);", re.MULTILINE)
_URL = re.compile(r'^\s*- "([^"]+:\d+)"', re.MULTILINE)


def workers_of(program: str, words: Sequence[str], script: RehearsalScript) -> list[LocalPort]:
    """The servers that a router's own words, or the file they name, tell it of."""
    text = list(words)
    if program in ("nginx", "trtllm-serve"):
        read = Path(after(text, "-c")).read_text(encoding="utf-8")
        return [script.door(match) for match in (_NGINX if program == "nginx" else _URL).findall(read)]
    return [script.door(word) for word in text if word.startswith("http://")]


async def run_router(script: RehearsalScript, workers: Sequence[LocalPort], port: int) -> None:
    """Pass requests on until cancelled."""
    turns = {
        role: itertools.cycle([worker for worker in workers if worker.role == role])
        for role in {worker.role for worker in workers}
    }

    async def answer(asked: HttpRequest, writer: asyncio.StreamWriter) -> None:
        path = asked.path.partition("?")[0]
        if path == "/health":
            reply(writer, 200 if await _all_ready(workers) else 503, {})
        elif path != "/v1/completions":
            reply(writer, 404, {"error": {"message": f"no {path} here", "type": "NotFoundError"}})
        elif "prefill" in turns:
            pair = next(turns["prefill"]), next(turns["decode"])
            await _through_pools(script, asked.document(), *pair, writer)
        else:
            await _through(next(turns[""]), asked.document(), writer)

    await serve(answer, port)


async def _all_ready(workers: Sequence[LocalPort]) -> bool:
    """Whether every server answers."""
    try:
        for worker in workers:
            async with asking(worker.port, "/health") as (status, _):
                if status != 200:
                    return False
    except OSError:
        return False
    return True


async def _through(worker: LocalPort, document: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Pass a request to a server, and its answer back as it comes."""
    async with asking(worker.port, "/v1/completions", document) as (status, reader):
        if status != 200 or document.get("stream") is not True:
            reply(writer, status, json.loads(await reader.read() or b"{}"))
            return
        start_stream(writer)
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()


async def _through_pools(
    script: RehearsalScript,
    document: dict[str, Any],
    prefill: LocalPort,
    decode: LocalPort,
    writer: asyncio.StreamWriter,
) -> None:
    """Let one server compute the prompt and another the output, its cache on the way between them.

    Every token is the decode server's, the first too; of a request of one token the prefill server's.
    """
    prompt = {**document, "max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
    async with asking(prefill.port, "/v1/completions", prompt) as (_, reader):
        await reader.read()
    start_stream(writer)
    if document["max_tokens"] == 1:
        writer.write(event({"object": "text_completion", "choices": [{"index": 0, "text": " a"}]}))
    else:
        moving_s = script.transfer_s + script.transfer_s_per_token * len(document["prompt"])
        await asyncio.sleep(moving_s * script.slowdown)
        rest = {**document, "kv_transfer_params": {"do_remote_prefill": True}}
        async with asking(decode.port, "/v1/completions", rest) as (_, reader):
            async for item in events(reader):
                writer.write(b"data: " + item + b"\n\n")
    writer.write(DONE)
