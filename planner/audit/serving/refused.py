"""What an engine refuses before it loads anything: splits that leave a rest, and lengths beyond its model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from costmodel.parallel.divisions import HEADS
from planner.audit.serving.server import Server

_KEEPS_EXPERTS_WHOLE = {"vllm": "--enable-expert-parallel", "sglang": "--ep-size {tp}"}
"""What deals whole experts to ranks, of the engines that refuse a part of a block of scales."""
_STRETCHES = {
    "vllm": "--hf-overrides with rope scaling, where the model was trained for it",
    "sglang": "--json-model-override-args with rope scaling, where the model was trained for it",
}
"""What allows more positions than a checkpoint has, of the engines that refuse them otherwise."""


def refusal_of(server: Server) -> tuple[str, str] | None:
    """Why the engine refuses the server's settings, and what helps; None where it takes them."""
    return next(_refusals(server), None)


def _refusals(server: Server) -> Iterator[tuple[str, str]]:
    """Every law that the settings break, with what keeps it."""
    model, layout = server.model, server.layout
    heads = model.num_attention_heads
    if HEADS.rest(heads, layout.tp):
        yield HEADS.says(heads, layout.tp), f"set tp {HEADS.largest(heads, layout.tp)}"
    if layout.pp > model.num_layers:
        yield f"pp {layout.pp} of {model.num_layers} layers", "give at most a stage a layer"
    yield from _cut_blocks(server)
    yield from _beyond_positions(server)


def _cut_blocks(server: Server) -> Iterator[tuple[str, str]]:
    """Feed-forwards whose share of a rank is no multiple of a block of scales (vllm issue 25292)."""
    model, layout, block = server.model, server.layout, server.model.stored.block
    whole = _KEEPS_EXPERTS_WHOLE.get(server.engine)
    if whole is None or not block or server.weights != "fp8":
        return
    width, ranks = model.intermediate_size, layout.tp
    if model.is_moe:
        width, ranks = model.moe_intermediate_size, layout.expert_tp
    if HEADS.rest(width, block * ranks) == 0:
        return
    what = "an expert" if model.is_moe else "a feed-forward"
    fix = f"split it over {math.gcd(width // block, ranks)} ranks (tp)"
    if model.is_moe:
        fix = f"add {whole.format(tp=layout.stage_gpus)}, which keeps experts whole, or {fix}"
    share = f"{width:,} / {ranks} = {width / ranks:g}"
    yield f"{what}'s share of a rank, {share}, is no multiple of the checkpoint's block of {block}", fix


def _beyond_positions(server: Server) -> Iterator[tuple[str, str]]:
    """A length beyond the positions of the checkpoint whose configuration is known."""
    positions, longest, how = server.model.max_sequence_length, server.longest, _STRETCHES.get(server.engine)
    if how is None or longest is None or longest <= positions or server.stretches:
        return
    if not server.knows_positions:
        return
    name = server.checkpoint or server.model.name
    yield (
        f"requests of {longest:,} tokens go beyond the {positions:,} positions of {name}",
        f"allow at most {positions:,} tokens, or give {how}",
    )
