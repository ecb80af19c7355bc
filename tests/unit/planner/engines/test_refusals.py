"""What Megatron-LM stops at is refused, and nothing that it takes; its own parser is the judge where it is there."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from planner.engines.contract import read, words_of_line
from planner.engines.contracts import CONTRACTS
from planner.parsers.client import PACKAGES, answers, interpreter

MEGATRON = CONTRACTS["megatron"]
GPUS = 8
PLAIN = (
    "--num-layers 16 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 --swiglu "
    "--max-position-embeddings 4096 --disable-bias-linear --position-embedding-type rope --mock-data"
)
MOE = "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --bf16"
PAIRED = f"{MOE} --expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm"
WHOLE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
PIPE = "--pipeline-model-parallel-size"
FSDP = "--use-megatron-fsdp --bf16"
TORCH_FSDP = "--use-torch-fsdp2 --bf16 --untie-embeddings-and-output-weights"
AWARE = "--use-precision-aware-optimizer"

CASES: tuple[tuple[str, str, str], ...] = (
    ("gpus", "--tensor-model-parallel-size 3", "--tensor-model-parallel-size 2"),
    ("heads", "--num-attention-heads 12 --tensor-model-parallel-size 8 --hidden-size 768",
     "--num-attention-heads 24 --tensor-model-parallel-size 8 --hidden-size 768"),
    ("kv-heads", "--group-query-attention --num-query-groups 3 --tensor-model-parallel-size 2",
     "--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 8"),
    ("latent-groups", "--multi-latent-attention --group-query-attention --num-query-groups 4",
     "--multi-latent-attention"),
    ("batch", "--global-batch-size 12", "--global-batch-size 16"),
    ("sequence-halves", "--context-parallel-size 8 --seq-length 2056",
     "--context-parallel-size 8 --seq-length 2064"),
    ("sequence-limit", "--seq-length 8192", "--seq-length 4096"),
    ("context-levels", "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 4",
     "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 2"),
    ("stages", f"{PIPE} 4 --num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2",
     f"{PIPE} 4 --num-layers-per-virtual-pipeline-stage 2"),
    ("stages", f"{PIPE} 4 --decoder-first-pipeline-num-layers 4 --account-for-loss-in-pipeline-split",
     f"{PIPE} 4 --decoder-first-pipeline-num-layers 4"),
    ("stage-string", f"{PIPE} 4 --pipeline-model-parallel-layout Et*8|t*4|t*4L",
     f"{PIPE} 4 --pipeline-model-parallel-layout Et*4|t*4|t*4|t*4L"),
    ("stage-string", f"{PIPE} 4 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*4L",
     f"{PIPE} 4 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*5L"),
    ("prediction-modules", f"{PIPE} 4 --pipeline-model-parallel-layout Et*4|t*4|t*4|t*4L --mtp-num-layers 1",
     f"{PIPE} 4 --pipeline-model-parallel-layout Et*5|t*4|t*4|t*3mL --mtp-num-layers 1"),
    ("prediction-modules", f"{PIPE} 4 --pipeline-model-parallel-layout Et*5|t*4|t*4|t*3mL",
     f"{PIPE} 4 --mtp-num-layers 1"),
    ("prediction-positions", "--position-embedding-type learned_absolute --mtp-num-layers 1",
     "--mtp-num-layers 2"),
    ("layers", f"{PIPE} 4 --num-layers 14", f"{PIPE} 4 --num-layers 12"),
    ("layers", f"{PIPE} 4 --num-layers-per-virtual-pipeline-stage 3",
     f"{PIPE} 4 --num-layers-per-virtual-pipeline-stage 2"),
    ("layers", f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 3",
     f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 4"),
    ("layers", f"{PIPE} 4 --account-for-embedding-in-pipeline-split",
     f"{PIPE} 4 --num-layers 15 --account-for-embedding-in-pipeline-split"),
    ("layers", f"{PIPE} 4 --decoder-first-pipeline-num-layers 3",
     f"{PIPE} 4 --decoder-first-pipeline-num-layers 4"),
    ("layers",
     f"{PIPE} 4 --decoder-last-pipeline-num-layers 1 --num-virtual-stages-per-pipeline-rank 5",
     f"{PIPE} 4 --decoder-last-pipeline-num-layers 4 --num-virtual-stages-per-pipeline-rank 2"),
    ("interleaving", "--num-virtual-stages-per-pipeline-rank 2", f"{PIPE} 2 --num-virtual-stages-per-pipeline-rank 2"),
    ("interleaving", f"{PIPE} 4 --overlap-p2p-communication-warmup-flush",
     f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 2 --overlap-p2p-communication-warmup-flush"),
    ("interleaving", "--defer-embedding-wgrad-compute", f"{PIPE} 4 --defer-embedding-wgrad-compute"),
    ("tensor-overlap", "--tensor-model-parallel-size 2 --tp-comm-overlap",
     "--tensor-model-parallel-size 2 --tp-comm-overlap --sequence-parallel"),
    ("parameter-overlap", "--overlap-param-gather --overlap-grad-reduce",
     "--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer"),
    ("parameter-overlap", "--overlap-param-gather --use-distributed-optimizer", "--use-distributed-optimizer"),
    ("step-overlap", f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 2 --overlap-param-gather-with-optimizer-step",
     (f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 2 --overlap-param-gather-with-optimizer-step "
     "--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer --ckpt-format torch")),
    ("megatron-fsdp", FSDP, f"{FSDP} --ckpt-format fsdp_dtensor"),
    ("megatron-fsdp", f"{FSDP} --ckpt-format torch_dist", f"{FSDP} --ckpt-format fsdp_dtensor"),
    ("torch-fsdp", TORCH_FSDP, f"{TORCH_FSDP} --no-gradient-accumulation-fusion"),
    ("torch-fsdp", f"{TORCH_FSDP} --no-gradient-accumulation-fusion --use-distributed-optimizer",
     f"{TORCH_FSDP} --no-gradient-accumulation-fusion --ckpt-format torch_dist"),
    ("torch-fsdp", f"{TORCH_FSDP} --no-gradient-accumulation-fusion {PIPE} 2",
     f"{TORCH_FSDP} --no-gradient-accumulation-fusion --ckpt-format torch_dcp"),
    ("checkpoints", "--ckpt-format fsdp_dtensor", "--ckpt-format torch_dist"),
    ("checkpoints", "--ckpt-format torch_dcp", "--ckpt-format torch"),
    ("precision", "--bf16 --fp16", "--fp16"),
    ("eight-bits", "--bf16 --fp8-param-gather --use-distributed-optimizer",
     "--bf16 --fp8-param-gather --use-distributed-optimizer --fp8-format hybrid"),
    ("eight-bits", "--bf16 --fp8-param-gather --fp8-format hybrid", "--bf16 --fp8-format hybrid"),
    ("eight-bits", "--bf16 --fp8-format hybrid --fp4-format e2m1", "--bf16 --fp4-format e2m1"),
    ("eight-bits", "--bf16 --fp8-format hybrid --first-last-layers-bf16",
     "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16"),
    ("state-precision", (f"--bf16 {AWARE} --use-distributed-optimizer --main-grads-dtype bf16 "
     "--accumulate-allreduce-grads-in-fp32"), f"--bf16 {AWARE} --use-distributed-optimizer --main-grads-dtype bf16"),
    ("offload", "--bf16 --optimizer-cpu-offload --use-distributed-optimizer",
     f"--bf16 --optimizer-cpu-offload --use-distributed-optimizer {AWARE}"),
    ("offload", f"--cpu-offloading-num-layers 2 {PIPE} 2", "--cpu-offloading-num-layers 2"),
    ("offload", "--cpu-offloading-num-layers 2 --recompute-activations", "--cpu-offloading-num-layers 2"),
    ("recompute", "--recompute-granularity full --recompute-num-layers 1", WHOLE),
    ("recompute", "--recompute-granularity full --recompute-method block", WHOLE),
    ("recompute", "--recompute-activations --recompute-method uniform", "--recompute-activations"),
    ("recompute", f"--recompute-activations {WHOLE}", WHOLE),
    ("recompute", "--recompute-granularity selective --recompute-num-layers 1", "--recompute-granularity selective"),
    ("recompute", f"{WHOLE} --distribute-saved-activations",
     f"{WHOLE} --distribute-saved-activations --tensor-model-parallel-size 2"),
    ("recompute", f"{WHOLE} --distribute-saved-activations --tensor-model-parallel-size 2 --sequence-parallel",
     f"{WHOLE} --tensor-model-parallel-size 2 --sequence-parallel"),
    ("recompute-modules", "--recompute-granularity selective --recompute-modules mla_up_proj",
     "--recompute-granularity selective --recompute-modules core_attn mlp"),
    ("recompute-modules", "--recompute-granularity selective --recompute-modules moe_act",
     f"{MOE} --recompute-granularity selective --recompute-modules moe_act"),
    ("recompute-modules", "--bf16 --fp8-format hybrid --recompute-granularity selective --recompute-modules layernorm",
     ("--bf16 --fp8-format hybrid --fp8-recipe blockwise --recompute-granularity selective "
     "--recompute-modules layernorm")),
    ("experts", "--expert-model-parallel-size 2", f"{MOE} --expert-model-parallel-size 2"),
    ("experts", f"{MOE} --num-experts 12 --expert-model-parallel-size 8",
     f"{MOE} --num-experts 16 --expert-model-parallel-size 8"),
    ("experts", "--moe-ffn-hidden-size 512", f"{MOE} --moe-ffn-hidden-size 512"),
    ("dispatcher", f"{MOE} --moe-enable-deepep", f"{MOE} --moe-enable-deepep --moe-token-dispatcher-type flex"),
    ("dispatcher", (f"{MOE} --moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap "
     "--moe-token-dispatcher-type allgather"),
     f"{MOE} --moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap"),
    ("router", f"{MOE} --moe-router-enable-expert-bias",
     f"{MOE} --moe-router-enable-expert-bias --moe-router-score-function sigmoid"),
    ("router", f"{MOE} --moe-router-topk 1", f"{MOE} --moe-router-topk 1 --moe-router-pre-softmax"),
    ("router", f"{MOE} --moe-router-group-topk 2", f"{MOE} --moe-router-group-topk 2 --moe-router-num-groups 4"),
    ("capacity", f"{MOE} --moe-pad-expert-input-to-capacity",
     f"{MOE} --moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.0"),
    ("expert-overlap", f"{PAIRED} {WHOLE}", PAIRED),
    ("expert-overlap", f"{PAIRED} {PIPE} 2 --expert-model-parallel-size 4",
     f"{PAIRED} {PIPE} 2 --expert-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 16"),
    ("expert-overlap", f"{MOE} --delay-wgrad-compute", f"{PAIRED} --delay-wgrad-compute"),
    ("graphs", "--enable-cuda-graph --external-cuda-graph", "--external-cuda-graph"),
    ("graphs", "--enable-cuda-graph --cuda-graph-impl local", "--cuda-graph-impl local"),
    ("graphs", "--cuda-graph-impl local --cuda-graph-scope attn --cuda-graph-modules attn",
     "--cuda-graph-impl local --cuda-graph-scope attn"),
    ("graphs", "--cuda-graph-impl full_iteration",
     "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad"),
    ("graphs", "--cuda-graph-impl local --cuda-graph-scope full_iteration",
     "--cuda-graph-impl local --cuda-graph-scope full_iteration --no-check-for-nan-in-loss-and-grad"),
    ("graphs", f"{WHOLE} --enable-cuda-graph",
     f"{WHOLE} --cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad"),
)  # fmt: skip
"""A rule, a line that breaks it, and one beside it that does not."""
LATER: tuple[tuple[str, str, str], ...] = (
    ("expert-block", f"{MOE} --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --sequence-parallel",
     (f"{MOE} --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
     "--sequence-parallel")),
    ("experts-sequence-parallel", f"{MOE} --tensor-model-parallel-size 2",
     f"{MOE} --tensor-model-parallel-size 2 --sequence-parallel"),
    ("state-precision", "--bf16 --use-distributed-optimizer --exp-avg-dtype bf16",
     f"--bf16 --use-distributed-optimizer --exp-avg-dtype bf16 {AWARE}"),
    ("interleaving-groups", f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 12",
     f"{PIPE} 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 16"),
)  # fmt: skip
"""What stops after the arguments are read: `initialize_model_parallel`, `MoELayer`, `OptimizerConfig`, the schedule."""


def refused(line: str) -> set[str]:
    """Names of what is refused of a line; a word given again holds over the first."""
    told = read(MEGATRON, words_of_line(MEGATRON, f"{PLAIN} {line}".split()), GPUS)
    return {one.violation.rule for one in told.refused if one.violation.ground == "engine"}


def asked(line: str) -> dict[str, Any]:
    """A line as its own parser is given it."""
    words = " ".join(shlex.quote(word) for word in f"{PLAIN} {line}".split())
    return {
        "files": {"line.sh": f"MEGATRON_ARGS=({words})\n"}, "gpus": GPUS, "capability": "10.0",
        "gpu": "NVIDIA B200", "environment": {}, "model": {},
    }  # fmt: skip


@pytest.mark.parametrize(("rule", "line", "beside"), [*CASES, *LATER])
def test_a_refusal_tells_a_line_from_the_one_beside_it(rule: str, line: str, beside: str) -> None:
    """The first stops by this rule, the second by none."""
    assert rule in refused(line)
    assert refused(beside) == set()


def test_its_own_parser_stops_at_the_same_lines() -> None:
    """And takes those beside them."""
    python = interpreter("megatron")
    if python is None:
        pytest.skip(f"{PACKAGES['megatron']} is not installed")
    lines = [line for _, line, beside in CASES for line in (line, beside)]
    found = answers("megatron", [asked(line) for line in lines], python)
    stopped = [(line, said) for line, said in zip(lines, found, strict=True) if "error" in said]
    assert [line for line, _ in stopped] == [line for _, line, _ in CASES], stopped


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (f"--recompute-activations {WHOLE}", "recompute"),
        ("--recompute-method uniform --recompute-num-layers 1", "recompute-idle"),
        ("--sequence-parallel", "sequence-parallel"),
    ],
)
def test_what_it_quietly_overrules_is_a_contradiction(line: str, rule: str) -> None:
    """It starts, and does not do what one of the words says."""
    told = read(MEGATRON, words_of_line(MEGATRON, f"{PLAIN} {line}".split()), GPUS)
    assert rule in {one.violation.rule for one in told.refused if one.violation.ground == "overruled"}


def test_nothing_is_refused_that_hangs_on_a_word_with_an_unknown_value() -> None:
    """A variable that only a run knows may be right."""
    words = words_of_line(MEGATRON, f"{PLAIN} --overlap-param-gather".split())
    (one,) = read(MEGATRON, words, GPUS).refused
    assert one.violation.rule == "parameter-overlap"
    assert read(MEGATRON, words, GPUS, ["--use-distributed-optimizer"]).refused == ()


def test_every_refusal_speaks_of_words_that_the_contract_has() -> None:
    """And has a line here."""
    names = {one.name for one in MEGATRON.refusals if one.ground == "engine"}
    assert names - {name for name, _, _ in (*CASES, *LATER)} == {"biased-experts", "reused-buffers"}
    assert {word for one in MEGATRON.refusals for word in one.reads} <= set(MEGATRON.words)
