"""The flags of `plan serve`, declared once; the command receives them as one `ServeFlags`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.flags import shared as options
from app.flags.completion import server_completion
from app.flags.group import gathers
from app.flags.sections import CLUSTER, LIMITS, QUESTION, SERVING, further
from planner.questions.flags import ServeFlags

SERVE_FLAGS: Final[Mapping[str, Any]] = {
    "model": options.ModelFlag,
    "gpus": options.Gpus,
    "gpu": Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="GPU kind, or several with commas.",
            metavar="NAME",
            rich_help_panel=CLUSTER,
        ),
    ],
    "cluster": options.ClusterName,
    "input_tokens": options.InputTokens,
    "output_tokens": options.OutputTokens,
    "input_p99": options.InputP99,
    "output_p99": options.OutputP99,
    "rate": options.RequestRate,
    "concurrency": options.Concurrency,
    "trace": Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="CSV or JSONL of arrival_s,input_tokens,output_tokens.",
            metavar="FILE",
            rich_help_panel=QUESTION,
        ),
    ],
    "ttft": options.TtftLimit,
    "tpot": options.TpotLimit,
    "end_to_end": Annotated[
        str | None,
        typer.Option(
            "--e2e",
            help="Limit on the whole request.",
            metavar="TIME",
            rich_help_panel=LIMITS,
        ),
    ],
    "percentile": Annotated[
        str | None,
        typer.Option(
            "--percentile",
            help="Percent of requests within the limits. Default: 99.",
            metavar="P",
            rich_help_panel=further(LIMITS),
        ),
    ],
    "weights": Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Precision, or several with commas; fp4: MXFP4 too. Default: all are compared.",
            metavar="bf16|fp8|int8|int4|fp4",
            rich_help_panel=SERVING,
        ),
    ],
    "kv_dtype": Annotated[
        str | None,
        typer.Option(
            "--kv",
            help="Precision of the KV cache.",
            metavar="bf16|fp8",
            rich_help_panel=SERVING,
        ),
    ],
    "engine": Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="Default: vllm.",
            metavar="vllm|sglang|trtllm",
            autocompletion=server_completion,
            rich_help_panel=SERVING,
        ),
    ],
    "mode": Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="One pool, or prefill apart from decode. Default: auto, both.",
            metavar="auto|aggregated|disaggregated",
            rich_help_panel=SERVING,
        ),
    ],
    "objective": Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="What is best. Default: usd.",
            metavar="usd|gpus|tokens-per-gpu",
            rich_help_panel=LIMITS,
        ),
    ],
    "cached": Annotated[
        str | None,
        typer.Option(
            "--cached",
            help="Share of prompts in the prefix cache.",
            metavar="0…1",
            rich_help_panel=further(SERVING),
        ),
    ],
    "draft_tokens": Annotated[
        str | None,
        typer.Option(
            "--draft-tokens",
            help="Tokens speculated per step.",
            metavar="N",
            rich_help_panel=further(SERVING),
        ),
    ],
    "acceptance": Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            help="Share of drafts accepted.",
            metavar="0…1",
            rich_help_panel=further(SERVING),
        ),
    ],
    "drafter": Annotated[
        str | None,
        typer.Option(
            "--drafter",
            help="mtp, eagle3, or a small model.",
            metavar="WHAT",
            rich_help_panel=further(SERVING),
        ),
    ],
    "router": Annotated[
        str | None,
        typer.Option(
            "--router",
            help="Which replica a request of a trace with hash_ids goes to.",
            metavar="round-robin|least-loaded|prefix-aware",
            rich_help_panel=further(SERVING),
        ),
    ],
    "kv_offload": Annotated[
        str | None,
        typer.Option(
            "--kv-offload",
            help="Host memory of a server for caches (`200GB`).",
            metavar="BYTES",
            rich_help_panel=further(SERVING),
        ),
    ],
    "adapter": Annotated[
        str | None,
        typer.Option(
            "--adapter",
            help="Requests name LoRA adapters: lora:r=16.",
            metavar="KIND:…",
            rich_help_panel=further(SERVING),
        ),
    ],
    "adapters": Annotated[
        str | None,
        typer.Option(
            "--adapters",
            help="How many are held at once; default 1.",
            metavar="N",
            rich_help_panel=further(SERVING),
        ),
    ],
    "burstiness": Annotated[
        str | None,
        typer.Option(
            "--burstiness",
            help="Variation of arrival gaps; 1 is Poisson.",
            metavar="X",
            rich_help_panel=further(QUESTION),
        ),
    ],
    "memory_fraction": Annotated[
        str | None,
        typer.Option(
            "--memory-fraction",
            "--gpu-memory-utilization",
            help="The engine's memory setting.",
            metavar="0…1",
            rich_help_panel=further(SERVING),
        ),
    ],
    "usd_per_gpu_hour": Annotated[
        str | None,
        typer.Option(
            "--usd-per-gpu-hour",
            help="Price in place of the catalog's.",
            metavar="USD",
            rich_help_panel=further(CLUSTER),
        ),
    ],
    "provider": Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Whose machines are rented: aws,gcp,lambda,…, or own.",
            metavar="NAME",
            rich_help_panel=further(CLUSTER),
        ),
    ],
    "spare": Annotated[
        str | None,
        typer.Option(
            "--spare",
            help="Workers of a pool that may be lost.",
            metavar="N",
            rich_help_panel=further(LIMITS),
        ),
    ],
    "anchor": Annotated[
        str | None,
        typer.Option(
            "--anchor",
            help="Your own server's levels, by the name of plan calibrate.",
            metavar="NAME",
            rich_help_panel=further(SERVING),
        ),
    ],
    "settings": options.Settings,
}
"""Option of every field of `ServeFlags`, in the order of the help."""


def takes_load() -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command every flag of a load and its fleet; it receives them as one `ServeFlags`, first."""
    return gathers(SERVE_FLAGS, _flags)


def serve_flags_of(given: Mapping[str, Any]) -> ServeFlags:
    """The `ServeFlags` of what a command would be called with."""
    taken = {name: value for name, value in given.items() if name in SERVE_FLAGS and name != "settings"}
    return _flags(settings=tuple(given.get("settings") or ()), **taken)


def _flags(*, settings: tuple[str, ...] | None = None, **given: Any) -> ServeFlags:
    """What was written, without settings where there are none."""
    return ServeFlags(settings=settings or (), **given)
