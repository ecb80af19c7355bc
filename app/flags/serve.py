"""The flags of `plan serve`, declared once; the command receives them as one `ServeFlags`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.flags import shared as options
from app.flags.group import gathers
from planner.questions.flags import ServeFlags

SERVE_FLAGS: Final[Mapping[str, Any]] = {
    "model": options.ModelFlag,
    "gpus": options.Gpus,
    "gpu": Annotated[
        str | None, typer.Option("--gpu", help="GPU kind, or several with commas.", metavar="NAME")
    ],
    "cluster": options.ClusterName,
    "input_tokens": options.InputTokens,
    "output_tokens": options.OutputTokens,
    "input_p99": Annotated[
        str | None,
        typer.Option(
            "--input-p99",
            help="99th percentile of prompt tokens; of a rate 4 times the mean, or alike.",
            metavar="N",
        ),
    ],
    "output_p99": Annotated[
        str | None,
        typer.Option(
            "--output-p99",
            help="99th percentile of output tokens; of a rate 2.8 times the mean, or alike.",
            metavar="N",
        ),
    ],
    "rate": options.RequestRate,
    "concurrency": options.Concurrency,
    "trace": Annotated[
        Path | None, typer.Option("--trace", help="CSV or JSONL of arrival_s,input_tokens,output_tokens.")
    ],
    "ttft": options.TtftLimit,
    "tpot": options.TpotLimit,
    "end_to_end": Annotated[
        str | None, typer.Option("--e2e", help="Limit on the whole request.", metavar="TIME")
    ],
    "percentile": Annotated[
        str | None, typer.Option("--percentile", help="Of requests within limits; default 99.")
    ],
    "weights": Annotated[
        str | None,
        typer.Option("--weights", help="bf16, fp8, int8, int4, fp4, or several; by default compared."),
    ],
    "kv_dtype": Annotated[str | None, typer.Option("--kv", help="KV cache: bf16 or fp8.")],
    "engine": Annotated[str | None, typer.Option("--engine", help="vllm (default), sglang or trtllm.")],
    "mode": Annotated[
        str | None, typer.Option("--mode", help="aggregated or disaggregated; by default both (auto).")
    ],
    "objective": Annotated[
        str | None, typer.Option("--objective", help="usd (default), gpus or tokens-per-gpu.")
    ],
    "cached": Annotated[
        str | None, typer.Option("--cached", help="Share of prompts in the prefix cache.", metavar="0…1")
    ],
    "draft_tokens": Annotated[
        str | None, typer.Option("--draft-tokens", help="Tokens speculated per step.", metavar="N")
    ],
    "acceptance": Annotated[
        str | None, typer.Option("--acceptance", help="Share of drafts accepted.", metavar="0…1")
    ],
    "drafter": Annotated[
        str | None, typer.Option("--drafter", help="mtp, eagle3, or a small model.", metavar="WHAT")
    ],
    "router": Annotated[
        str | None,
        typer.Option(
            "--router",
            help="Of a trace with hash_ids count what caches have: round-robin, least-loaded, prefix-aware.",
            metavar="POLICY",
        ),
    ],
    "kv_offload": Annotated[
        str | None,
        typer.Option("--kv-offload", help="Host memory of a server for caches (`200GB`).", metavar="BYTES"),
    ],
    "adapter": Annotated[
        str | None,
        typer.Option("--adapter", help="Requests name LoRA adapters: lora:r=16.", metavar="KIND:…"),
    ],
    "adapters": Annotated[
        str | None, typer.Option("--adapters", help="How many are held at once; default 1.", metavar="N")
    ],
    "burstiness": Annotated[
        str | None, typer.Option("--burstiness", help="Variation of arrival gaps; 1 is Poisson.")
    ],
    "memory_fraction": Annotated[
        str | None,
        typer.Option(
            "--memory-fraction",
            "--gpu-memory-utilization",
            help="The engine's memory setting.",
            metavar="0…1",
        ),
    ],
    "usd_per_gpu_hour": Annotated[
        str | None, typer.Option("--usd-per-gpu-hour", help="Price in place of the catalog's.")
    ],
    "provider": Annotated[
        str | None,
        typer.Option(
            "--provider", help="Whose machines are rented: aws,gcp,lambda,…, or own.", metavar="NAME"
        ),
    ],
    "spare": Annotated[
        str | None, typer.Option("--spare", help="Workers of a pool that may be lost.", metavar="N")
    ],
    "anchor": Annotated[
        str | None,
        typer.Option(
            "--anchor", help="Your own server's levels, by the name of plan calibrate.", metavar="NAME"
        ),
    ],
    "settings": options.Settings,
}
"""Option of every field of `ServeFlags`, in the order of the help."""


def takes_load() -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command every flag of a load and its fleet; it receives them as one `ServeFlags`, first."""
    return gathers(SERVE_FLAGS, _flags)


def _flags(*, settings: tuple[str, ...] | None = None, **given: Any) -> ServeFlags:
    """What was written, without settings where there are none."""
    return ServeFlags(settings=settings or (), **given)
