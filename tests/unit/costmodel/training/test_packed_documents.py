"""Attention inside packed documents: one square a document, summed by hand; everything else as it was."""

from dataclasses import replace

import pytest

from costmodel.accuracy.training_runs import read_run
from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import Op, OpKind, ShardShape
from costmodel.runs.documents import document_tokens_of
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()
SEQUENCE = 16384
JOB = TrainingJob(sequence_length=SEQUENCE, global_batch_size=16)
LAYOUT = ParallelLayout(dp=8, zero_stage=3, recompute="full")


def _attention(name: str, engine: str, job: TrainingJob, **shard: float) -> Op:
    """The attention core of the first layer."""
    spec = model(name)
    work = Workload(model=spec, job=job, stack=stack(engine))
    ops = layer_ops(work, layer_runs(spec)[0].kind, ShardShape(sequence_length=float(SEQUENCE), **shard))
    return next(op for op in ops if op.kind is OpKind.ATTENTION)


def _seconds(documents: int | None, engine: str = "torchtitan-2025") -> float:
    """A step of Qwen3-8B with documents of so many tokens."""
    case = Case(
        model=model("qwen3-8b"), cluster=default_cluster("h100-sxm", 8), cal=CAL,
        job=replace(JOB, document_tokens=documents), stack=stack(engine),
    )  # fmt: skip
    return estimate(case, LAYOUT).step_time_s


@pytest.mark.parametrize("cp", [1, 4])
@pytest.mark.parametrize("lengths", [[4096] * 4, [1024] * 16, [8192, 4096, 2048, 1024, 1024]])
def test_flop_are_those_of_every_document_alone(lengths: list[int], cp: int) -> None:
    """Σ over documents of two products of l²/2 pairs; lengths that differ enter by Σl²/Σl."""
    assert sum(lengths) == SEQUENCE
    alike = sum(each**2 for each in lengths) / SEQUENCE
    op = _attention("qwen3-8b", "megatron-core", replace(JOB, document_tokens=int(alike)), cp=cp)
    heads, size = 32, 128
    by_hand = sum(2 * heads * (size + size) * each**2 / 2 for each in lengths) / cp
    assert float(op.flop) == pytest.approx(by_hand, rel=1e-9)


def test_a_window_longer_than_the_documents_cuts_nothing() -> None:
    """Mistral's window of 4,096 over documents of 1,024."""
    packed = replace(JOB, document_tokens=1024)
    windowed, whole = (_attention(name, "megatron-core", packed) for name in ("mistral-7b", "llama-3.1-8b"))
    assert float(windowed.flop) == pytest.approx(float(whole.flop))


def test_chained_attention_computes_the_masked_square() -> None:
    """Unfused scores are of all pairs, whatever the mask."""
    packed = replace(JOB, document_tokens=1024)
    assert _attention("qwen3-8b", "megatron-lm-2022", packed) == _attention(
        "qwen3-8b", "megatron-lm-2022", JOB
    )


def test_a_document_as_long_as_the_sequence_changes_nothing() -> None:
    """And a longer one neither: it is cut where sequences end."""
    assert _seconds(SEQUENCE) == _seconds(4 * SEQUENCE) == _seconds(None)


def test_shorter_documents_never_take_longer() -> None:
    """Down to the part of a step that is no attention."""
    steps = [_seconds(tokens) for tokens in (256, 1024, 4096, 16384)]
    assert steps == sorted(steps)
    assert steps[0] > 0.5 * steps[-1]


def test_a_row_says_how_long_its_documents_are() -> None:
    """By its column, or by a note that leaves the length open."""
    row = {"sequence_length": "16384", "note": "attention of short documents packed to 16,384 (varlen)"}
    assert document_tokens_of(row) == 1448
    assert document_tokens_of({**row, "document_tokens": "700"}) == 700
    assert document_tokens_of({**row, "note": "no document mask; packed QKV"}) is None
    run = {
        "model": "Qwen3-8B", "sequence_length": "4096", "global_batch_size": "8", "gpu": "h100-sxm",
        "num_gpus": "8", "precision": "bf16", "framework": "torchtitan", "step_time_s": "9",
        "document_tokens": "512",
    }  # fmt: skip
    assert read_run(run).job.document_tokens == 512


def test_documents_without_tokens_are_refused() -> None:
    """As sequences without any are."""
    with pytest.raises(InputError, match="document_tokens"):
        TrainingJob(sequence_length=4096, global_batch_size=8, document_tokens=0)
