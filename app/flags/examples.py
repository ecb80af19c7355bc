"""Command lines that the help of every command shows; a test runs each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": (
        "plan --model 70b --gpus 32",
        "plan --model 405b --gpus 16k --batch 2048 --tokens 15T --deadline 90d",
        "plan --model deepseek-v3 --gpus 2048 --gpu gb200 --set layout.tp=1",
    ),
    "estimate": (
        "plan estimate --model 70b --gpus 32 --set layout.tp=8 --set layout.pp=4",
        "plan estimate --model 8b --gpus 1 --adapter lora:r=16 --batch 16",
    ),
    "serve": (
        "plan serve --model 70b --rate 20/s --ttft 1s --tpot 40ms",
        "plan serve --model deepseek-r1 --gpus 32 --gpu h200 --concurrency 256",
    ),
    "explain": ("plan explain --model 70b --gpus 32", "plan explain plan.json"),
    "sweep": (
        "plan sweep --model 70b --gpus 32..256",
        "plan sweep --model 8b --gpus 8 --set layout.tp=1,2,4,8",
    ),
    "ladder": (
        "plan ladder --model 8b --gpus 8",
        "plan ladder --knob rank --model 8b --gpus 1 --adapter lora:r=16",
    ),
    "diff": ("plan diff plan.json other.json", "plan diff plan.json other.json --json"),
    "audit": (
        "plan audit train.sh train.log",
        "plan audit train.sh --model 8b --gpus 8 --gpu h100-sxm",
        "plan audit -- torchrun pretrain_gpt.py --tensor-model-parallel-size 2",
    ),
    "accuracy": ("plan accuracy", "plan accuracy runs.csv --by source --worst 5"),
    "calibrate": (
        "plan calibrate --serving bench.json --model 70b --gpu h100 --set layout.tp=4",
        "plan calibrate --serving bench.json --model 8b --gpu h100 --name mine",
    ),
    "dash": ("plan dash", "plan dash plan.json --port 8600"),
    "recipes": ("plan recipes", "plan recipes 70b --gpu h100-sxm"),
    "memory": ("plan memory 70b", "plan memory deepseek-v3 --sequence-length 32k --precision fp8"),
    "models": ("plan models", "plan models deepseek-v3"),
    "engines": ("plan engines", "plan engines megatron-core"),
    "rule": ("plan rule", "plan rule ulysses-heads"),
    "topology": (
        "plan topology --cluster dgx-h100 --gpus 64 --layout tp=8,pp=4",
        "plan topology --here --toml cluster.toml",
    ),
    "gpus": ("plan gpus", "plan gpus h100"),
    "run": ("plan run plan.json --steps 100", "plan run --model tiny --gpus 2 --gpu cpu --steps 20"),
    "tokenize": (
        "plan tokenize texts.jsonl --tokenizer tokenizer.json --output data",
        "plan tokenize books/ --tokenizer tokenizer.json --output books --field body",
    ),
    "convert": ("plan convert run/ --output model/", "plan convert run/ --output model/ --dtype fp32"),
    "bench": ("plan bench", "plan bench --check plan.json"),
    "export": (
        "plan export plan.json --to megatron-lm",
        "plan export plan.json --to megatron --save-dir job --launcher slurm",
    ),
    "validate": ("plan validate plan.json", "plan validate plan.json --json"),
    "diagnose": (
        "plan diagnose rank0.json.gz",
        "plan diagnose rank0.json rank1.json train.sh --fail-above 15%",
    ),
    "watch": ("plan watch run/", "plan watch train.log --plan plan.json"),
    "mcp": ("plan mcp", "plan mcp --root jobs"),
    "verify": ("plan verify plan.json", "plan verify plan.json --no-proof"),
}
"""Examples of every command, the usual one first."""
