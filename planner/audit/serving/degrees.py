"""Degrees and values of a server's words that its engine refuses before it looks at a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

from costmodel.serving.deployment import ServingLayout
from planner.audit.facts import JobFacts
from planner.audit.read import Reading
from planner.formats.settings import whole_or_none
from topology.base.errors import InputError

BrokenWord = tuple[str, str]
"""Why an engine refuses a word, and what helps."""
Value = TypeVar("Value")


def read_or_broken(read: Callable[[], Value], instead: Value, broken: list[BrokenWord]) -> Value:
    """What words say; where that is not possible, something that is, with the reason added to `broken`."""
    try:
        return read()
    except InputError as refused:
        broken.append((f"{refused.what}: {refused.cause}", refused.fix))
        return instead


def broken_degrees(engine: str, reading: Reading, layout: ServingLayout) -> Iterator[BrokenWord]:
    """Degrees that engines compare with each other as they start."""
    yield from _nodes(engine, reading.facts, layout)
    yield from _draft_ranks(engine, reading, layout)


def _nodes(engine: str, facts: JobFacts, layout: ServingLayout) -> Iterator[BrokenWord]:
    """GPUs of a replica over nodes, and copies of it (SGLang v0.4.7 to v0.5.23, check_server_args)."""
    nodes, ranks = facts.count("said.nodes") or 1, layout.num_gpus
    if engine != "sglang" or nodes == 1:
        return
    copies = facts.count("layout.dp") or 1
    if copies > 1 and layout.attention_dp == 1 and not facts.truth("said.attention_dp"):
        yield (
            f"{copies} copies (--dp-size) of a server that lies on {nodes} nodes are not started",
            "give --enable-dp-attention, or start the copies apart, with a router before them",
        )
    if ranks % nodes:
        yield (
            f"{ranks} GPUs of tp and pp do not divide by {nodes} nodes, of which each starts as many",
            f"start it on {_largest_divisor(ranks, nodes)} nodes, or give a tp that {nodes} divides",
        )


def _largest_divisor(number: int, most: int) -> int:
    return next(part for part in range(most, 0, -1) if number % part == 0)


def _draft_ranks(engine: str, reading: Reading, layout: ServingLayout) -> Iterator[BrokenWord]:
    """Ranks of a drafter: one, or all (vLLM v0.7.3 to v0.33, SpeculativeConfig._verify_and_get_draft_tp)."""
    ranks = draft_ranks(reading)
    if engine == "vllm" and ranks is not None and ranks not in (1, layout.tp):
        yield (
            f"draft_tensor_parallel_size {ranks} is neither 1 nor tp {layout.tp}",
            f"give 1 or {layout.tp}, or leave it out",
        )


def draft_ranks(reading: Reading) -> int | None:
    """Tensor-parallel ranks that a drafter is told to have; None where it is not told."""
    for setting in reading.settings:
        if setting.path[-1] in _DRAFT_RANKS:
            return whole_or_none(setting.value)
    speculation = str(reading.facts.value("said.speculation") or "")
    if not speculation.lstrip().startswith("{"):
        return None
    try:
        return whole_or_none(json.loads(speculation).get("draft_tensor_parallel_size"))
    except ValueError:
        return None


_DRAFT_RANKS = ("draft_tensor_parallel_size", "speculative_draft_tensor_parallel_size")
