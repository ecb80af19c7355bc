"""Gradient buckets: in each engine's own words and unit both ways, refused where it has none."""

from __future__ import annotations

import json

import pytest

from costmodel.layout import ParallelLayout
from planner.engines.contract import read, words_of_line
from planner.engines.contracts import CONTRACTS
from planner.engines.formats import FORMATS
from planner.launch.targets import export_plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import NoFeasiblePlanError
from topology.base.units import MIB

GRADIENTS = 40_000_000
SHARDED = ParallelLayout(dp=8, zero_stage=1)
WHOLE = ParallelLayout(dp=8, zero_stage=0)
SMALL = "llama-3.2-1b"


@pytest.mark.parametrize(
    ("line", "bucket_bytes"),
    [
        ("--overlap-grad-reduce", 4 * GRADIENTS),
        ("--overlap-grad-reduce --bf16 --grad-reduce-in-bf16", 2 * GRADIENTS),
        ("", None),
        ("--overlap-grad-reduce --pipeline-model-parallel-size 2", None),
        (
            "--overlap-grad-reduce --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
            None,
        ),
    ],
)
def test_megatron_counts_gradients(line: str, bucket_bytes: float | None) -> None:
    """So many of two or four bytes; none is cut after the backward, or on later stages."""
    contract = CONTRACTS["megatron"]
    words = words_of_line(contract, [*line.split(), "--ddp-bucket-size", str(GRADIENTS)])
    found = read(contract, words)
    assert (found.wrong, found.unknown) == ((), ())
    assert found.fields.get("job.bucket_bytes") == bucket_bytes


def test_megatron_is_told_the_bucket() -> None:
    """An export has it in gradients, and what is read back is the plan."""
    plan = priced(SHARDED, SMALL, bucket_bytes=25.0 * MIB)
    assert f"--ddp-bucket-size {25 * MIB // 4}" in export_plan(plan, "megatron").text
    assert plan.estimate.step_time_s != priced(SHARDED, SMALL).estimate.step_time_s


@pytest.mark.parametrize(
    ("layout", "stack", "size", "said"),
    [
        (
            ParallelLayout(dp=4, pp=2, zero_stage=1),
            "megatron-core",
            25.0 * MIB,
            "only the first pipeline rank",
        ),
        (SHARDED, "megatron-core", 25.0 * MIB + 2, "gradients of 4 bytes"),
        (SHARDED, "megatron-core-noov", 25.0 * MIB, "with --overlap-grad-reduce alone"),
    ],
)
def test_megatron_is_not_told_what_it_would_not_do(
    layout: ParallelLayout, stack: str, size: float, said: str
) -> None:
    """Later stages have one bucket, and so has what is reduced after the backward."""
    with pytest.raises(NoFeasiblePlanError, match=said):
        export_plan(priced(layout, SMALL, stack=stack, bucket_bytes=size), "megatron")


def test_ddp_is_told_the_bucket_in_mebibytes() -> None:
    """`TrainingArguments.ddp_bucket_cap_mb`; what is read back has its bytes."""
    plan = priced(WHOLE, SMALL, stack="pytorch", bucket_bytes=25.0 * MIB)
    exported = export_plan(plan, "accelerate")
    files = {exported.file_name: exported.text, **exported.others}
    assert json.loads(files["training_args.json"])["ddp_bucket_cap_mb"] == 25
    contract = CONTRACTS["accelerate"]
    found = read(contract, FORMATS["accelerate"].parse(files, contract))
    assert found.fields["job.bucket_bytes"] == 25 * MIB


@pytest.mark.parametrize(
    ("layout", "size"), [(SHARDED, 25.0 * MIB), (WHOLE, 25e6)], ids=["of shards", "half a mebibyte"]
)
def test_ddp_alone_has_buckets_of_whole_mebibytes(layout: ParallelLayout, size: float) -> None:
    """FSDP2 reduces layer by layer."""
    with pytest.raises(NoFeasiblePlanError, match="DDP alone"):
        export_plan(priced(layout, SMALL, stack="pytorch", bucket_bytes=size), "accelerate")


@pytest.mark.parametrize("engine", ["torchtitan", "deepspeed", "megatron-bridge", "horovod", "meshplan"])
def test_engines_without_a_word_refuse_it(engine: str) -> None:
    """Rather than running other buckets."""
    stack = CONTRACTS[engine].stacks[0]
    layout = WHOLE if stack.startswith(("pytorch", "torchtitan")) else SHARDED
    with pytest.raises(NoFeasiblePlanError, match="bucket_bytes"):
        export_plan(priced(layout, SMALL, stack=stack, bucket_bytes=25.0 * MIB), engine)
