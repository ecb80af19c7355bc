"""The client of a rehearsal: streamed completions, sent and timed as `vllm bench serve` does.

A request's time to first token runs from its sending to its first event with text; its time per output token
is that between its first and its last such event over the tokens after the first.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from planner.rehearsal.http import asking, events
from planner.rehearsal.script import MeasuredRequests, RehearsalScript
from topology.base.atomic import write_atomically
from topology.base.decode import unstructure
from topology.base.errors import InputError


async def run_client(script: RehearsalScript, port: int) -> None:
    """Send the whole load and write what was measured."""
    loop, requests = asyncio.get_running_loop(), script.requests
    start, count = loop.time(), len(requests.input_tokens)
    room = asyncio.Semaphore(requests.concurrency or count)

    async def answer(i: int) -> tuple[float, float]:
        if requests.concurrency is None:
            at = start + requests.arrival_s[i] * script.slowdown
            await asyncio.sleep(max(at - loop.time(), 0.0))
        async with room:
            return await _timed(port, _completion(script, i))

    gather = await asyncio.gather(*(answer(i) for i in range(count)))
    seen = [(first / script.slowdown, each / script.slowdown) for first, each in gather]
    measured = MeasuredRequests(
        ttft_s=tuple(first for first, _ in seen),
        tpot_s=tuple(each for i, (_, each) in enumerate(seen) if requests.output_tokens[i] > 1),
    )
    write_atomically(Path(script.results), json.dumps(unstructure(measured)))


def _completion(script: RehearsalScript, i: int) -> dict[str, Any]:
    """The body of a request."""
    requests = script.requests
    return {
        "model": "rehearsal",
        "prompt": [1] * requests.input_tokens[i],
        "max_tokens": requests.output_tokens[i],
        "cached_tokens": requests.cached_tokens[i],
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _timed(port: int, document: dict[str, Any]) -> tuple[float, float]:
    """Send a request: its time to first token and its time per output token, seconds."""
    loop = asyncio.get_running_loop()
    sent, first, last, tokens = loop.time(), 0.0, 0.0, 0
    async with asking(port, "/v1/completions", document) as (status, reader):
        async for data in events(reader):
            if b'"text"' in data:
                last = loop.time()
                first = first or last
                tokens += 1
    if status != 200 or tokens != document["max_tokens"]:
        raise InputError(
            what="a rehearsed request was not served",
            cause=f"status {status}, {tokens} of {document['max_tokens']} tokens",
            fix="look at the logs of the servers",
        )
    return first - sent, (last - first) / max(tokens - 1, 1)
