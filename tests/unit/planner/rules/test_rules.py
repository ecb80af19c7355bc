"""Each rule refuses what it should, prints the whole equation, and hints at a change that satisfies it."""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.catalog import model
from costmodel.pipeline.schedules import RECORDS
from costmodel.stack import SoftwareStack, stack, stacks
from costmodel.switches.profile import with_switches
from planner.law import PlanLaw
from planner.plan import Problem
from planner.rules.check import RULES, check, check_memory, check_pins, legal, parse_pins
from tests.unit.topology.pools.test_kinds import pool
from topology.base.errors import InputError
from topology.base.units import GIB
from topology.builders import build, default_cluster

CAL = load_calibration()
LLAMA = model("llama-3.1-70b")
MIXTRAL = model("mixtral-8x7b")
COMPRESSED = model("deepseek-v4-flash")
HYBRID = model("nemotron-h-56b")
JOB = TrainingJob(sequence_length=8192, global_batch_size=1024)
LEGAL = ParallelLayout(tp=8, pp=4, dp=1)


def problem(num_gpus: int = 32, gpu: str = "h100-sxm", **changes: object) -> Problem:
    """The request most rules are judged in: Llama 70B on 32 H100 with Megatron-Core."""
    cluster = default_cluster(gpu, num_gpus)
    parts = {"model": LLAMA, "job": JOB, "stack": stack("megatron-core"), "cluster": cluster} | changes
    return Problem(case=Case(**parts, cal=CAL))  # type: ignore[arg-type]


def broken(layout: ParallelLayout, at: Problem) -> dict[str, str]:
    """Names and messages of the rules a layout breaks."""
    return {violation.rule: violation.message for violation in check(at, layout)}


def lacking(**supports: object) -> SoftwareStack:
    """Megatron-Core that supports less."""
    profile = stack("megatron-core")
    return replace(profile, supports=replace(profile.supports, **supports))


def stack_with(name: str, switches: dict[str, str]) -> SoftwareStack:
    """A profile with switches set."""
    return with_switches(stack(name), switches)


