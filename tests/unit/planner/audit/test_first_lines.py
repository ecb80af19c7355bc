"""What a person reads of an audit before scrolling: five lines, and the exit code beside them.

Files are made up in the forms of public reports; what is right of each stands in its test.
"""

from __future__ import annotations

import pytest

from app.commands.audit.answer import fails
from app.errors import FAILED_AUDIT
from app.reports.answer import render
from app.reports.audit.report import audit_answer, audit_document
from app.reports.audit.summary import MOST_SENTENCES
from planner.audit.audit import Audit, audited, calibration_of
from planner.audit.read import read_texts
from planner.questions.flags import Flags

TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
TITAN_LOG = "[rank0]: step: {step}  loss:  9.4  memory: 26.47GiB(33.47%)  tps: 1,786  mfu: 10.46%\n"
MEGATRON = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers {layers} --hidden-size 4096 \\
  --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --untie-embeddings-and-output-weights \\
  --seq-length 2048 --micro-batch-size 1 --global-batch-size 128 --bf16 --vocab-size 32000 {more}
"""
RAN = "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
MEGATRON_LOG = " iteration {step}/ 1000 | elapsed time per iteration (ms): {ms} | global batch size: 128 |\n"


def audit(texts: dict[str, str], **flags: str) -> Audit:
    """The audit of texts with flags."""
    reading, asked = read_texts(texts), Flags(**flags)
    return audited(reading, asked, calibration_of(reading, asked))


def first_lines(found: Audit) -> str:
    """The first five lines as a terminal of 110 columns shows them, in one, and the exit code after them."""
    lines = render(audit_answer(found), "table", width=110).splitlines()[:5]
    return " ".join(" ".join((*lines, f"exit {FAILED_AUDIT if fails(found, None) else 0}")).split())


def megatron(*, nodes: int = 2, layers: int = 32, more: str = RAN) -> str:
    return MEGATRON.format(nodes=nodes, layers=layers, more=more)


def titan_log() -> str:
    return "".join(TITAN_LOG.format(step=step) for step in (10, 20, 30))


def test_the_headline_names_the_job() -> None:
    """Engine, model, GPUs and layout: who reads no further knows whether it was read right."""
    lines = first_lines(audit({"run.sh": megatron()}, gpu="h100-sxm"))
    assert "a job of Megatron-LM, 32 layers of 4096" in lines
    assert "on 16 × h100-sxm, dp 16 · ZeRO-1 · recompute layers" in lines


def test_a_slow_step_that_no_flag_explains_names_the_link_that_would() -> None:
    """8B on four nodes at 1,786 tokens/s a GPU: 4.59 s, 3.5 × the flags' (torchtitan#708); NICs of 140 Gbit/s a node."""
    found = audit({"titan.toml": TITAN, "run.log": titan_log()}, gpu="h100-sxm", gpus="32")
    lines = first_lines(found)
    assert "measured 4.59 s is 3.4" in lines
    assert "none of your flags does" in lines
    assert found.residual is not None
    assert found.residual.link is not None
    assert found.residual.link.bytes_per_s * 8 / 1e9 == pytest.approx(140, rel=0.1)
    assert "fits, as the log shows" in lines
    assert lines.endswith("exit 0")


def test_the_rate_of_a_link_is_the_one_at_which_the_job_takes_so_long() -> None:
    """Solved backwards: with it said on the command line the prediction is the measurement."""
    texts = {
        "run.sh": megatron(),
        "run.log": "".join(MEGATRON_LOG.format(step=n, ms=9_000) for n in range(3)),
    }
    found = audit(texts, gpu="h100-sxm")
    assert found.residual is not None
    link = found.residual.link
    assert link is not None
    assert link.of == "node"
    setting = link.flag.removeprefix("--set ")
    there = audited(
        read_texts(texts),
        Flags(gpu="h100-sxm", settings=(setting,)),
        calibration_of(read_texts(texts), Flags(gpu="h100-sxm")),
    )
    assert there.predicted is not None
    assert there.predicted.step_time_s == pytest.approx(9.0, rel=0.02)


def test_of_one_node_the_link_among_its_gpus_is_named() -> None:
    """No NIC is in the way of a job of one node."""
    slow = "".join(MEGATRON_LOG.format(step=n, ms=60_000) for n in range(3))
    found = audit({"run.sh": megatron(nodes=1), "run.log": slow}, gpu="h100-sxm")
    assert found.residual is not None
    link = found.residual.link
    assert link is None or link.of == "GPU"


def test_a_job_that_does_not_fit_is_told_its_smallest_change() -> None:
    """States of 7B kept whole on GPUs of 40 GB, whatever the length (Megatron-LM#606); few words fix it."""
    lines = first_lines(audit({"run.sh": megatron(nodes=1, more="")}, gpu="a100-sxm-40gb"))
    assert "does not fit" in lines
    assert "predicted of 40 GiB" in lines
    assert " takes " in lines
    assert lines.endswith(f"exit {FAILED_AUDIT}")


def test_a_job_that_its_engine_stops_at_is_illegal_in_the_first_sentence() -> None:
    """46 layers over four stages (ms-swift#5737)."""
    lines = first_lines(
        audit({"run.sh": megatron(layers=46, more=f"--pipeline-model-parallel-size 4 {RAN}")}, gpu="h100-sxm")
    )
    assert "illegal: 46 layers do not divide by pp 4" in lines
    assert lines.endswith(f"exit {FAILED_AUDIT}")


@pytest.mark.parametrize("variable", ["NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING"])
def test_a_fault_of_the_environment_stands_before_what_is_well(variable: str) -> None:
    """70 times slower with it (LlamaFactory#3499): it comes before the word that the job fits."""
    lines = first_lines(audit({"run.sh": f"export {variable}=1\n{megatron()}"}, gpu="h100-sxm"))
    assert f"slow: {variable} is 1" in lines
    assert f"unset {variable}" in lines
    assert lines.index("slow:") < lines.index("fits")


def test_what_is_missing_is_asked_for_in_the_first_sentence() -> None:
    """A file without GPUs."""
    lines = first_lines(audit({"titan.toml": TITAN}))
    assert "not priced yet: give --gpus" in lines


def test_the_document_has_the_sentences_too() -> None:
    """What a person reads first a program reads first."""
    found = audit({"run.sh": megatron()}, gpu="h100-sxm")
    summary = audit_document(found)["summary"]
    assert 0 < len(summary) <= MOST_SENTENCES
    assert summary[0].startswith("fits: ")
