"""Command lines, in words: valid values of every flag, and hostile ones in some of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random

from tests.property.fuzz.mutate import NUMBERS, RAW, TEXTS, hostile_value

_JOB: Mapping[str, Sequence[str]] = {
    "--model": ("llama-3.2-1b", "8b", "mixtral-8x7b", "config.json", "gpt-oss-20b"),
    "--gpus": ("1", "2", "8", "16"),
    "--gpu": ("h100-sxm", "a100-sxm-80gb", "b200-sxm", "gb200", "mi300x"),
    "--cluster": ("aws-p5.48xlarge", "cluster.toml"),
    "--sequence-length": ("4k", "2048", "8192"),
    "--global-batch-size": ("64", "8"),
    "--precision": ("bf16", "fp8"),
    "--stack": ("megatron-core", "torchtitan", "meshplan"),
    "--tokens": ("1T", "1e9"),
    "--deadline": ("30d", "12h"),
    "--budget": ("2M", "$800k"),
    "--set": ("layout.tp=2", "layout.pp=2", "job.optimizer=adamw", "cluster.count=2", "model.num_layers=4"),
    "--anchor": ("mine", "runs.csv"),
}
_SEARCH: Mapping[str, Sequence[str]] = {
    "--objective": ("step-time", "cost", "gpus"), "--memory-headroom": ("0", "5%"), "--top": ("1", "3"),
}  # fmt: skip
_SERVE: Mapping[str, Sequence[str]] = {
    "--model": ("8b", "llama-3.2-1b"), "--gpus": ("1", "8"), "--gpu": ("h100-sxm",), "--input": ("1000",), "--output": ("200",),
    "--rate": ("2/s", "1"), "--concurrency": ("8",), "--ttft": ("1s", "500ms"), "--tpot": ("50ms",), "--percentile": ("90",),
    "--weights": ("bf16", "fp8"), "--engine": ("vllm", "sglang"), "--mode": ("aggregated",), "--burstiness": ("1",), "--set": ("layout.tp=2",),
}  # fmt: skip
_TOPOLOGY: Mapping[str, Sequence[str]] = {
    "--gpus": ("8", "64", "1024"), "--gpu": ("h100-sxm", "gb200"), "--cluster": ("aws-p5.48xlarge", "cluster.toml"),
    "--layout": ("tp=8,pp=4", "tp=2"), "--order": ("pp,dp,cp,tp",), "--discover": ("config.json", "cluster.toml"),
}  # fmt: skip
_FORMS: Mapping[str, Sequence[str]] = {"--format": ("table", "json", "csv", "markdown")}
_COMMANDS: Sequence[tuple[float, tuple[str, ...], Mapping[str, Sequence[str]], tuple[str, ...]]] = (
    (0.40, ("estimate",), _JOB, ("--model", "--gpus")),
    (0.20, ("topology",), _TOPOLOGY | _FORMS, ("--gpus",)),
    (0.06, ("train",), _JOB | _SEARCH | _FORMS, ("--model", "--gpus")),
    (0.03, ("sweep",), _JOB, ("--model", "--gpus")),
    (0.06, ("serve",), _SERVE | _FORMS, ("--model", "--gpus", "--input", "--output", "--rate")),
    (0.15, ("models",), _FORMS, ()),
    (0.05, ("gpus",), _FORMS, ()),
    (0.03, ("run", "--dry-run"), _JOB | {"--steps": ("1", "10"), "--run-dir": ("run",), "--seed": ("1",)}, ("--model", "--gpus")),
    (0.02, ("accuracy", "runs.csv"), _FORMS | {"--by": ("source",), "--worst": ("2",)}, ()),
)  # fmt: skip
_FIELDS = (
    "layout.tp", "layout.pp", "layout.dp", "layout.ep", "layout.cp", "layout.axis_order", "layout.microbatch_size", "layout.schedule",
    "layout.recompute", "layout.virtual_stages", "layout.shard_degree", "layout.zero_stage", "layers_of_stage", "job.optimizer", "job.total_tokens",
    "job.sequence_length", "job.global_batch_size", "cluster.count", "cluster.nodes", "cluster.tiers", "cluster.gpus_per_node", "cluster.nics_per_node",
    "cluster.nodes_per_domain", "cluster.nodes_per_unit", "cluster.oversubscription", "cluster.switches", "cluster.gpus", "cluster.name", "cluster.usd_per_gpu_hour",
    "model.num_layers", "model.hidden_size", "model.num_experts", "model.rotary", "model.vocab_size", "model.windows", "model.name", "nosuch", "a.b.c", "",
)  # fmt: skip


def word(random: Random) -> str:
    """One hostile word; NUL and half surrogate pairs cannot stand on a command line."""
    text = random.choice(TEXTS) if random.random() < 0.6 else str(random.choice(NUMBERS)).removeprefix(RAW)
    return text.replace("\x00", "").encode(errors="replace").decode()


def setting(random: Random) -> str:
    """One hostile setting, its value as text or as JSON."""
    value = (
        word(random)
        if random.random() < 0.5
        else json.dumps(hostile_value(random)).replace("\\u0000", "").strip('"')[:5000]
    )
    return f"{random.choice(_FIELDS)}{random.choice(('=', '=', '=', '==', ''))}{value}".replace("\x00", "")


def make(random: Random, story: list[str]) -> str:
    """A command line as JSON: mostly valid, with one to three hostile words."""
    _, command, flags, needed = random.choices(_COMMANDS, [entry[0] for entry in _COMMANDS])[0]
    chosen = {
        flag: random.choice(values)
        for flag, values in flags.items()
        if flag in needed or random.random() < 0.15
    }
    if "--cluster" in chosen:
        chosen.pop("--gpus", None) if random.random() < 0.7 else None
        chosen.pop("--gpu", None)
    for _ in range(random.choice((1, 1, 1, 2, 3)) if flags else 0):
        flag = random.choice(list(flags))
        chosen[flag] = setting(random) if flag == "--set" else word(random)
    words = [*command, *(part for flag, value in chosen.items() for part in (flag, value))]
    if command[0] == "models" or random.random() < 0.03:
        words.append(word(random))
    if command[0] != "run" and random.random() < 0.03:
        words.pop(random.randrange(len(words)))
    words += ["--json"] if "--format" not in chosen else []
    story.append(" ".join(part[:60] for part in words))
    return json.dumps(words)
