"""What an engine puts into a step, as the simulation of a replica follows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How an engine forms a step, and what it has room for.

    `token_budget` is the most tokens of one step and rank, `mixed` whether prompt tokens and decoding
    requests share a step, `chunked` whether a prompt may span steps, `output_reserve` the share of the
    outputs still to come that admission keeps free in the KV cache (1 never preempts, 0 relies on
    preemption), `spare_blocks` the blocks that it keeps free for every running request besides. `lagged`
    engines prepare the next step while one runs, so the tokens of a step are seen when the next one ends. A
    prompt whose cache moves to another worker keeps that cache until then, and with `holds_slot` its place
    among the running ones too. Where attention ranks step together, prompts wait for up to `balance_steps`
    decode steps until every rank has one to compute, as long as every rank decodes (0: they do not), and once
    every rank has one for `gather_steps` more, so that others join them. In a closed loop the engine looks
    for new requests every `polling_steps` decode steps, after each step with prompts, and when it is idle.
    """

    token_budget: int
    max_batch: int
    kv_capacity_tokens: int
    mixed: bool = True
    chunked: bool = True
    output_reserve: float = 0.0
    kv_block_tokens: int = 16
    lagged: bool = False
    spare_blocks: int = 1
    holds_slot: bool = True
    balance_steps: int = 0
    gather_steps: int = 0
    polling_steps: int = 1
