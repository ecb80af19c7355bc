"""Random questions that people ask, each as a command line and as the query of a dashboard link.

A seed and a number name a question; the same two give the same question again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

AUDIT_FILES = Path(__file__).parents[2] / "unit" / "planner" / "audit" / "files"
KINDS = ("training", "campaign", "training", "serving", "campaign", "audit")
"""What every sixth question is; a campaign is a training question with tokens and limits."""
_DENSE = ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-32b", "gpt-oss-20b")
_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b")
_TRAINED_ON = ("h100-sxm", "a100-sxm-80gb", "h200-sxm", "b200-sxm", "gb200")
_AUDITED = (
    "deepseek_v3.sh", "megatron.log", "megatron_case.sh", "megatron_moe.sh", "megatron_defaults.sh", "axolotl.yaml",
    "aws_fsdp.sbatch", "long_context.sh", "nemo1.yaml", "megatron_fsdp.sh", "bigscience.slurm",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question: words of a command after `plan`, and what a link says for the same.

    Attributes:
        kind: training, campaign, serving or audit.
        words: The command line, without `plan`, a format or a file to write.
        query: The dashboard's query parameters.
        deadline_share: A campaign's deadline, as a share of the median time to train; None without one.
        budget_share: The same of its budget.
    """

    kind: str
    words: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    deadline_share: float | None = None
    budget_share: float | None = None


def question(number: int, seed: int = 0) -> Question:
    """Draw question `number` of a seed."""
    draw = random.Random(f"{seed}:{number}")
    kind = KINDS[number % len(KINDS)]
    if kind == "serving":
        return _serving(draw)
    if kind == "audit":
        return _audit(draw)
    return _training(draw, kind)


def _training(draw: random.Random, kind: str) -> Question:
    """A model, GPUs of one kind, a length, a batch and a precision; of a campaign tokens and limits."""
    model = draw.choice((*_DENSE, *_EXPERTS))
    gpu = draw.choice(_TRAINED_ON)
    query = {
        "model": model,
        "gpus": str(draw.choice((8, 16, 24, 32, 64, 128))),
        "gpu": gpu,
        "sequence_length": str(draw.choice((2048, 4096, 8192, 16384))),
        "global_batch_size": str(draw.choice((128, 256, 512, 1024))),
        "precision": draw.choice(("bf16", "bf16", "fp8")) if not gpu.startswith("a100") else "bf16",
    }
    limited = kind == "campaign"
    if limited:
        query["tokens"] = draw.choice(("20B", "200B", "1T", "5T"))
    words = [word for name, value in query.items() for word in (f"--{name.replace('_', '-')}", value)]
    return Question(
        kind=kind, words=tuple(words), query=query,
        deadline_share=draw.choice((None, 0.8, 0.97, 1.01, 1.05, 1.3)) if limited else None,
        budget_share=draw.choice((None, 0.9, 1.02, 1.4)) if limited else None,
    )  # fmt: skip


def _serving(draw: random.Random) -> Question:
    """A model and a GPU kind, lengths, a rate and both latency limits."""
    query = {
        "model": draw.choice(("llama-3.1-8b", "qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b")),
        "gpu": draw.choice(("h100-sxm", "h200-sxm", "b200-sxm")),
        "input": str(draw.choice((500, 2000, 6000))),
        "output": str(draw.choice((100, 300, 1000))),
        "ttft": draw.choice(("500ms", "1s", "3s")),
        "tpot": draw.choice(("20ms", "30ms", "50ms")),
        "percentile": draw.choice(("90", "99")),
        "rate": draw.choice(("1/s", "5/s", "20/s")),
    }
    flag = {"input": "--input", "output": "--output-tokens"}
    words = [word for name, value in query.items() for word in (flag.get(name, f"--{name}"), value)]
    return Question(kind="serving", words=("serve", *words), query=query)


def _audit(draw: random.Random) -> Question:
    """A launch file or a log. Where it names no GPU, a page's question and `--gpu` say the same."""
    name, gpu = draw.choice(_AUDITED), "h100-sxm"
    query = {"model": "llama-3.1-8b", "gpus": "8", "gpu": gpu, "sequence_length": "8192"}
    return Question(kind="audit", words=("audit", str(AUDIT_FILES / name), "--gpu", gpu), query=query)
