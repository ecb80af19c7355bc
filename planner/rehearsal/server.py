"""The stand-in of an engine: an OpenAI-compatible server whose tokens come when the plan says they would."""

from __future__ import annotations

import asyncio
from typing import Any

from planner.rehearsal.batches import Batches, Request
from planner.rehearsal.http import DONE, HttpRequest, event, reply, serve, start_stream
from planner.rehearsal.script import RehearsalScript
from topology.base.errors import InputError

BATCH_FLAGS = ("--max-num-seqs", "--max-running-requests", "--max_batch_size")
WORKER_FLAGS = ("--headless",)


def check_words(words: list[str], script: RehearsalScript, role: str) -> None:
    """Refuse a command that starts another server than the one simulated: its limit on running requests."""
    pool = script.pools[role]
    count = next((int(after(words, flag)) for flag in BATCH_FLAGS if flag in words), None)
    ranks = pool.times.ranks if BATCH_FLAGS[1] not in words else 1
    if count is not None and count != -(-pool.rules.max_batch // ranks):
        raise InputError(
            what="the command does not start what was simulated",
            cause=f"it runs up to {count} requests, the simulation {pool.rules.max_batch} on {ranks} ranks",
            fix="save the deployment again",
        )


def after(words: list[str], flag: str) -> str:
    """The word after a flag, "" without one.

    >>> after(["--port", "8000"], "--port"), after(["--port"], "--host")
    ('8000', '')
    """
    return words[words.index(flag) + 1] if flag in words[:-1] else ""


async def run_server(script: RehearsalScript, role: str, port: int) -> None:
    """Serve completions, models and health until cancelled."""
    batches = Batches(script.pools[role], slowdown=script.slowdown)

    async def answer(asked: HttpRequest, writer: asyncio.StreamWriter) -> None:
        path = asked.path.partition("?")[0]
        if path == "/v1/completions" and asked.method == "POST":
            await _complete(batches, asked.document(), writer)
        elif path == "/v1/models":
            reply(writer, 200, {"object": "list", "data": [{"id": "rehearsal", "object": "model"}]})
        elif path in ("/health", "/health_generate", "/readiness", "/liveness"):
            reply(writer, 200, {})
        else:
            reply(writer, 404, {"error": {"message": f"no {path} here", "type": "NotFoundError"}})

    running = asyncio.create_task(batches.run())
    serving = asyncio.create_task(serve(answer, port))
    done, _ = await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _complete(batches: Batches, document: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Answer one completion: token by token when it streams, else when all are there."""
    request = completion_tokens(document)
    stream = document.get("stream") is True
    if stream:
        start_stream(writer)
    sent = 0
    async for tokens in batches.tokens(request):
        if stream:
            for _ in range(tokens - sent):
                writer.write(event({"object": "text_completion", "choices": [{"index": 0, "text": " a"}]}))
            sent = tokens
    usage = {"prompt_tokens": request.input_tokens, "completion_tokens": request.output_tokens}
    usage["total_tokens"] = sum(usage.values())
    whole = {"object": "text_completion", "choices": [], "usage": usage}
    if stream:
        writer.write(event(whole) + DONE)
    else:
        text = " a" * request.output_tokens
        answer = whole | {"choices": [{"index": 0, "text": text, "finish_reason": "length"}]}
        if (document.get("kv_transfer_params") or {}).get("do_remote_decode"):
            answer["kv_transfer_params"] = {"do_remote_prefill": True}
        reply(writer, 200, answer)


def completion_tokens(document: dict[str, Any]) -> Request:
    """A completion's tokens: of a prompt of numbers each is one, of a text each word.

    A prompt whose cache came from another server is cached whole. A ValueError where it is no completion.

    >>> found = completion_tokens({"prompt": [1, 2, 3], "max_tokens": 2})
    >>> found.input_tokens, found.output_tokens, found.cached_tokens
    (3, 2, 0)
    """
    prompt, most = document.get("prompt", ""), document.get("max_tokens", 16)
    tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    if not tokens or not isinstance(most, int) or most < 1:
        raise ValueError("a completion needs a prompt, and max_tokens of at least 1")
    remote = (document.get("kv_transfer_params") or {}).get("do_remote_prefill") is True
    cached = tokens if remote else min(int(document.get("cached_tokens", 0)), tokens - 1)
    return Request(input_tokens=tokens, output_tokens=most, cached_tokens=max(cached, 0))
