"""What an estimate rests on, and how runs of it are counted."""

from dataclasses import replace

from costmodel.case import Case
from costmodel.evidence.keys import Footing, Key, engine_family, footing
from costmodel.evidence.table import (
    MEMORY,
    RUNS,
    count_runs,
    evidence_for,
    unmeasured,
    unmeasured_memory,
    unmeasured_precision,
)
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from topology.builders import default_cluster


def names_of(layout: ParallelLayout, tokens: int = 4096, name: str = "llama-3.1-8b") -> set[str]:
    """Keys of a layout on H100 nodes of eight."""
    job = TrainingJob(sequence_length=tokens, global_batch_size=512)
    cluster = default_cluster("h100-sxm", layout.num_gpus)
    return {
        key.name
        for key in footing(
            Case(
                model=model(name),
                cluster=cluster,
                job=job,
                stack=stack("megatron-core"),
                cal=load_calibration(),
            ),
            layout,
        ).keys
    }


PLAIN = {"bf16", "profile megatron-core"}


def test_one_gpu_uses_no_axis() -> None:
    """Its precision and its profile are all it rests on."""
    assert names_of(ParallelLayout()) == PLAIN


def test_a_degree_is_of_every_class_that_it_has_reached() -> None:
    """Cp 2 is no evidence for cp 8, which passes keys on while others are in flight."""
    assert names_of(ParallelLayout(cp=2)) == PLAIN | {"cp"}
    assert names_of(ParallelLayout(cp=8)) == PLAIN | {"cp", "cp > 2"}
    assert names_of(ParallelLayout(pp=16)) == PLAIN | {"pp", "pp > 8"}
    assert names_of(ParallelLayout(tp=16)) == PLAIN | {"tp", "tp across nodes", "gathered key heads"}


def test_experts_cross_nodes_where_their_ranks_do() -> None:
    """ep·expert_tp ranks lie side by side, pp times as far apart with pp inside dp."""
    moe = "mixtral-8x7b"
    inside = ParallelLayout(dp=16, ep=8)
    assert names_of(inside, name=moe) == PLAIN | {"experts", "ep"}
    assert "ep across nodes" in names_of(replace(inside, expert_tp=2), name=moe)
    apart = ParallelLayout(dp=8, pp=2, ep=8, axis_order=("dp", "pp", "cp", "tp"))
    assert "ep across nodes" in names_of(apart, name=moe)


def test_heads_that_ranks_gather_are_a_key() -> None:
    """Eight key-value heads over sixteen ranks are what no measured run has; over eight they are nothing."""
    assert "gathered key heads" in names_of(ParallelLayout(tp=16))
    assert "gathered key heads" not in names_of(ParallelLayout(tp=8))


def test_sharding_schedule_recomputation_and_sizes_are_keys() -> None:
    """Everything beside the plainest."""
    x = ParallelLayout(
        dp=32, pp=4, virtual_stages=2, schedule="interleaved", zero_stage=3, shard_degree=8, recompute="full"
    )
    found = names_of(x, tokens=65_536) - PLAIN
    assert found == {
        "pp", "virtual stages", "ZeRO-3", "partial sharding", "recompute full", "> 64 GPUs",
        "> 8,192 tokens a sequence", "> 32,768 tokens a sequence",
    }  # fmt: skip


def test_a_family_is_what_an_engine_became_and_what_is_based_on_it() -> None:
    """Megatron-LM's eras are one family, DeepSpeed's fork is another."""
    eras = ("megatron-lm-2021", "megatron-lm-2022", "megatron-core", "megatron-bridge-26.06")
    assert {engine_family(era) for era in eras} == {"megatron-core"}
    assert engine_family("megatron-deepspeed-bigscience") == "megatron-deepspeed"


def resting_on(*names: str, generation: str = "ampere") -> Footing:
    """A footing of one engine."""
    keys = tuple(Key(name=name, used=f"{name} used") for name in names)
    return Footing(engine="a", generation=generation, precision="bf16", keys=keys)


def test_runs_are_counted_by_engine_generation_and_key() -> None:
    """Other generations count as elsewhere, other engines not at all."""
    table = count_runs([
        (resting_on("bf16", "cp"), False),
        (resting_on("bf16"), True),
        (resting_on("bf16", "cp", generation="hopper"), False),
        (replace(resting_on("bf16", "cp"), engine="b"), True),
    ])  # fmt: skip
    found = {
        one.key: (one.runs, one.elsewhere) for one in evidence_for(resting_on("bf16", "cp", "pp"), table)
    }
    memory = {MEMORY: (1, 0), f"{MEMORY} bf16": (1, 0)}
    assert found == {RUNS: (2, 1), "bf16": (2, 1), "cp": (1, 1), "pp": (0, 0), **memory}


def test_what_no_run_has_is_named_as_the_estimate_has_it() -> None:
    """Peak memory is counted for itself."""
    table = count_runs([(resting_on("bf16"), False)])
    evidence = evidence_for(resting_on("bf16", "cp"), table)
    assert [one.used for one in unmeasured(evidence)] == ["cp used"]
    assert unmeasured_memory(evidence) == 1
    assert unmeasured_precision(evidence, "bf16")
