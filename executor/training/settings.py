"""What a training run was asked to do, as one file that the launcher writes and every worker reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from executor.training.option import Range, says
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.data.blend import TokenSource
    from executor.data.held_out import HeldOut
    from executor.data.pieces import Contents
    from executor.data.source import TextReading
    from planner.plan import Plan

RUN_FILE = "run.json"
STATUS_FILE = "status.json"
CHECKPOINTS = "checkpoints"
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
SAVES_FILE = "saves.jsonl"


DATA, NUMBERS, STEPPING = "Data", "Numbers", "Optimizer"
SAVING, RANKS = "Checkpoints", "Ranks and nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One training run: `folder` holds everything that it writes, the rest is what a user may set.

    Values are in effect: what was left to us is decided (`app.actions.runs.training_run`). `checksums` are
    those of tokenizer, texts and token files when the run began.
    """

    folder: str
    plan_file: str
    checksums: dict[str, str] = field(default_factory=dict)
    steps: int = field(
        metadata=says(
            "--steps", "Optimizer steps; by default --tokens, or 100.", STEPPING,
            least=1, asked=(int | None, None), resumable=True, common=True,
        )
    )  # fmt: skip
    data: str = field(
        default="synthetic",
        metadata=says(
            "--data",
            "synthetic, token ids (.npy, .bin, .idx), text, a dataset (hf:NAME[:CONFIG][:SPLIT], "
            "hf:FOLDER), or a blend: 0.7=A,0.3=B.",
            DATA, metavar="DATA", common=True,
        ),
    )  # fmt: skip
    tokenizer: str | None = field(
        default=None,
        metadata=says(
            "--tokenizer",
            "A tokenizer.json, or its folder: text of --data (JSON lines, Parquet, Arrow, .txt) is tokenized "
            "and packed.",
            DATA, metavar="PATH", asked=(Path | None, None), common=True,
        ),
    )  # fmt: skip
    text_field: str = field(
        default="text",
        metadata=says(
            "--text-field", "Key of a JSON line's text, or a table's column.", DATA, metavar="NAME"
        ),
    )
    document_end: int | None = field(
        default=None,
        metadata=says(
            "--document-end",
            "Token that ends a document: attention stays within documents (256 without --tokenizer).",
            DATA, metavar="TOKEN", least=0,
        ),
    )  # fmt: skip
    eval_data: str | None = field(
        default=None,
        metadata=says(
            "--eval-data", "Held-out data, in the forms of --data: its mean loss is reported.", DATA,
            metavar="DATA", resumable=True,
        ),
    )  # fmt: skip
    eval_interval: int = field(
        default=1000,
        metadata=says(
            "--eval-interval", "Steps between evaluations; one follows the last step.", DATA,
            least=1, resumable=True,
        ),
    )  # fmt: skip
    eval_batches: int = field(
        default=0,
        metadata=says(
            "--eval-batches", "Global batches of an evaluation; 0 for a whole held-out file.", DATA,
            least=0, resumable=True,
        ),
    )  # fmt: skip
    pretrained: str | None = field(
        default=None,
        metadata=says(
            "--pretrained", "Start from a Hugging Face state dict.", DATA,
            metavar="PATH", asked=(Path | None, None),
        ),
    )  # fmt: skip
    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto",
        metadata=says("--device", "Where it runs.", NUMBERS, metavar="auto|cpu|cuda", asked=(str, "auto")),
    )
    precision: Literal["fp32", "bf16"] = field(
        default="bf16",
        metadata=says("--fp32", "Compute in fp32 instead of bf16.", NUMBERS, asked=(bool, False)),
    )
    compiles: bool = field(
        default=False,
        metadata=says("--compile", "Put layers through torch.compile; plans are of eager ones.", NUMBERS),
    )
    async_tp: bool = field(
        default=False,
        metadata=says(
            "--async-tp", "Run tensor-parallel messages under products, over NVLink; not planned.", NUMBERS
        ),
    )
    deterministic: bool = field(
        default=False,
        metadata=says(
            "--deterministic", "Use kernels that repeat to the last bit alone; slower on a GPU.", NUMBERS
        ),
    )
    seed: int = field(
        default=0,
        metadata=says("--seed", "Seed of initial values and data order.", NUMBERS, least=0),
    )
    learning_rate: float = field(
        default=3e-4,
        metadata=says(
            "--learning-rate",
            "Peak learning rate.",
            STEPPING,
            range=Range(above=0),
            resumable=True,
            common=True,
        ),
    )
    warmup_steps: int = field(
        default=0,
        metadata=says(
            "--warmup-steps", "Warm-up; by default 1 % of the steps.", STEPPING,
            least=0, asked=(int | None, None), resumable=True,
        ),
    )  # fmt: skip
    rate_shape: Literal["cosine", "linear", "constant", "wsd"] = field(
        default="cosine",
        metadata=says(
            "--lr-schedule", "wsd: warm-up, stable, decay.", STEPPING, metavar="cosine|linear|constant|wsd",
            asked=(str, "cosine"), resumable=True,
        ),
    )  # fmt: skip
    decay_steps: int = field(
        default=0,
        metadata=says(
            "--decay-steps", "Decay of wsd; by default the last 10 %, at least 2.", STEPPING,
            least=0, asked=(int | None, None), resumable=True,
        ),
    )  # fmt: skip
    min_lr: float | None = field(
        default=None,
        metadata=says(
            "--min-lr",
            "Rate that a schedule ends at; by default a tenth of the peak.",
            STEPPING,
            resumable=True,
        ),
    )
    weight_decay: float = field(
        default=0.1,
        metadata=says(
            "--weight-decay", "Weight decay of matrices.", STEPPING, range=Range(least=0), resumable=True
        ),
    )
    adam_beta1: float = field(
        default=0.9,
        metadata=says(
            "--adam-beta1", "Decay of AdamW's first moment.", STEPPING,
            range=Range(least=0, below=1), resumable=True,
        ),
    )  # fmt: skip
    adam_beta2: float = field(
        default=0.95,
        metadata=says(
            "--adam-beta2", "Decay of AdamW's second moment.", STEPPING,
            range=Range(least=0, below=1), resumable=True,
        ),
    )  # fmt: skip
    adam_eps: float = field(
        default=1e-8,
        metadata=says(
            "--adam-eps", "Added to the second moment's root.", STEPPING, range=Range(above=0), resumable=True
        ),
    )
    clip_norm: float = field(
        default=1.0,
        metadata=says(
            "--clip-norm", "Largest gradient norm.", STEPPING,
            range=Range(above=0, remark="a very large one clips nothing"), resumable=True,
        ),
    )  # fmt: skip
    router_loss: float | None = field(
        default=None,
        metadata=says(
            "--router-loss", "Weight of the routers' balancing loss; by default the model's own.", STEPPING,
            least=0, resumable=True,
        ),
    )  # fmt: skip
    checkpoint_every: int = field(
        default=0,
        metadata=says(
            "--checkpoint-every",
            "Steps between checkpoints; 0 for that of the plan's campaign, else of Young and Daly.",
            SAVING, least=0,
        ),
    )  # fmt: skip
    keep_checkpoints: int = field(
        default=3, metadata=says("--keep-checkpoints", "Checkpoints to keep.", SAVING, least=1)
    )
    profile_step: int | None = field(
        default=None,
        metadata=says("--profile-step", "Trace this step with torch's profiler.", RANKS, least=1),
    )
    wandb: bool = field(default=False, metadata=says("--wandb", "Log to Weights & Biases too.", RANKS))
    interface: str | None = field(
        default=None,
        metadata=says(
            "--interface",
            "Network on which ranks of several nodes listen; on one node they listen on loopback only.",
            RANKS, metavar="NAME",
        ),
    )  # fmt: skip
    nnodes: str | None = field(
        default=None,
        metadata=says(
            "--nnodes",
            "Nodes of the run, where what starts them does not say; MIN:MAX goes on with MIN of them.",
            RANKS, metavar="MIN:MAX",
        ),
    )  # fmt: skip
    rdzv_endpoint: str | None = field(
        default=None,
        metadata=says(
            "--rdzv-endpoint",
            "Where ranks meet, on the first of several nodes, which number themselves without NODE_RANK.",
            RANKS, metavar="HOST:PORT",
        ),
    )  # fmt: skip
    preflight: bool = field(
        default=True,
        metadata=says(
            "--preflight/--no-preflight",
            "Compare GPUs, their health, network cards and an all-reduce with the plan before it starts.",
            RANKS,
        ),
    )
    env: tuple[str, ...] = field(
        default=(),
        metadata=says(
            "--env", "Give ranks this variable of the environment too.", RANKS,
            metavar="NAME", asked=(list[str] | None, None),
        ),
    )  # fmt: skip
    run_key: str | None = field(
        default=None,
        metadata=says(
            "--run-key", "Sign checkpoints with this key; load no others.", SAVING,
            metavar="FILE", asked=(Path | None, None),
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """What a run that loses GPUs, or is told to stop, may do; only the launcher reads it."""

    min_gpus: int | None = field(
        default=None,
        metadata=says(
            "--min-gpus",
            "Continue on fewer GPUs, down to this many, when some are lost.",
            RANKS,
            least=1,
        ),
    )
    notice: int = field(
        default=30,
        metadata=says(
            "--notice",
            "Seconds between a signal to stop and the scheduler's kill: what the last checkpoint may take.",
            RANKS, least=1,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How far a run got, or why it stopped: `state` is running, stopped (asked to), finished or error.

    `device` is what the first rank ran on: ``cpu``, or its GPU's own name, with that GPU's memory.
    """

    state: Literal["running", "stopped", "finished", "error"]
    step: int = 0
    what: str = ""
    cause: str = ""
    fix: str = ""
    device: str = ""
    device_memory_bytes: float = 0.0


def training_source(
    settings: RunSettings, plan: Plan, kept: Mapping[str, Contents] | None = None
) -> TokenSource:
    """Open what a run trains on; `kept` is what its texts consist of, None for what its folder says."""
    from executor.data.source import open_source
    from executor.data.token_files import require_sizes

    require_sizes(settings.checksums)
    return open_source(
        settings.data,
        vocab_size=plan.request.model.vocab_size,
        sequence_length=plan.request.job.sequence_length,
        seed=settings.seed,
        texts=text_reading(settings, plan, kept),
    )


def held_out(settings: RunSettings, plan: Plan, kept: Mapping[str, Contents] | None = None) -> HeldOut | None:
    """Open what a run evaluates on, None for nothing."""
    from executor.data.held_out import open_held_out

    job = plan.request.job
    return open_held_out(
        settings.eval_data,
        interval=settings.eval_interval,
        batches=settings.eval_batches,
        training=settings.data,
        vocab_size=plan.request.model.vocab_size,
        sequence_length=job.sequence_length,
        global_batch_size=job.global_batch_size,
        seed=settings.seed,
        texts=text_reading(settings, plan, kept),
    )


def text_reading(
    settings: RunSettings, plan: Plan, kept: Mapping[str, Contents] | None = None
) -> TextReading | None:
    """How a run reads text, None for one without a tokenizer; of texts as `kept`, or as kept before."""
    from executor.data.contents import kept_contents
    from executor.data.source import TextReading

    if settings.tokenizer is None:
        return None
    return TextReading(
        tokenizer=settings.tokenizer,
        global_batch_size=plan.request.job.global_batch_size,
        field=settings.text_field,
        end=settings.document_end,
        kept=kept_contents(Path(settings.folder)) if kept is None else kept,
        sha256=settings.checksums.get(settings.tokenizer),
    )


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass as JSON so that readers see the old file or the new one, never half of one."""
    write_atomically(path, settings_json(value))


def settings_json(value: Any) -> str:
    """A dataclass as JSON."""
    return json.dumps(unstructure(value), indent=2)


def read_settings(path: Path) -> RunSettings:
    """Read a run's settings."""
    return structure(read_json(path), RunSettings, str(path))


def read_status(folder: Path) -> RunStatus | None:
    """Read how far a run got, None before it has said anything."""
    path = folder / STATUS_FILE
    return structure(read_json(path), RunStatus, str(path)) if path.exists() else None
