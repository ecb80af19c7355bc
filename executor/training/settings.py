"""What a training run was asked to do, as one file that the launcher writes and every worker reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One training run.

    `folder` holds everything the run writes. `checkpoint_every` counts steps, 0 for the interval that Young
    and Daly suggest. `eval_data` is evaluated every `eval_interval` steps and after the last, `eval_batches`
    global batches of it, 0 for all. Text in either is tokenized on the way by `tokenizer`, `text_field` of
    lines and tables; `checksums` are those of tokenizer and texts when the run began. Attention stops at the
    token `document_end`. `compiles` puts layers through `torch.compile`, `async_tp` runs tensor-parallel
    messages under products. `min_lr` is the rate that a schedule ends at, None for a tenth of the peak.
    `router_loss` weighs the routers' balancing loss, None for the model's own
    weight. `interface` is where ranks of several nodes listen, `nnodes` says how many of them (or MIN:MAX),
    at `rdzv_endpoint` of the first their ranks meet (in a file without). `env` names variables that ranks are
    given, `run_key` is the file of the key that signs checkpoints. `preflight` has nodes compared with the
    plan before anything is started.
    """

    folder: str
    plan_file: str
    steps: int
    data: str = "synthetic"
    tokenizer: str | None = None
    text_field: str = "text"
    checksums: dict[str, str] = field(default_factory=dict)
    document_end: int | None = None
    eval_data: str | None = None
    eval_interval: int = 1000
    eval_batches: int = 0
    pretrained: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "bf16"
    compiles: bool = False
    async_tp: bool = False
    seed: int = 0
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    rate_shape: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    decay_steps: int = 0
    min_lr: float | None = None
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    clip_norm: float = 1.0
    router_loss: float | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    profile_step: int | None = None
    wandb: bool = False
    interface: str | None = None
    nnodes: str | None = None
    rdzv_endpoint: str | None = None
    env: tuple[str, ...] = ()
    run_key: str | None = None
    preflight: bool = True


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
    write_atomically(path, json_text(value))


def json_text(value: Any) -> str:
    """A dataclass as JSON."""
    return json.dumps(unstructure(value), indent=2)


def read_settings(path: Path) -> RunSettings:
    """Read a run's settings."""
    return structure(read_json(path), RunSettings, str(path))


def read_status(folder: Path) -> RunStatus | None:
    """Read how far a run got, None before it has said anything."""
    path = folder / STATUS_FILE
    return structure(read_json(path), RunStatus, str(path)) if path.exists() else None