CASES = [
    ("degrees", {"tp": 0}, {}, "tp = 0"),
    ("gpus", {"dp": 2}, {}, "dp·cp·tp·pp = 2·1·8·4 = 64 GPUs, the cluster has 32"),
    ("attention-heads", {"tp": 3}, {}, "num_attention_heads % tp = 64 % 3 = 1, must be 0"),
    (
        "kv-heads",
        {"tp": 16, "pp": 2},
        {"stack": stack_with("megatron-core", {"key_heads": "whole"})},
        "num_key_value_heads % tp = 8 % 16 = 8, must be 0",
    ),
    ("recurrence-heads", {"tp": 16, "pp": 2}, {"model": HYBRID}, "key_heads % tp = 8 % 16 = 8, must be 0"),
    (
        "recurrence-context",
        {"tp": 4, "cp": 2},
        {"model": HYBRID, "stack": stack("torchtitan")},
        "cp = 2: the state of Mamba-2 goes through a sequence in order",
    ),
    (
        "output-groups",
        {"tp": 16, "pp": 2},
        {"model": COMPRESSED},
        "output_groups % tp = 8 % 16 = 8, must be 0",
    ),
    (
        "compression-context",
        {"tp": 4, "cp": 2},
        {"model": COMPRESSED},
        "cp = 2: attention sees an entry for every 4 or 128 tokens before, on all ranks of a sequence",
    ),
    ("feed-forward", {"tp": 5}, {}, "intermediate_size % tp = 28672 % 5 = 2, must be 0"),
    ("feed-forward", {"tp": 5}, {"model": HYBRID}, "intermediate_size % tp = 32768 % 5 = 3, must be 0"),
    ("experts", {"ep": 2}, {}, "ep·expert_tp = 2·1 but llama-3.1-70b has no experts"),
    ("experts", {"ep": 3}, {"model": MIXTRAL}, "num_experts % ep = 8 % 3 = 2, must be 0"),
    (
        "expert-tensor",
        {"tp": 4, "expert_tp": 2},
        {"model": MIXTRAL},
        "expert_tp = 2 at tp = 4: an expert is whole",
    ),
    (
        "partial-sharding",
        {"tp": 4, "dp": 2, "zero_stage": 1, "shard_degree": 1},
        {"stack": stack("megatron-lm-2022")},
        "shard_degree 1 of 2 replicas at ZeRO-1: megatron-lm-2022 shards over a part of them at no ZeRO stage",
    ),
    (
        "shard-experts",
        {"tp": 1, "dp": 8, "ep": 4, "zero_stage": 1, "shard_degree": 2},
        {"model": MIXTRAL},
        "4 copies of the sharded state (dp·cp/shard_degree = 8/2) but 2 replicas of each expert, 2 % 4 = 2",
    ),
    ("expert-width", {"expert_tp": 3}, {"model": MIXTRAL}, "moe_intermediate_size % expert_tp = 14336 % 3"),
    (
        "expert-block",
        {"tp": 4, "ep": 8},
        {"model": MIXTRAL},
        "(dp·cp·tp) % (ep·expert_tp) = (1·1·4) % (8·1) = 4",
    ),
    (
        "layers",
        {"pp": 81, "tp": 1},
        {"num_gpus": 128},
        "pp·virtual_stages = 81·1 = 81 stages, the model has 80",
    ),
    (
        "batch",
        {"microbatch_size": 3},
        {},
        "global_batch_size % (dp·microbatch_size) = 1024 % (1·3) = 1, must be 0",
    ),
    (
        "sequence-split",
        {"cp": 3, "tp": 1},
        {},
        "sequence_length % (cp 3 · 2 (causal balance)) = 8192 % 6 = 2",
    ),
    ("ulysses-heads", {"cp": 2, "pp": 2, "cp_kind": "ulysses"}, {}, "% (tp·cp) = 8 % (8·2) = 8, must be 0"),
    (
        "node-alignment",
        {"tp": 2, "cp": 3, "pp": 1, "axis_order": ("pp", "dp", "tp", "cp")},
        {},
        "a tensor-parallel group spans tp 2·cp 3 = 6 GPUs",
    ),
    (
        "schedule-offered",
        {"schedule": "zb-h1"},
        {},
        "schedule = zb-h1, but megatron-core has only 1f1b, interleaved",
    ),
    (
        "schedule-offered",
        {"pp": 1, "dp": 4, "schedule": "zbv"},
        {"stack": stack("torchtitan")},
        "schedule = zbv puts weight gradients off to fill a pipeline's bubble, and pp = 1 has none",
    ),
    (
        "schedule-offered",
        {"pp": 1, "dp": 4, "schedule": "v-half"},
        {},
        "schedule = v-half, but megatron-core has only 1f1b, interleaved",
    ),
    ("virtual-stages", {"virtual_stages": 2}, {}, "virtual_stages = 2, must be 1 with schedule 1f1b"),
    ("virtual-stages", {"schedule": "interleaved"}, {}, "virtual_stages = 1, must be at least 2"),
    (
        "interleaving-groups",
        {"schedule": "interleaved", "virtual_stages": 2, "pp": 3},
        {},
        "microbatches % pp = 1024 % 3 = 1, must be 0",
    ),
    (
        "pipeline-fill",
        {"schedule": "interleaved", "virtual_stages": 2, "microbatch_size": 512},
        {},
        "= 2 microbatches",
    ),
    (
        "zero-stage-offered",
        {"zero_stage": 3},
        {},
        "zero_stage = 3, but megatron-core has only 0, 1 when pp = 4 > 1",
    ),
    (
        "compressed-gradients",
        {"tp": 4, "pp": 1, "dp": 2, "zero_stage": 1},
        {"job": replace(JOB, gradient_compression="fp16")},
        "zero_stage = 1, must be 0: gradients as fp16 are summed by replicas that share no state",
    ),
    (
        "gradient-buckets",
        {"tp": 4, "pp": 1, "dp": 2, "zero_stage": 2},
        {"job": replace(JOB, bucket_bytes=25e6)},
        "zero_stage = 2, must be 0 or 1: sharded gradients are reduced layer by layer",
    ),
    (
        "workers-apart",
        {"tp": 4, "pp": 1, "dp": 2, "zero_stage": 1},
        {"job": replace(JOB, local_steps="diloco:50")},
        "zero_stage = 1 and 2 replicas: workers run apart (diloco:50) where several share no state",
    ),
    (
        "split-backward-zero",
        {"zero_stage": 2, "schedule": "zb-h1"},
        {"stack": stack("meshplan")},
        "zero_stage = 2, but meshplan has only 0, 1 with schedule zb-h1",
    ),
    (
        "experts-sequence-parallel",
        {},
        {"stack": stack("meshplan"), "model": MIXTRAL},
        "tp = 8 without sequence_parallel",
    ),
    (
        "shard-degree",
        {"shard_degree": 3, "zero_stage": 1},
        {},
        "(dp·cp) % shard_degree = (1·1) % 3 = 1, must be 0",
    ),
    (
        "recompute-offered",
        {"recompute": "selective-op"},
        {},
        "but megatron-core has only none, selective, full",
    ),
    (
        "cp-kind-offered",
        {"cp": 2, "pp": 2, "cp_kind": "allgather"},
        {"stack": lacking(cp_kinds=("ring",))},
        "cp_kind = allgather",
    ),
    ("sequence-parallel", {"tp": 1, "sequence_parallel": True}, {}, "over tp = 1 ranks, needs tp ≥ 2"),
    (
        "vocabulary",
        {},
        {"model": replace(LLAMA, vocab_size=100)},
        "padding vocab_size 100 to a multiple of tp 8 adds 4 rows, more than 1%",
    ),
    (
        "even-layers",
        {"pp": 3},
        {"stack": lacking(uneven_stages=False)},
        "num_layers % (pp·virtual_stages) = 80 % (3·1) = 2, must be 0",
    ),
    (
        "equal-chunks",
        {"schedule": "interleaved", "virtual_stages": 18},
        {},
        "pp·virtual_stages·⌈layers/chunk⌉ − layers = 4·18·2 − 80 = 64 layers short",
    ),
    (
        "axis-order-offered",
        {"tp": 4, "dp": 2, "axis_order": ("tp", "pp", "dp", "cp")},
        {},
        "axis_order = tp-pp-dp-cp, but megatron-core has only",
    ),
    ("tp-offered", {}, {"stack": stack("pytorch-fsdp1")}, "tp = 8, but pytorch-fsdp1 has only 1"),
    (
        "cp-offered",
        {"cp": 2, "pp": 2},
        {"stack": stack("pytorch-fsdp1")},
        "cp = 2, but pytorch-fsdp1 has only 1",
    ),
    ("pp-offered", {}, {"stack": stack("pytorch-fsdp1")}, "pp = 4, but pytorch-fsdp1 has only 1"),
    (
        "replication-alone",
        {"tp": 4, "dp": 2},
        {"stack": stack("torchtitan")},
        "zero_stage = 0 keeps 2 whole copies (dp·cp = 2·1), which torchtitan combines with no other axis",
    ),
    (
        "ep-offered",
        {"ep": 8},
        {"model": MIXTRAL, "stack": lacking(expert_parallel=False)},
        "ep = 8, but megatron-core has only 1",
    ),
    (
        "precision-hardware",
        {},
        {"gpu": "a100-sxm-80gb", "job": replace(JOB, precision="fp8")},
        "a100-sxm-80gb (ampere) multiplies",
    ),
    (
        "precision-hardware",
        {},
        {"gpu": "mi355x", "job": replace(JOB, precision="nvfp4")},
        "precision = nvfp4, but mi355x (cdna4)",
    ),
    (
        "precision-hardware",
        {},
        {"gpu": "v100-sxm-32gb"},
        "precision = bf16, but v100-sxm-32gb (volta) multiplies",
    ),
    (
        "one-maker",
        {},
        {"cluster": build(pool(("dgx-h100", 2), ("hgx-mi300x", 2)))},
        "GPUs of nvidia and amd in one job",
    ),
    (
        "further-tokens",
        {},
        {"job": replace(JOB, mtp_layers=1), "stack": stack("torchtitan")},
        "job.mtp_layers = 1 modules that predict further tokens, and torchtitan trains none",
    ),
    (
        "sequence-limit",
        {},
        {"model": model("gpt-3-13b")},
        "sequence_length 8192 is longer than the 2048 positions",
    ),
]


