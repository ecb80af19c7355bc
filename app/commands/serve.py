"""`plan serve`: the cheapest fleet that serves a model within latency limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.options import AsJson, ClusterName, Gpus, Model, OutputFormat, Settings


def command(
    *,
    model: Model = None,
    gpus: Gpus = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU kind, or several with commas.", metavar="NAME")
    ] = None,
    cluster: ClusterName = None,
    input_tokens: Annotated[
        str | None, typer.Option("--input", help="Mean prompt tokens.", metavar="N")
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option("--output-tokens", help="Mean output tokens.", metavar="N")
    ] = None,
    input_p99: Annotated[
        str | None, typer.Option("--input-p99", help="99th percentile of prompt tokens.", metavar="N")
    ] = None,
    output_p99: Annotated[
        str | None, typer.Option("--output-p99", help="99th percentile of output tokens.", metavar="N")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Requests per second (`20/s`).", metavar="RATE")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", help="Requests in flight.", metavar="N")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="CSV of arrival_s,input_tokens,output_tokens.")
    ] = None,
    ttft: Annotated[
        str | None, typer.Option("--ttft", help="Limit on the time to first token.", metavar="TIME")
    ] = None,
    tpot: Annotated[
        str | None, typer.Option("--tpot", help="Limit on the time per output token.", metavar="TIME")
    ] = None,
    end_to_end: Annotated[
        str | None, typer.Option("--e2e", help="Limit on the whole request.", metavar="TIME")
    ] = None,
    percentile: Annotated[
        str | None, typer.Option("--percentile", help="Of requests within limits; default 99.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="bf16, fp8, int8, int4, fp4, or several with commas.")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv", help="KV cache: bf16 or fp8.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="vllm (default), sglang or trtllm.")] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="aggregated (default), disaggregated or auto.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="usd (default), gpus or tokens-per-gpu.")
    ] = None,
    cached: Annotated[
        str | None, typer.Option("--cached", help="Share of prompts in the prefix cache.", metavar="0…1")
    ] = None,
    draft_tokens: Annotated[
        str | None, typer.Option("--draft-tokens", help="Tokens speculated per step.", metavar="N")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option("--acceptance", help="Share of drafts accepted.", metavar="0…1")
    ] = None,
    burstiness: Annotated[
        str | None, typer.Option("--burstiness", help="Variation of arrival gaps; 1 is Poisson.")
    ] = None,
    usd_per_gpu_hour: Annotated[
        str | None, typer.Option("--usd-per-gpu-hour", help="Price in place of the catalog's.")
    ] = None,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="Follow the trace with replicas over time.")
    ] = False,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="Write the Kubernetes manifest here.")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Mean output tokens (a number), or a file to write to.", metavar="N|FILE"
        ),
    ] = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan serving: how many GPUs, which layout and precision, for a load and its latency limits.

    Without --gpus the smallest and the cheapest fleet are found over several GPU kinds. --output takes the
    tokens of an output when it is a number, and otherwise the file to write to.
    """
    from app.output import check_destination, emit, note, write_file
    from app.serve_fleets import find_fleet
    from app.serve_report import serving_answer
    from app.serve_request import ServeFlags, understand_serving

    tokens, destination = split_output(output)
    check_destination(wanted=output_format, as_json=as_json, output=destination)
    asked = understand_serving(
        ServeFlags(
            model=model,
            gpus=gpus,
            gpu=gpu,
            cluster=cluster,
            input_tokens=input_tokens,
            output_tokens=tokens or output_tokens,
            input_p99=input_p99,
            output_p99=output_p99,
            rate=rate,
            concurrency=concurrency,
            trace=trace,
            ttft=ttft,
            tpot=tpot,
            end_to_end=end_to_end,
            percentile=percentile,
            weights=weights,
            kv_dtype=kv_dtype,
            engine=engine,
            mode=mode,
            objective=objective,
            cached=cached,
            draft_tokens=draft_tokens,
            acceptance=acceptance,
            burstiness=burstiness,
            usd_per_gpu_hour=usd_per_gpu_hour,
            settings=tuple(settings or ()),
        )
    )
    plan = find_fleet(asked)
    if autoscale:
        from app.autoscale_report import autoscale_answer

        answer = autoscale_answer(plan, asked.trace)
    else:
        answer = serving_answer(plan)
    for text in asked.notes:
        note(text)
    if manifest is not None:
        write_file(manifest, (plan.commands or {})["kubernetes"])
    return emit(answer, wanted=output_format, as_json=as_json, output=destination)


def split_output(text: str | None) -> tuple[str | None, Path | None]:
    """Tell the tokens of an output from a file to write to.

    `--output 500` is a number, `--output plan.json` a file.

    >>> split_output("500"), split_output(None)
    (('500', None), (None, None))
    """
    if text is None:
        return None, None
    cleaned = text.strip().lower().replace("_", "").replace(",", "").lstrip("-+").removesuffix("k")
    number = cleaned.replace(".", "", 1).isdigit()
    return (text, None) if number else (None, Path(text))
