"""What an audit finds wrong stands at its line and is helped in the file's own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.audit import Audit, audited
from planner.audit.legal import Finding
from planner.audit.read import read_files
from planner.questions.flags import Flags

FILES = Path(__file__).parent / "files"
RUN = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096
  --vocab-size 128256 --micro-batch-size 1 --global-batch-size 64 --bf16 --disable-bias-linear
  {more}
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py "${{ARGS[@]}}"
"""
SAID = 7
"""The line of what is added."""
MOE = "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --sequence-parallel"
FIELDS = re.compile(
    r"\b(tp|pp|cp|ep|expert_tp|zero_stage|virtual_stages|microbatch_size|recompute|precision)="
)


def found(tmp_path: Path, more: str, *, text: str = RUN, gpu: str = "h100-sxm") -> Audit:
    path = tmp_path / "run.sh"
    path.write_text(text.format(more=more), encoding="utf-8")
    return audited(read_files([str(path)]), Flags(gpu=gpu), load_calibration())


def told(audit: Audit, rule: str) -> Finding:
    return next(finding for finding in audit.findings if finding.rule == rule)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("more", "kind", "rule", "fix"),
    [
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3", "illegal", "layers",
         "set --num-layers-per-virtual-pipeline-stage 1, or --num-virtual-stages-per-pipeline-rank"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3", "illegal", "layers",
         "set --num-virtual-stages-per-pipeline-rank 1, or give --pipeline-model-parallel-layout"),
        (f"--tensor-model-parallel-size 4 --expert-model-parallel-size 8 {MOE}", "illegal", "expert-block",
         "set --expert-tensor-parallel-size 2, or lower --expert-model-parallel-size"),
        ("--use-megatron-fsdp", "illegal", "megatron-fsdp", "set --ckpt-format fsdp_dtensor"),
        ("--overlap-param-gather --overlap-grad-reduce", "illegal", "parameter-overlap",
         "add --use-distributed-optimizer, or leave --overlap-param-gather out"),
        ("--recompute-granularity full", "illegal", "recompute", "add --recompute-method uniform"),
        ("--tensor-model-parallel-size 3", "illegal", "gpus",
         "start a multiple of 3 GPUs, or lower --tensor-model-parallel-size"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "illegal", "precision-hardware",
         "leave --fp8-format and --fp8-recipe out, or a GPU with mxfp8 tensor cores"),
        ("--recompute-num-layers 2", "contradiction", "recompute-idle",
         "set --recompute-granularity, or leave --recompute-num-layers out"),
    ],
)  # fmt: skip
def test_a_finding_has_its_line_and_the_words_of_the_file(tmp_path, more, kind, rule, fix):
    audit = found(tmp_path, more)
    one = told(audit, rule)
    assert (one.kind, one.fix, Path(one.file).name, one.line) == (kind, fix, "run.sh", SAID)
    assert [finding for finding in audit.findings if FIELDS.search(finding.fix)] == []


@pytest.mark.usefixtures("searched_in_nightly")
def test_what_an_engine_stops_at_is_said_once_in_the_words_of_the_file(tmp_path):
    """Its own assertion, and no rule of plans about the same field beside it."""
    audit = found(tmp_path, "--mtp-num-layers 1 --position-embedding-type learned_absolute")
    (one,) = [finding for finding in audit.findings if finding.kind in ("illegal", "unpriced")]
    assert (one.rule, one.fix) == ("prediction-positions", "set --position-embedding-type rope")


@pytest.mark.usefixtures("searched_in_nightly")
def test_torch_fsdp_is_called_by_its_name(tmp_path):
    more = "--use-torch-fsdp2 --no-gradient-accumulation-fusion --untie-embeddings-and-output-weights"
    one = told(found(tmp_path, more), "cuda-connections")
    assert (one.message, one.line) == ("CUDA_DEVICE_MAX_CONNECTIONS is 1: torch FSDP2 stops", 2)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("gpu", "asked"), [("h100-sxm", True), ("gb200", False)])
def test_the_variable_is_asked_for_below_blackwell_only(tmp_path, gpu, asked):
    text = RUN.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
    audit = found(tmp_path, "--tensor-model-parallel-size 2", text=text, gpu=gpu)
    assert ("cuda-connections" in {finding.rule for finding in audit.findings}) is asked


def test_a_degree_that_only_a_run_knows_breaks_nothing(tmp_path):
    more = "--tensor-model-parallel-size $TP --sequence-parallel --tp-comm-overlap"
    assert {finding.kind for finding in found(tmp_path, more).findings} <= {"slow"}


def test_a_file_that_leaves_the_model_to_another_lacks_nothing():
    """Its experts are in the file that it sources."""
    audit = audited(read_files([str(FILES / "slime_rl.sh")]), Flags(), load_calibration())
    assert "experts" not in {finding.rule for finding in audit.findings}


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_published_job_of_latent_attention_and_experts_is_legal_and_priced():
    """Eight bits by blocks repeat norms, and moments of two bytes are of the engine."""
    audit = audited(read_files([str(FILES / "deepseek_v3.sh")]), Flags(), load_calibration())
    assert [finding for finding in audit.findings if finding.kind == "illegal"] == []
    assert audit.predicted is not None
    assert audit.job.layout is not None
    assert not any("priced as kept" in doubt for doubt in audit.doubts)


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_recipe_is_of_the_model_that_its_function_names():
    reading = read_files([str(FILES / "bridge_405b.py.txt")])
    audit = audited(reading, Flags(gpus="1024", gpu="h100-sxm"), load_calibration())
    assert audit.job.request is not None
    assert audit.job.request.model.name == "llama-3.1-405b"


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_switch_that_nothing_prices_is_said(tmp_path: Path):
    """Delayed weight gradients hide more of the exchange than the profile knows."""
    more = "--num-experts 8 --expert-model-parallel-size 2 --delay-wgrad-compute"
    assert any(
        doubt.startswith("--delay-wgrad-compute moves weight gradients")
        for doubt in found(tmp_path, more).doubts
    )