def test_every_rule_has_a_case() -> None:
    """No rule goes without the words it is refused with."""
    assert {rule.name for rule in RULES} == {case[0] for case in CASES}


@pytest.mark.parametrize(("rule", "changes", "request_changes", "message"), CASES)
def test_a_rule_prints_the_whole_equation(
    rule: str, changes: dict[str, object], request_changes: dict[str, object], message: str
) -> None:
    """One change to a legal layout breaks the rule, whose message holds the user's numbers."""
    at = problem(**request_changes)  # type: ignore[arg-type]
    found = broken(replace(LEGAL, **changes), at)
    assert message in found[rule]


def test_the_legal_layout_breaks_nothing() -> None:
    """The layout every case departs from is legal."""
    assert broken(LEGAL, problem()) == {}


def test_every_violation_says_what_to_change() -> None:
    """No violation comes without a hint."""
    for _, changes, request_changes, _ in CASES:
        at = problem(**request_changes)  # type: ignore[arg-type]
        for violation in check(
            Problem(
                case=Case(
                    model=at.model, cluster=at.cluster, job=at.job, stack=at.stack, cal=load_calibration()
                )
            ),
            replace(LEGAL, **changes),
        ):
            assert violation.hint


def test_masks_and_explanations_come_from_one_definition() -> None:
    """A table is legal exactly in the rows that `check` finds nothing wrong with."""
    layouts = [
        replace(LEGAL, **changes) for _, changes, request, _ in CASES if not request and changes != {"tp": 0}
    ]
    at = problem()
    keep, rejected = legal(at, LayoutTable.from_rows([*layouts, LEGAL]))
    assert np.array_equal(keep, [broken(layout, at) == {} for layout in [*layouts, LEGAL]])
    assert sum(rejected.values()) == len(layouts)
    assert set(rejected) <= {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_names_every_field_it_reads(rule: PlanLaw) -> None:
    """Fields that a rule does not name cannot change its verdict: pins are judged on what they decide."""
    at, r = problem(num_gpus=64, model=replace(MIXTRAL, num_layers=7)), Random(1)
    names = [field.name for field in fields(ParallelLayout)]
    for _ in range(300):
        one, other = random_layout(r), random_layout(r)
        same = replace(one, **{name: getattr(other, name) for name in names if name not in rule.reads})
        verdicts = np.broadcast_to(rule.broken(at, LayoutTable.from_rows([one, same])), 2)
        assert verdicts[0] == verdicts[1]


def random_layout(r: Random) -> ParallelLayout:
    """Any values of all fields, mostly illegal."""
    degree = (1, 1, 2, 3, 4, 8)
    return ParallelLayout(
        **{name: r.choice(degree) for name in ("tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual_stages")},
        microbatch_size=r.choice(degree),
        schedule=r.choice(SCHEDULES),
        zero_stage=r.choice((0, 1, 2, 3)),
        shard_degree=r.choice(degree),
        recompute=r.choice(RECOMPUTES),
        sequence_parallel=r.choice((False, True)),
        cp_kind=r.choice(CP_KINDS),
        axis_order=r.choice(AXIS_ORDERS),
    )


@pytest.mark.parametrize("name", [name for name in SCHEDULES if RECORDS[name].splits_backward])
def test_a_schedule_of_a_pipeline_does_not_escape_where_there_is_none(name: str) -> None:
    """Whatever stack: one rank has no bubble, and gradients put off for it would be reduced late for nothing."""
    for profile in stacks().values():
        alone = replace(LEGAL, pp=1, dp=4, schedule=name)
        assert "schedule-offered" in broken(alone, problem(stack=profile)), profile.name
        assert "schedule-offered" not in broken(replace(alone, schedule="1f1b"), problem(stack=profile))


def test_pins_that_contradict_each_other_are_refused_with_the_equation() -> None:
    """Tp 8 and pp 8 need 64 GPUs whatever the other degrees are."""
    (violation,) = check_pins(problem(), parse_pins({"layout.tp": "8", "pp": 8}))
    assert "dp·cp·tp·pp = 1·1·8·8 = 64 GPUs, the cluster has 32" in violation.message


def test_pins_are_judged_only_on_what_they_decide() -> None:
    """Two virtual stages are impossible without a pipeline, but the pipeline is not pinned yet."""
    assert check_pins(problem(), {"virtual_stages": 2}) == ()


@pytest.mark.parametrize(
    ("pins", "cause"),
    [
        ({"tpp": 8}, "the fields are tp, pp, dp"),
        ({"tp": "eight"}, "a whole number of at least 1"),
        ({"tp": 2.5}, "a whole number of at least 1"),
        ({"schedule": "fifo"}, "gpipe, 1f1b, interleaved"),
        ({"sequence_parallel": "maybe"}, "true, yes, on"),
        ({"axis_order": "tp-pp"}, "pp-dp-cp-tp"),
    ],
)
def test_a_pin_nobody_can_mean_is_refused(pins: dict[str, object], cause: str) -> None:
    """An unknown field or an impossible value is an input error that lists what is possible."""
    with pytest.raises(InputError) as refused:
        parse_pins(pins)
    assert cause in refused.value.cause


def test_memory_is_explained_part_by_part() -> None:
    """The fullest stage is named with the parts that fill it; a fitting one is no violation."""
    small = MemoryBreakdown(
        weights_bytes=10 * GIB,
        gradients_bytes=0,
        optimizer_bytes=0,
        activations_bytes=5 * GIB,
        buffers_bytes=0,
        overhead_bytes=GIB,
    )
    large = replace(small, activations_bytes=30 * GIB)
    violation = check_memory((small, large), 40 * GIB)
    assert violation is not None
    assert violation.message.startswith(
        "stage 1: weights 10 GiB + activations 30 GiB + overhead 1 GiB = 41 GiB > 40 GiB, what a GPU has"
    )
    assert check_memory((small,), 40 * GIB) is None


def test_memory_left_free_is_told_from_memory_that_there_is() -> None:
    """20 GiB would fit a GPU of 20 GiB, but not with a tenth of it left free."""
    need = MemoryBreakdown(
        weights_bytes=20 * GIB,
        gradients_bytes=0,
        optimizer_bytes=0,
        activations_bytes=0,
        buffers_bytes=0,
        overhead_bytes=0,
    )
    assert check_memory((need,), 20 * GIB) is None
    violation = check_memory((need,), 20 * GIB, headroom=0.1)
    assert violation is not None
    assert violation.message.endswith("= 20 GiB > 18 GiB, the 20 GiB of a GPU less 10.0 % headroom")
    assert (violation.have, violation.need) == (20 * GIB, 18 * GIB)
