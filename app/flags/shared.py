"""The flags that sub-commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from app.flags.completion import (
    cluster_completion,
    engine_completion,
    gpu_completion,
    model_completion,
    stack_completion,
)
from app.flags.sections import CLUSTER, LIMITS, OUTPUT, QUESTION, TRAINING, further
from costmodel.kernels.precisions import TRAINING as TRAINING_PRECISIONS

ModelFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A name (70b, deepseek-v3), a config.json, or timm:NAME.",
        metavar="NAME",
        autocompletion=model_completion,
        rich_help_panel=QUESTION,
    ),
]
ModuleFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--module", help="A torch module in place of a model: what builds it. Its code is run.",
        metavar="PACKAGE.FILE:BUILD", rich_help_panel=further(QUESTION),),
]  # fmt: skip
InputFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Inputs of the module, the batch first: 8x3x224x224, or 8x128:long.",
        metavar="SIZES",
        rich_help_panel=further(QUESTION),
    ),
]
Gpus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        "-n",
        help="Number of GPUs (16k = 16,384).",
        metavar="N",
        rich_help_panel=QUESTION,
    ),
]
GpuName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="GPU kind, as in plan gpus. Default: h100-sxm.",
        metavar="NAME",
        autocompletion=gpu_completion,
        rich_help_panel=CLUSTER,
    ),
]
ClusterName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="A cluster's name, a TOML file, or dumps of an allocation (a,b).",
        metavar="NAME|FILE",
        autocompletion=cluster_completion,
        rich_help_panel=CLUSTER,
    ),
]
WithoutHosts: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--without",
        help="Hosts to leave out of the cluster: node17,node[20-22].",
        metavar="HOSTS",
        rich_help_panel=further(CLUSTER),
    ),
]
DegradedHosts: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--degraded",
        help="Degraded hosts: a broken GPU (node4:gpu3), or the rate of slow NICs (node5:nic=100Gbit/s).",
        metavar="HOST:gpuN,…", rich_help_panel=further(CLUSTER),),
]  # fmt: skip
SequenceLength: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sequence-length",
        "-s",
        help="Tokens of a sequence. Default: 8k = 8,192.",
        metavar="N",
        rich_help_panel=TRAINING,
    ),
]
GlobalBatchSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--global-batch-size",
        "--batch",
        "-b",
        help="Sequences a step (default: 512), or tokens (4Mtok = 4 · 2²⁰).",
        metavar="N",
        rich_help_panel=TRAINING,
    ),
]
_FIRST, *_OTHERS, _LAST = TRAINING_PRECISIONS
_PRECISION_HELP = f"{_FIRST} (default), {', '.join(_OTHERS)} or {_LAST}."
PrecisionFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help=_PRECISION_HELP,
        metavar="DTYPE",
        rich_help_panel=TRAINING,
    ),
]
AdapterFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        help="Train beside frozen weights: lora:r=16,targets=attention+mlp, qlora:r=16, dora:r=16.",
        metavar="KIND:r=R,…",
        rich_help_panel=TRAINING,
    ),
]
ExpertLoadFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--expert-load",
        help="Measured tokens of every expert, a line a layer: ranks wait for the busiest.",
        metavar="FILE",
        rich_help_panel=further(TRAINING),
    ),
]
RecomputeModules: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--recompute-modules",
        help="Parts of a layer to compute again: core_attn,mlp,layernorm,moe_act,mla_up_proj … (selective).",
        metavar="MODULES",
        rich_help_panel=further(TRAINING),
    ),
]
OffloadFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--offload",
        help="Keep in host memory: optimizer (share chosen), optimizer:0.5, activations, parameters.",
        metavar="WHAT[:SHARE]",
        rich_help_panel=TRAINING,
    ),
]
Stack: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Preset of an engine, as in plan engines. Default: megatron-core.",
        metavar="NAME",
        autocompletion=stack_completion,
        rich_help_panel=TRAINING,
    ),
]
ForFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Engine that must accept the plan. Default: that of the stack; any: no limit.",
        metavar="ENGINE[@VERSION]",
        autocompletion=engine_completion,
        rich_help_panel=TRAINING,
    ),
]
ObjectiveFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="What is minimised. Default: step-time.",
        metavar="step-time|date|cost|gpus|memory",
        rich_help_panel=LIMITS,
    ),
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        help="Tokens in all (15T = 15 · 10¹²): adds days, dollars.",
        metavar="N",
        rich_help_panel=LIMITS,
    ),
]
FailuresFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--failures",
        help="What fails, how often and how long it takes: your own rates.",
        metavar="FILE",
        rich_help_panel=further(LIMITS),
    ),
]
MinGpus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--min-gpus",
        help="With no spare left, the run goes on with fewer replicas, down to so many GPUs; else it waits.",
        metavar="N",
        rich_help_panel=further(LIMITS),
    ),
]
PhasesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--phases",
        help="A file of [[phases]]: tokens, length, batch, precision of each stretch.",
        metavar="FILE",
        rich_help_panel=further(TRAINING),
    ),
]
Deadline: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        help="Time in which to finish (30d, 12h).",
        metavar="TIME",
        rich_help_panel=LIMITS,
    ),
]
Budget: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Dollars that the run may cost (2M, $800k).",
        metavar="N",
        rich_help_panel=LIMITS,
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Pin any field: layout.tp=8, job.mtp_layers=1 … (repeat).",
        metavar="FIELD=VALUE",
        rich_help_panel=QUESTION,
    ),
]
InputTokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Mean prompt tokens.",
        metavar="N",
        rich_help_panel=QUESTION,
    ),
]
OutputTokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--output-tokens",
        help="Mean output tokens.",
        metavar="N",
        rich_help_panel=QUESTION,
    ),
]
InputP99: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--input-p99",
        help="p99 of prompt tokens. Default with --rate: 4 × the mean; alike: all equal.",
        metavar="N",
        rich_help_panel=further(QUESTION),
    ),
]
OutputP99: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--output-p99",
        help="p99 of output tokens. Default with --rate: 2.8 × the mean; alike: all equal.",
        metavar="N",
        rich_help_panel=further(QUESTION),
    ),
]
RequestRate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rate",
        help="Requests per second (`20/s`).",
        metavar="RATE",
        rich_help_panel=QUESTION,
    ),
]
Concurrency: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--concurrency",
        help="Requests in flight.",
        metavar="N",
        rich_help_panel=QUESTION,
    ),
]
TtftLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ttft",
        help="Limit on the time to first token.",
        metavar="TIME",
        rich_help_panel=LIMITS,
    ),
]
TpotLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tpot",
        help="Limit on the time per output token.",
        metavar="TIME",
        rich_help_panel=LIMITS,
    ),
]
MemoryHeadroom: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory-headroom",
        help="Share of GPU memory to leave free. Default: what keeps the chance of OOM below 5 %.",
        metavar="SHARE",
        rich_help_panel=LIMITS,
    ),
]
AnchorFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--anchor",
        help="Steps you measured on this stack (columns of plan accuracy), or the name they are kept under.",
        metavar="RUNS.csv|NAME",
        rich_help_panel=further(TRAINING),
    ),
]
Top: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--top",
        help="Plans in --full, --json and csv. Default: 5.",
        metavar="N",
        rich_help_panel=OUTPUT,
    ),
]
AcceptChanges: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Estimate a plan anew whose numbers are others here; names each of them.",
        rich_help_panel=further(OUTPUT),
    ),
]
Full: TypeAlias = Annotated[
    bool, typer.Option("--full", help="Print the whole answer.", rich_help_panel=OUTPUT)
]
AsJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write to a file instead of stdout.",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
]
OutputFormat: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table (default), json, csv or markdown.",
        metavar="FORM",
        rich_help_panel=OUTPUT,
    ),
]
