"""The flags that sub-commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from costmodel.kernels.precisions import TRAINING

ModelFlag: TypeAlias = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Model name (70b, deepseek-v3), a config.json, or timm:NAME."),
]
ModuleFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--module", help="A torch module in place of a model: what builds it. Its code is run.",
        metavar="PACKAGE.FILE:BUILD",
    ),
]  # fmt: skip
InputFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--input", help="Inputs of the module, the batch first: 8x3x224x224, or 8x128:long.", metavar="SIZES"
    ),
]
Gpus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--gpus", "-n", help="Number of GPUs (16k = 16,384); ..576: the best up to it.", metavar="N"
    ),
]
GpuName: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu", help="GPU kind (see plan gpus); the default is h100-sxm.", metavar="NAME"),
]
ClusterName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="Cluster name, a TOML file, or dumps of an allocation (a,b).", metavar="NAME|FILE"
    ),
]
WithoutHosts: TypeAlias = Annotated[
    str | None,
    typer.Option("--without", help="Hosts to leave out of the cluster: node17,node[20-22].", metavar="HOSTS"),
]
DegradedHosts: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--degraded",
        help="Degraded hosts: a broken GPU (node4:gpu3), or the rate of slow NICs (node5:nic=100Gbit/s).",
        metavar="HOST:gpuN,…",
    ),
]  # fmt: skip
SequenceLength: TypeAlias = Annotated[
    str | None,
    typer.Option("--sequence-length", "-s", help="Tokens in one sequence (8k = 8,192).", metavar="N"),
]
GlobalBatchSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--global-batch-size",
        "--batch",
        "-b",
        help="Sequences in one step, or tokens (4Mtok = 4 · 2²⁰); 256..1024 takes the best.",
        metavar="N",
    ),
]
_FIRST, *_OTHERS, _LAST = TRAINING
_PRECISION_HELP = f"{_FIRST} (default), {', '.join(_OTHERS)} or {_LAST}."
PrecisionFlag: TypeAlias = Annotated[
    str | None,
    typer.Option("--precision", help=_PRECISION_HELP, metavar="DTYPE"),
]
AdapterFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        help="Train beside frozen weights: lora:r=16,targets=attention+mlp, qlora:r=16, dora:r=16.",
        metavar="KIND:r=R,…",
    ),
]
ExpertLoadFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--expert-load",
        help="Measured tokens of every expert, a line a layer: ranks wait for the busiest.",
        metavar="FILE",
    ),
]
RecomputeModules: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--recompute-modules",
        help="Parts of a layer to compute again: core_attn,mlp,layernorm,moe_act,mla_up_proj … (selective).",
        metavar="MODULES",
    ),
]
OffloadFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--offload",
        help="Keep in host memory: optimizer (share chosen), optimizer:0.5, activations, parameters.",
        metavar="WHAT[:SHARE]",
    ),
]
Stack: TypeAlias = Annotated[
    str | None,
    typer.Option("--stack", help="Software stack profile; the default is megatron-core.", metavar="NAME"),
]
ForFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Engine that must be able to run the plan; by default that of the stack. any: none need be.",
        metavar="ENGINE[@VERSION]",
    ),
]
ObjectiveFlag: TypeAlias = Annotated[
    str | None, typer.Option("--objective", help="What the best plan is best at; the default is step-time.")
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tokens", help="Tokens to train on (15T = 15 · 10¹²), for totals in time and dollars.", metavar="N"
    ),
]
FailuresFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--failures", help="What fails, how often and how long it takes: your own rates.", metavar="FILE"
    ),
]
MinGpus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--min-gpus",
        help="With no spare left, the run goes on with fewer replicas, down to so many GPUs; else it waits.",
        metavar="N",
    ),
]
PhasesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--phases",
        help="A file of [[phases]]: tokens, length, batch, precision of each stretch.",
        metavar="FILE",
    ),
]
Deadline: TypeAlias = Annotated[str | None, typer.Option("--deadline", help="Time to finish in (30d, 12h).")]
Budget: TypeAlias = Annotated[
    str | None,
    typer.Option("--budget", help="Dollars the run may cost (2M, $800k): its chance is said.", metavar="N"),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Pin any field: layout.tp=8, layout.layers_of_stage=8*3-6, job.mtp_layers=1 … (repeat).",
        metavar="FIELD=VALUE",
    ),
]
InputTokens: TypeAlias = Annotated[
    str | None, typer.Option("--input", help="Mean prompt tokens.", metavar="N")
]
OutputTokens: TypeAlias = Annotated[
    str | None, typer.Option("--output-tokens", help="Mean output tokens.", metavar="N")
]
RequestRate: TypeAlias = Annotated[
    str | None, typer.Option("--rate", help="Requests per second (`20/s`).", metavar="RATE")
]
Concurrency: TypeAlias = Annotated[
    str | None, typer.Option("--concurrency", help="Requests in flight.", metavar="N")
]
TtftLimit: TypeAlias = Annotated[
    str | None, typer.Option("--ttft", help="Limit on the time to first token.", metavar="TIME")
]
TpotLimit: TypeAlias = Annotated[
    str | None, typer.Option("--tpot", help="Limit on the time per output token.", metavar="TIME")
]
MemoryHeadroom: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory-headroom",
        help="Share of GPU memory to leave free; by default as much as keeps the chance of OOM below 5 %.",
        metavar="SHARE",
    ),
]
AnchorFlag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--anchor",
        help="Steps you measured on this stack (columns of plan accuracy), or the name they are kept under.",
        metavar="RUNS.csv|NAME",
    ),
]
Top: TypeAlias = Annotated[
    str | None, typer.Option("--top", help="How many plans to show; the default is 5.", metavar="N")
]
AcceptChanges: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Estimate a plan anew whose numbers are others here; names each of them."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
OutputFile: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.", metavar="FILE")
]
OutputFormat: TypeAlias = Annotated[
    str | None, typer.Option("--format", help="table, json, csv or markdown.", metavar="FORMAT")
]
