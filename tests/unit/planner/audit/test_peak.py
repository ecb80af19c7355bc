"""A printed peak beside its prediction: what it says of the assumed, of the log, and of proposals."""

import pytest

from app.reports.audit.report import audit_answer
from costmodel.kernels.tables import load_calibration
from planner.audit import audit as audit_module
from planner.audit.audit import Audit, audited
from planner.audit.read import read_texts
from planner.questions.flags import Flags
from topology.base.units import MIB

SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \\
  --untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4 --sequence-parallel \\
  --use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""
TUNED = """\
base_model: org/some-model
micro_batch_size: 8
gradient_accumulation_steps: 1
bf16: true
gradient_checkpointing: true
dp_shard_size: 8
"""
STEP = " iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | {rate}global batch size: 64 |\n"
PEAK = "[Rank 0] (after 3 iterations) memory (MB) | allocated: 1.0 | max allocated: {mib} | reserved: 2.0 | max reserved: 3.0\n"


def log_of(step_s: float, peak_bytes: float | None = None, rate: float | None = None) -> str:
    printed = "" if rate is None else f"throughput per GPU (TFLOP/s/GPU): {rate:.1f} | "
    steps = "".join(STEP.format(n=n, ms=1e3 * step_s, rate=printed) for n in range(1, 4))
    return steps + ("" if peak_bytes is None else PEAK.format(mib=peak_bytes / MIB))


def audit(log: str, script: str = SCRIPT, **flags: str) -> Audit:
    texts = {"run.sh": script, **({"run.log": log} if log else {})}
    return audited(read_texts(texts), Flags(**{"gpu": "h100-sxm", **flags}), load_calibration())


@pytest.fixture(scope="module")
def alone() -> Audit:
    return audit("")


@pytest.mark.parametrize("ratio", [0.4, 0.6, 1.6, 2.2])
def test_a_peak_far_outside_the_band_is_doubted_before_all_else(alone, ratio):
    predicted = alone.predicted
    found = audit(log_of(predicted.step_time_s, ratio * predicted.peak_memory_bytes))
    assert found.peak is not None
    assert (found.changes, found.slower_by) == ((), None)
    first = audit_answer(found).sections[0]
    assert first.lines[0] == found.doubted[0]
    assert "another job" in first.lines[0]


MAXTEXT = (
    "python3 -m MaxText.train MaxText/configs/base.yml hardware=gpu model_name=llama2-70b per_device_batch_size=1 "
    "max_target_length=8192 remat_policy={} ici_fsdp_parallelism=8 ici_tensor_parallelism=4 dtype=bfloat16\n"
)
MAXTEXT_STEP = (
    "completed step: {n}, seconds: {s}, TFLOP/s/device: 250.1, Tokens/s/device: 400.3, loss: 10.2\n"
)


def test_a_run_that_its_predicted_memory_rules_out_doubts_what_was_taken(monkeypatch):
    """What a policy without a price keeps is unknown: neither its time nor its distance is one of the job."""
    monkeypatch.setattr(audit_module, "_best", lambda *_, **__: None)
    script = MAXTEXT.format("of_next_year")
    alone = audited(read_texts({"run.sh": script}), Flags(gpu="h100-sxm", gpus="32"), load_calibration())
    assert (alone.memory.word, alone.cannot_run_as_taken, alone.slower_by) == ("not settled", True, None)
    steps = "".join(MAXTEXT_STEP.format(n=n, s=alone.predicted.step_time_s) for n in range(1, 4))
    texts = {"run.sh": script, "run.log": steps}
    ran = audited(read_texts(texts), Flags(gpu="h100-sxm", gpus="32"), load_calibration())
    assert (ran.residual, ran.changes, ran.slower_by, ran.fits) == (None, (), None, True)
    assert "doubt first recompute none: remat_policy of_next_year" in ran.doubted[0]
    assert not any(
        "nothing is left" in line for section in audit_answer(ran).sections for line in _lines(section)
    )


def _lines(section):
    return getattr(section, "lines", ())


@pytest.mark.parametrize("ratio", [0.93, 1.0, 1.07])
def test_proposals_take_the_level_of_a_peak_that_can_be_the_jobs(alone, ratio):
    """What a proposal changes is off by as much as what is printed of the job."""
    predicted = alone.predicted
    found = audit(log_of(predicted.step_time_s, ratio * predicted.peak_memory_bytes))
    assert found.peak is None
    assert found.memory_level == pytest.approx(ratio, rel=1e-3)
    assert found.changes
    for change in found.changes:
        more = change.peak_memory_bytes - predicted.peak_memory_bytes
        assert change.memory_change_bytes == pytest.approx(found.memory_level * more)


def test_an_assumed_length_is_doubted_and_the_one_that_fits_named():
    """The length of a log's own job, which its files do not state, is among those that are named."""
    assumed = audit_yaml("", sequence_length="2048").predicted
    truly = audit_yaml("", sequence_length="8192").predicted
    log = log_of(assumed.step_time_s, truly.peak_memory_bytes)
    reading = read_texts({"a.yaml": TUNED, "run.log": log})
    flags = Flags(gpu="h100-sxm", model="llama-3.1-8b", gpus="8", sequence_length="2048")
    found = audited(reading, flags, load_calibration(), asked=Flags(gpu="h100-sxm", gpus="8", model="x"))
    assert 8192 in dict(found.peak.lengths)
    assert "say --sequence-length" in found.peak.words


def audit_yaml(log: str, **flags: str) -> Audit:
    texts = {"a.yaml": TUNED, **({"run.log": log} if log else {})}
    asked = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "gpus": "8", **flags}
    return audited(read_texts(texts), Flags(**asked), load_calibration())


@pytest.mark.parametrize(
    ("factor", "doubted"), [(0.2, True), (0.6, False), (1.0, False), (1.5, False), (4.0, True)]
)
def test_a_rate_and_a_step_that_are_not_of_one_job_are_doubted(alone, factor, doubted):
    """Operations of a step are rate times time; engines count them within a factor of two of each other."""
    predicted = alone.predicted
    rate = factor * predicted.mfu * 989  # of an H100's dense bf16 peak
    found = audit(log_of(predicted.step_time_s * 1.02, rate=rate))
    assert ("other-work" in {finding.rule for finding in found.findings}) is doubted
    assert (found.slower_by is None) is doubted
    assert not (doubted and found.changes)
