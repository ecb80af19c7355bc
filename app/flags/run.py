"""The flags of `plan run` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

PlanFile: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan written by plan --json.")
]
Data: TypeAlias = Annotated[
    str,
    typer.Option(
        "--data",
        help="synthetic, token ids (.npy, .bin, Megatron's .idx), text, a Hugging Face dataset "
        "(hf:NAME[:CONFIG][:SPLIT], hf:FOLDER), or a blend: 0.7=A,0.3=B.",
        metavar="DATA",
    ),
]
Tokenizer: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="A tokenizer.json, or its folder: text in --data (JSON lines, Parquet, Arrow, .txt, a folder "
        "of these, or a dataset) is tokenized and packed while training.",
        metavar="PATH",
    ),
]
TextField: TypeAlias = Annotated[
    str, typer.Option("--text-field", help="Key of a JSON line's text, or a table's column.", metavar="NAME")
]
EvalData: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--eval-data",
        help="Held-out data, in the forms of --data: its mean loss is reported.",
        metavar="DATA",
    ),
]
EvalInterval: TypeAlias = Annotated[
    int, typer.Option("--eval-interval", min=1, help="Steps between evaluations; one follows the last step.")
]
EvalBatches: TypeAlias = Annotated[
    int,
    typer.Option(
        "--eval-batches", min=0, help="Global batches of an evaluation; 0 for a whole held-out file."
    ),
]
RunFolder: TypeAlias = Annotated[
    Path, typer.Option("--run-dir", help="Folder for checkpoints and metrics; resumes what is there.")
]
Steps: TypeAlias = Annotated[
    int | None, typer.Option("--steps", min=1, help="Optimizer steps; by default --tokens, or 100.")
]
Pretrained: TypeAlias = Annotated[
    Path | None, typer.Option("--pretrained", help="Start from a Hugging Face state dict.", metavar="PATH")
]
ExportHF: TypeAlias = Annotated[
    Path | None,
    typer.Option("--export-hf", help="Write the result for transformers when the run ends.", metavar="DIR"),
]
Device: TypeAlias = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Fp32: TypeAlias = Annotated[bool, typer.Option("--fp32", help="Compute in fp32 instead of bf16.")]
DocumentEnd: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--document-end",
        help="Token that ends a document: attention stays within documents (256 without --tokenizer).",
        metavar="TOKEN",
        min=0,
    ),
]
Compile: TypeAlias = Annotated[
    bool,
    typer.Option("--compile", help="Put layers through torch.compile; plans are of eager ones."),
]
AsyncTP: TypeAlias = Annotated[
    bool,
    typer.Option("--async-tp", help="Run tensor-parallel messages under products, over NVLink; not planned."),
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", min=0, help="Seed of initial values and data order.")]
LearningRate: TypeAlias = Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")]
WarmupSteps: TypeAlias = Annotated[
    int | None, typer.Option("--warmup-steps", min=0, help="Warm-up; by default 1 % of the steps.")
]
RateShape: TypeAlias = Annotated[
    str, typer.Option("--lr-schedule", help="cosine, linear, constant, or wsd (warm-up, stable, decay).")
]
DecaySteps: TypeAlias = Annotated[
    int | None,
    typer.Option("--decay-steps", min=0, help="Decay of wsd; by default the last 10 %, at least 2."),
]
MinLR: TypeAlias = Annotated[
    float | None,
    typer.Option("--min-lr", help="Rate that a schedule ends at; by default a tenth of the peak."),
]
WeightDecay: TypeAlias = Annotated[float, typer.Option("--weight-decay", help="Weight decay of matrices.")]
AdamBeta1: TypeAlias = Annotated[float, typer.Option("--adam-beta1", help="Decay of AdamW's first moment.")]
AdamBeta2: TypeAlias = Annotated[float, typer.Option("--adam-beta2", help="Decay of AdamW's second moment.")]
AdamEps: TypeAlias = Annotated[float, typer.Option("--adam-eps", help="Added to the second moment's root.")]
ClipNorm: TypeAlias = Annotated[float, typer.Option("--clip-norm", help="Largest gradient norm.")]
RouterLoss: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--router-loss", min=0.0, help="Weight of the routers' balancing loss; by default the model's own."
    ),
]
CheckpointEvery: TypeAlias = Annotated[
    int,
    typer.Option(
        "--checkpoint-every",
        min=0,
        help="Steps between checkpoints; 0 for that of the plan's campaign, else of Young and Daly.",
    ),
]
KeepCheckpoints: TypeAlias = Annotated[
    int, typer.Option("--keep-checkpoints", min=1, help="Checkpoints to keep.")
]
MinGpus: TypeAlias = Annotated[
    int | None,
    typer.Option("--min-gpus", min=1, help="Continue on fewer GPUs, down to this many, when some are lost."),
]
Notice: TypeAlias = Annotated[
    int,
    typer.Option(
        "--notice",
        min=1,
        help="Seconds between a signal to stop and the scheduler's kill: what the last checkpoint may take.",
    ),
]
ProfileStep: TypeAlias = Annotated[
    int | None, typer.Option("--profile-step", min=1, help="Trace this step with torch's profiler.")
]
Interface: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--interface",
        help="Network on which ranks of several nodes listen; on one node they listen on loopback only.",
        metavar="NAME",
    ),
]
Preflight: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--preflight/--no-preflight",
        help="Compare GPUs, their health, network cards and an all-reduce with the plan before it starts.",
    ),
]
Nnodes: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--nnodes",
        help="Nodes of the run, where what starts them does not say; MIN:MAX goes on with MIN of them.",
        metavar="MIN:MAX",
    ),
]
RdzvEndpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rdzv-endpoint",
        help="Where ranks meet, on the first of several nodes, which number themselves without NODE_RANK.",
        metavar="HOST:PORT",
    ),
]
Environment: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--env", help="Give ranks this variable of the environment too.", metavar="NAME"),
]
RunKey: TypeAlias = Annotated[
    Path | None,
    typer.Option("--run-key", help="Sign checkpoints with this key; load no others.", metavar="FILE"),
]
WandB: TypeAlias = Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")]
Prometheus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        help="Answer Prometheus on this address; loopback without a host.",
        metavar="HOST:PORT",
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Write the run, print its command, do not start.")
]
Engine: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Start a plan by the engine that it is for, once Meshplan's executor has checked it.",
        metavar="ENGINE",
    ),
]
