"""`plan calibrate`: levels of a user's own server, from what a benchmark client wrote about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AsJson, GpuName, ModelFlag, OutputFile, OutputFormat, Settings


def command(
    *,
    serving: Annotated[
        list[Path] | None,
        typer.Option(
            "--serving",
            help="What vllm bench serve, sglang.bench_serving, genai-perf or aiperf wrote (repeat).",
            metavar="BENCH.json",
        ),
    ] = None,
    model: ModelFlag = None,
    gpu: GpuName = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Engine that was benchmarked.", metavar="NAME[@VERSION]")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="Precision. Default: that of the checkpoint.", metavar="DTYPE"),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv", help="Precision of its KV cache.", metavar="bf16|fp8")
    ] = None,
    settings: Settings = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Keep the levels under this name for plan serve --anchor.", metavar="NAME"
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Fit the host's and the kernels' level to benchmarks of your own server, one engine on one GPU kind.

    The layout that was served is given as --set layout.tp=4 (tp, pp, attention_dp, ep).
    """
    from app.commands.calibrate.answer import CalibrateQuestion, calibrated_answer
    from app.reports.answer import check_destination, emit

    check_destination(wanted=output_format, as_json=as_json, output=output)
    question = CalibrateQuestion(
        files=tuple(serving or ()), model=model, gpu=gpu, engine=engine, weights=weights, kv_dtype=kv_dtype,
        settings=tuple(settings or ()), name=name,
    )  # fmt: skip
    return emit(calibrated_answer(question), wanted=output_format, as_json=as_json, output=output)
