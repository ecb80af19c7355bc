"""What the log of a server says of it: why it stopped, what it holds, what waits. It beats any estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from costmodel.serving.held import HeldCache
from planner.formats.server_lines import ServerLog
from topology.base.units import format_bytes

_ROUNDING = 1e-9
"""Share by which a token is taken smaller, so that as many as were printed are whole."""
_PRINTED = 0.02
"""Requests by which a concurrency of two decimals may differ from tokens over the longest request."""
Held = TypeVar("Held", bound=HeldCache)


def as_printed(held: Held, log: ServerLog | None) -> Held:
    """What a server holds, as far as its log prints it; the rest is the estimate."""
    if log is None:
        return held
    longest = int(log.longest or held.longest)
    request = log.request_bytes or held.request_bytes / held.longest * longest
    cache, tokens = log.cache_bytes, _tokens(log)
    if cache is not None and tokens and log.request_bytes is None:
        request = cache / tokens * longest * (1 - _ROUNDING)
    if cache is None:
        cache = held.cache_bytes if tokens is None else tokens * request / longest
    return replace(
        held,
        weights_bytes=log.weights_bytes or held.weights_bytes,
        cache_bytes=cache,
        longest=longest,
        request_bytes=request,
        kept_bytes=0.0,
        block_tokens=1,
    )


def _tokens(log: ServerLog) -> float | None:
    """Tokens of longest requests that a log's cache holds.

    Before v0.22 vLLM printed blocks over groups of layers, which of a hybrid is a share of what requests find
    there (a Qwen3.5-35B-A3B of v0.18: 729,696 tokens, 10.85 requests of 262,144). Its concurrency counts.
    """
    tokens, requests, longest = log.cache_tokens, log.concurrency, log.longest
    if tokens is None or requests is None or longest is None:
        return tokens
    return tokens if abs(tokens / longest - requests) <= _PRINTED else requests * longest


def prints_cache(log: ServerLog | None) -> bool:
    """Whether a log says how large its cache is."""
    return log is not None and (log.cache_bytes is not None or log.cache_tokens is not None)


def held_by(log: ServerLog | None) -> str:
    """What a server holds by its log alone, whatever its model is, in words; "" where it does not say."""
    if log is None or not prints_cache(log):
        return ""
    words = [
        f"{what} {format_bytes(value)} a GPU"
        for what, value in (("weights", log.weights_bytes), ("cache", log.cache_bytes))
        if value is not None
    ]
    if log.cache_tokens is not None:
        words.append(f"{log.cache_tokens:,.0f} tokens")
    text = ", ".join(words)
    if log.concurrency is not None and log.longest is not None:
        text += f"; maximum concurrency for {log.longest:,.0f} tokens a request: {log.concurrency:.2f}x"
    if log.most_cache_bytes is not None:
        text += f"; the GPU has room for a cache of {format_bytes(log.most_cache_bytes)} (--kv-cache-memory)"
    return text


def stopped_by(log: ServerLog | None) -> tuple[str, str] | None:
    """The error that a server ended in before it ran, and what helps; None where it did not."""
    if log is None or not log.stopped:
        return None
    return f"its log ends in (line {log.error_line}) {log.error}", log.remedy


def state_of(log: ServerLog | None) -> str:
    """How a server ran when its log last said so, in words; "" where it does not say."""
    if log is None:
        return ""
    words = [
        f"{value:,.0f} requests {what}"
        for value, what in ((log.running, "run"), (log.waiting, "wait"))
        if value is not None
    ]
    if log.cache_used is not None:
        words.append(f"{log.cache_used:.1%} of the cache is in use")
    if log.output_tokens_per_s:
        words.append(f"{log.output_tokens_per_s:,.0f} tokens/s come out")
    text = ", ".join(words)
    if log.is_full:
        text += (
            ": the cache is full, and what waits waits for it; give it more memory, a cache of fp8 or more "
            "GPUs, or send fewer and shorter requests (a higher limit on requests changes nothing)"
        )
    if log.error and not log.stopped:
        text += f"; it ended in (line {log.error_line}) {log.error}"
    return text
