"""What a person writes about a job, as text: on a command line, in the dashboard, in a call."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was written about a training job; None was left to us."""

    model: str | None = None
    gpus: str | None = None
    gpu: str | None = None
    cluster: str | None = None
    without: str | None = None
    degraded: str | None = None
    sequence_length: str | None = None
    global_batch_size: str | None = None
    precision: str | None = None
    adapter: str | None = None
    expert_load: str | None = None
    recompute_modules: str | None = None
    offload: str | None = None
    stack: str | None = None
    engine: str | None = None
    objective: str | None = None
    tokens: str | None = None
    deadline: str | None = None
    budget: str | None = None
    top: str | None = None
    memory_headroom: str | None = None
    anchor: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """What was written about a load to serve; None was left to us."""

    model: str | None = None
    gpus: str | None = None
    gpu: str | None = None
    cluster: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    input_p99: str | None = None
    output_p99: str | None = None
    rate: str | None = None
    concurrency: str | None = None
    trace: Path | None = None
    ttft: str | None = None
    tpot: str | None = None
    end_to_end: str | None = None
    percentile: str | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    engine: str | None = None
    mode: str | None = None
    cached: str | None = None
    draft_tokens: str | None = None
    acceptance: str | None = None
    drafter: str | None = None
    router: str | None = None
    kv_offload: str | None = None
    adapter: str | None = None
    adapters: str | None = None
    burstiness: str | None = None
    memory_fraction: str | None = None
    usd_per_gpu_hour: str | None = None
    provider: str | None = None
    spare: str | None = None
    objective: str | None = None
    anchor: str | None = None
    settings: tuple[str, ...] = ()


FLAG_OF_FIELD: Mapping[str, str] = {
    "model": "--model",
    "gpus": "--gpus",
    "gpu": "--gpu",
    "cluster": "--cluster",
    "without": "--without",
    "degraded": "--degraded",
    "sequence_length": "--sequence-length",
    "global_batch_size": "--global-batch-size",
    "precision": "--precision",
    "adapter": "--adapter",
    "expert_load": "--expert-load",
    "recompute_modules": "--recompute-modules",
    "offload": "--offload",
    "stack": "--stack",
    "engine": "--for",
    "objective": "--objective",
    "tokens": "--tokens",
    "deadline": "--deadline",
    "budget": "--budget",
    "top": "--top",
    "memory_headroom": "--memory-headroom",
    "anchor": "--anchor",
}


def command_line(flags: Flags, command: str = "plan") -> str:
    """The command that asks this question.

    >>> command_line(Flags(model="llama-3.1-70b", gpus="32", settings=("layout.tp=8",)))
    'plan --model llama-3.1-70b --gpus 32 --set layout.tp=8'
    """
    words = command.split()
    for name, flag in FLAG_OF_FIELD.items():
        value = getattr(flags, name)
        if value is not None:
            words += [flag, value]
    for setting in flags.settings:
        words += ["--set", setting]
    return shlex.join(words)
