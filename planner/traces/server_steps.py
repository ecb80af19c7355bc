"""Steps of inference servers, by the annotations that they write: what is prefilled and decoded in each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.traces.events import Events

_VLLM: Final = re.compile(r"execute_(?:\d+_)?context_(\d+)\((\w*)\)_generation_(\d+)\((\w*)\)")
"""vLLM v1, `annotate_profile`: requests and their tokens, or sums over queries (sq) and keys (sk)."""
_VLLM_COUNTS: Final = re.compile(r"execute_new_(\d+)_cached_(\d+)")
"""vLLM v1 before 2026: requests alone."""
_BATCH: Final = re.compile(r"(?:step\[(\w+)|(prefill|decode)\[)(?: ?(\w+=[\d.]+(?: \w+=[\d.]+)*))?.*\]")
"""SGLang's `step[EXTEND bs=2 toks=4096]`, `step[DECODE bs=16]`; ATOM's `prefill[bs=2 tok=16384]`."""
MOST: Final = 10**12
"""Tokens of a step: more is no count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStep:
    """One iteration of a server's scheduler."""

    start_s: float
    end_s: float
    prompts: int = 0
    """Requests of which prompt tokens are computed."""
    prompt_tokens: int | None = None
    requests: int = 0
    """Requests that decode."""
    cached_tokens: int | None = None
    """Tokens in the caches of those that decode."""

    @property
    def kind(self) -> str:
        """Prefill, decode, or both."""
        if self.prompts:
            return "prefill and decode" if self.requests else "prefill"
        return "decode"


def server_steps(events: Events) -> tuple[ServerStep, ...]:
    """Steps in their order; of annotations within each other the outer, with what any of them says."""
    parsed = [_parsed(name) for name in events.names]
    named = events.named(np.array([each is not None for each in parsed], bool))
    for category in ("annotation", "gpu_annotation"):
        steps = list[ServerStep]()
        for place in np.flatnonzero(named & events.of(category)):
            what = parsed[events.name[place]]
            if what is None:
                continue
            start, end = float(events.start_s[place]), float(events.end_s[place])
            if steps and start < steps[-1].end_s:
                steps[-1] = _joined(steps[-1], what)
            else:
                steps.append(replace(what, start_s=start, end_s=end))
        if steps:
            return tuple(steps)
    return ()


def _joined(outer: ServerStep, inner: ServerStep) -> ServerStep:
    """What two annotations of one step say."""
    return replace(
        outer,
        prompt_tokens=inner.prompt_tokens if outer.prompt_tokens is None else outer.prompt_tokens,
        cached_tokens=inner.cached_tokens if outer.cached_tokens is None else outer.cached_tokens,
    )


def _parsed(name: str) -> ServerStep | None:
    """What an annotation says of its step; None where it is none of a server's.

    >>> step = _parsed("execute_context_1(512)_generation_31(31)")
    >>> step.kind, step.prompts, step.prompt_tokens, step.requests
    ('prefill and decode', 1, 512, 31)
    >>> _parsed("step[DECODE bs=16]").requests
    16
    """
    if match := _VLLM.fullmatch(name):
        return ServerStep(
            start_s=0.0,
            end_s=0.0,
            prompts=_count(match[1]) or 0,
            prompt_tokens=_sum(match[2], "sq"),
            requests=_count(match[3]) or 0,
            cached_tokens=_sum(match[4], "sk") if "sk" in match[4] else None,
        )
    if match := _VLLM_COUNTS.fullmatch(name):
        return ServerStep(
            start_s=0.0, end_s=0.0, prompts=_count(match[1]) or 0, requests=_count(match[2]) or 0
        )
    if match := _BATCH.fullmatch(name):
        words = dict(part.split("=") for part in (match[3] or "").split())
        batch = _count(words.get("bs", "")) or 0
        if (match[1] or match[2]).lower() == "decode":
            return ServerStep(
                start_s=0.0, end_s=0.0, requests=batch, cached_tokens=_count(words.get("g_sk", ""))
            )
        tokens = _count(words.get("toks", words.get("tok", "")))
        return ServerStep(start_s=0.0, end_s=0.0, prompts=batch, prompt_tokens=tokens)
    return None


def _sum(text: str, letters: str) -> int | None:
    """Tokens: the number alone, or what follows two letters."""
    match = re.search(rf"(?:^|\d){letters}(\d+)", text) or re.fullmatch(r"(\d+)", text)
    return _count(match[1]) if match else None


def _count(text: str) -> int | None:
    """A number that counts tokens or requests."""
    return int(text) if re.fullmatch(r"\d{1,12}", text) and int(text) < MOST else None
