"""Models of a small traced module, its table written by hand: what tensor parallelism divides, and what not."""

from __future__ import annotations

from typing import Any

from costmodel.models.spec import ModelSpec
from costmodel.models.traced import TracedBlock, TracedModule, TracedOp
from costmodel.ops.module_spec import spec_of_module

WIDTH, TOKENS, HEADS, CLASSES = 1024, 256, 8, 4000
HIDDEN = 2.0 * WIDTH * TOKENS  # bytes of the hidden states of a sample


def product(n: float, k: float, **cut: Any) -> TracedOp:
    """A linear layer over the tokens of a sample."""
    size = 2 * (TOKENS * (n + k) + n * k)
    return TracedOp(
        kind="product",
        m=TOKENS,
        n=n,
        k=k,
        flop=2 * TOKENS * n * k,
        bytes=size,
        output_bytes=2 * TOKENS * n,
        **cut,
    )


def passes(*, cut: float, tokens: float, accesses: float) -> TracedOp:
    """Memory-bound work."""
    return TracedOp(
        kind="pass", bytes=accesses * HIDDEN, eager_bytes=3 * accesses * HIDDEN, cut_share=cut, token_share=tokens,
        eager_cut_share=cut, eager_token_share=tokens,
    )  # fmt: skip


def message(kind: Any) -> TracedOp:
    """What ranks exchange of hidden states."""
    return TracedOp(kind=kind, bytes=HIDDEN)


def traced(layers: int = 3, *, tokens: int = TOKENS, recognised: bool = True) -> ModelSpec:
    """Blocks of attention and a feed-forward, then one block of a product that no rank shares, and both ends."""
    columns, rows, inside = ({"cut": cut} if recognised else {} for cut in ("columns", "rows", "inside"))
    attention = TracedOp(
        kind="attention", heads=HEADS, kv_heads=HEADS, query_tokens=TOKENS, kv_tokens=TOKENS, head_dim=128,
        value_head_dim=128, flop=4.0 * WIDTH * TOKENS**2, bytes=4 * HIDDEN, output_bytes=HIDDEN, **inside,
    )  # fmt: skip
    share = float(recognised)
    block = TracedBlock(
        name="block",
        parameters=12 * WIDTH**2 + 13 * WIDTH,
        cut_parameters=int(share * (12 * WIDTH**2 + 7 * WIDTH)),
        saved_bytes=17 * HIDDEN,
        cut_saved_bytes=share * 12 * HIDDEN,
        token_saved_bytes=share * 4 * HIDDEN * bool(tokens),
        fused_saved_bytes=14 * HIDDEN,
        cut_fused_saved_bytes=share * 10 * HIDDEN,
        token_fused_saved_bytes=share * 3 * HIDDEN * bool(tokens),
        input_bytes=HIDDEN,
        ops=(
            message("enter"),
            product(3 * WIDTH, WIDTH, **columns),
            attention,
            product(WIDTH, WIDTH, **rows),
            message("leave"),
            message("enter"),
            product(4 * WIDTH, WIDTH, **columns),
            product(WIDTH, 4 * WIDTH, **rows),
            message("leave"),
            passes(cut=0.5 * share, tokens=0.4 * share * bool(tokens), accesses=20),
        ),
    )
    whole = TracedBlock(
        name="whole", parameters=WIDTH**2, saved_bytes=2 * HIDDEN, fused_saved_bytes=HIDDEN, input_bytes=HIDDEN,
        token_saved_bytes=2 * HIDDEN * bool(tokens) * share, token_fused_saved_bytes=HIDDEN * bool(tokens) * share,
        ops=(product(WIDTH, WIDTH, **({"cut": "tokens"} if tokens and recognised else {})),),
    )  # fmt: skip
    table = CLASSES * WIDTH
    stem = TracedBlock(
        name="stem", parameters=table, cut_parameters=int(share * table), saved_bytes=0.0, fused_saved_bytes=0.0,
        input_bytes=0.0, ops=(message("leave"), passes(cut=0.0, tokens=0.0, accesses=2)),
    )  # fmt: skip
    head = TracedBlock(
        name="head", parameters=table, cut_parameters=int(share * table), saved_bytes=HIDDEN,
        fused_saved_bytes=HIDDEN, token_saved_bytes=share * HIDDEN * bool(tokens),
        token_fused_saved_bytes=share * HIDDEN * bool(tokens), input_bytes=HIDDEN, logits=TOKENS * CLASSES,
        loss_rows=share * TOKENS, ops=(message("enter"), product(CLASSES, WIDTH, **columns)),
    )  # fmt: skip
    return spec_of_module(
        TracedModule(
            builder="small",
            inputs=("1x256",),
            kinds=(block, whole),
            order=((0, layers), (1, 1)),
            stem=stem,
            head=head,
            units=HEADS if recognised else 1,
            uncut="" if recognised else "nothing is recognised",
            tokens=tokens if recognised else 0,
            classes=CLASSES if recognised else 0,
        )
    )
