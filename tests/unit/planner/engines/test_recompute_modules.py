"""Modules that a layer recomputes: bytes they free, seconds they take, and Megatron's words for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import ShardShape
from costmodel.stack import SoftwareStack, stack
from costmodel.training.score import evaluate
from planner.engines.contract import read, words_of_line
from planner.engines.contracts import CONTRACTS
from planner.launch.targets import export_plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import NoFeasiblePlanError
from topology.builders import default_cluster

JOB = TrainingJob(sequence_length=4096, global_batch_size=64)
SELECTIVE = ParallelLayout(dp=16, ep=16, zero_stage=1, recompute="selective")
T, V3 = JOB.sequence_length, model("deepseek-v3")
HEADS, ROPE = V3.num_attention_heads, V3.qk_nope_head_dim + V3.qk_rope_head_dim
FREED = {
    "mla_up_proj": 2 * T * (HEADS * (2 * ROPE + V3.v_head_dim) + V3.q_lora_rank + V3.kv_lora_rank),
    "layernorm": 2 * 2 * T * V3.hidden_size,
    "moe_act": 2 * T * V3.num_experts_per_token * V3.moe_intermediate_size,
    "core_attn": 4 * T * HEADS,
}
"""Bytes of a layer of experts: queries, keys and values with the inputs of their projections; what both norms
give; what the activation gives; a log-sum-exp of each token and head."""


def profile(*modules: str) -> SoftwareStack:
    """Megatron-Bridge that recomputes these."""
    shipped = stack("megatron-bridge")
    return replace(shipped, timing=replace(shipped.timing, recomputed_modules=modules))


def kept(one: SoftwareStack, layout: ParallelLayout) -> float:
    """Bytes of a layer of experts between forward and backward."""
    return float(
        np.ravel(memory_pieces(Workload(model=V3, job=JOB, stack=one), layout).layers[-1].saved_bytes)[0]
    )


def step_s(one: SoftwareStack, layout: ParallelLayout) -> float:
    """Seconds of a step."""
    cluster, table = default_cluster("h200-sxm", 16), LayoutTable.from_rows([layout])
    return float(
        evaluate(
            Case(model=V3, cluster=cluster, job=JOB, stack=one, cal=load_calibration()), table
        ).step_time_s[0]
    )


@pytest.mark.parametrize("module", FREED)
def test_a_module_frees_what_it_makes_again(module: str) -> None:
    """Exactly the tensors that its recomputation gives back, and it takes longer for it."""
    one = profile(module)
    freed = kept(one, replace(SELECTIVE, recompute="none")) - kept(one, SELECTIVE)
    assert freed == FREED[module]
    assert step_s(one, SELECTIVE) > step_s(one, replace(SELECTIVE, recompute="none"))


ROUTED = T * V3.num_experts_per_token
BLOCKS = {
    "moe": 4 * T * V3.num_experts  # scores of the router in fp32
    + 2 * ROUTED * (V3.hidden_size + 3 * V3.moe_intermediate_size)  # inputs of both products, gate and up
    + 2 * T * 3 * V3.shared_expert_size,
    "shared_experts": 2 * T * 3 * V3.shared_expert_size,
}
"""Bytes that a layer of experts frees where a block keeps its input alone, which is also the router's."""
FLOP_OF_BLOCK = {
    "moe": 2 * T * V3.hidden_size * V3.num_experts
    + 6 * V3.hidden_size * (ROUTED * V3.moe_intermediate_size + T * V3.shared_expert_size),
    "shared_experts": 6 * T * V3.hidden_size * V3.shared_expert_size,
}


def flop_again(one: SoftwareStack, spec: ModelSpec) -> float:
    """FLOPs of the last layer that run again, of one sequence."""
    ops = layer_ops(
        Workload(model=spec, job=JOB, stack=one),
        layer_runs(spec)[-1].kind,
        ShardShape(sequence_length=float(T)),
    )
    return float(sum(op.flop for op in ops if op.repeated))


@pytest.mark.parametrize("module", BLOCKS)
def test_a_block_of_experts_frees_all_but_its_input(module: str) -> None:
    """Counted by hand, bytes and the FLOPs of what runs again."""
    one = profile(module)
    assert kept(one, replace(SELECTIVE, recompute="none")) - kept(one, SELECTIVE) == BLOCKS[module]
    assert flop_again(one, V3) == FLOP_OF_BLOCK[module]


def test_a_dense_block_frees_all_but_the_input_of_its_norm() -> None:
    """Llama: the input of each product, gate and up, counted by hand; the norm is fused and runs again."""
    spec, one = model("llama-3.1-8b"), profile("mlp")
    layout = ParallelLayout(dp=8, recompute="selective")
    none, again = (
        memory_pieces(Workload(model=spec, job=JOB, stack=one), replace(layout, recompute=name))
        .layers[0]
        .saved_bytes
        for name in ("none", "selective")
    )  # type: ignore[arg-type]
    freed = 2 * T * (spec.hidden_size + 3 * spec.intermediate_size)
    assert float(np.ravel(none - again)[0]) == freed
    assert flop_again(one, spec) == 6 * T * spec.hidden_size * spec.intermediate_size


@pytest.mark.parametrize(
    "stack_name", ["megatron-core", "megatron-bridge", "torchtitan", "megatron-core-noov"]
)
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-8b", ParallelLayout(tp=2, dp=8, zero_stage=1)),
        ("llama-3.1-8b", ParallelLayout(tp=4, pp=2, dp=2, sequence_parallel=True)),
        ("deepseek-v3", ParallelLayout(tp=2, dp=8, ep=16, zero_stage=1, sequence_parallel=True)),
        ("deepseek-v3", ParallelLayout(pp=2, dp=8, ep=8)),
        ("mixtral-8x7b", ParallelLayout(dp=16, ep=8, microbatch_size=2)),
    ],
)
def test_blocks_are_between_nothing_and_all(stack_name: str, name: str, layout: ParallelLayout) -> None:
    """A block that runs again takes more time and less memory than none, less and more than all of a layer."""
    shipped = stack(stack_name)
    timing = replace(shipped.timing, recomputed_modules=("mlp", "moe"))
    one, cluster = replace(shipped, timing=timing), default_cluster("h200-sxm", 16)
    rows = LayoutTable.from_rows(
        [replace(layout, recompute=policy) for policy in ("none", "selective", "full")]  # type: ignore[arg-type]
    )
    found = evaluate(
        Case(model=model(name), cluster=cluster, job=JOB, stack=one, cal=load_calibration()), rows
    )
    none, again, whole = found.step_time_s
    assert none < again < whole
    memory = found.peak_memory_bytes
    assert memory[0] >= memory[1] >= memory[2]


def test_modules_add_up() -> None:
    """None frees what another does, and none takes time that another does."""
    plain = replace(SELECTIVE, recompute="none")
    every = profile(*FREED)
    assert kept(every, plain) - kept(every, SELECTIVE) == sum(FREED.values())
    base = step_s(every, plain)
    more = [step_s(profile(module), SELECTIVE) - base for module in FREED]
    assert step_s(every, SELECTIVE) - base == pytest.approx(sum(more), rel=0.02)  # hosts hide some of each


def test_what_a_model_has_not_frees_nothing() -> None:
    """A dense model without latent attention has its norms inside the products after them."""
    spec, one = model("llama-3.1-8b"), profile("mla_up_proj", "layernorm", "moe_act")
    layout = ParallelLayout(dp=8, recompute="selective")
    pieces = [
        memory_pieces(Workload(model=spec, job=JOB, stack=one), replace(layout, recompute=name))
        for name in ("none", "selective")
    ]  # type: ignore[arg-type]
    assert pieces[0].layers[0].saved_bytes == pieces[1].layers[0].saved_bytes


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge"])
def test_an_export_is_the_plan(engine: str) -> None:
    """Only modules of the model are written, as Megatron-LM stops at others."""
    plan = priced(
        replace(SELECTIVE, dp=8, ep=8), "qwen3-30b-a3b", stack="megatron-bridge-modules", gpu="b200-sxm"
    )
    text = export_plan(plan, engine).text
    assert "layernorm" in text
    assert "moe_act" in text
    assert "mla_up_proj" not in text


@pytest.mark.parametrize(("name", "precision"), [("llama-3.1-8b", "bf16"), ("qwen3-30b-a3b", "fp8")])
def test_what_megatron_cannot_repeat_is_refused(name: str, precision: str) -> None:
    """Modules that the model lacks, and those that delayed scaling does not allow."""
    layout = ParallelLayout(dp=8, zero_stage=1, recompute="none")
    plan = priced(layout, name, stack="megatron-bridge-modules", gpu="b200-sxm", precision=precision)
    plan = replace(plan, layout=replace(plan.layout, recompute="selective"))
    with pytest.raises(NoFeasiblePlanError, match="megatron-recompute-modules"):
        export_plan(plan, "megatron")


@pytest.mark.parametrize(
    ("line", "repeated"),
    [
        ("--recompute-granularity selective", ("core_attn",)),
        ("--recompute-activations", ("core_attn",)),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm mlp",
            ("moe_act", "layernorm", "mlp"),
        ),
        ("--recompute-granularity selective --recompute-modules moe", ("moe",)),
        ("--recompute-granularity selective --recompute-modules gdn_norm_out", ()),
    ],
)
def test_modules_are_read(line: str, repeated: tuple[str, ...]) -> None:
    """Those that are priced; the others stand in the recipe."""
    contract = CONTRACTS["megatron"]
    found = read(contract, words_of_line(contract, line.split())).fields
    assert (found["layout.recompute"], found["stack.recomputed_modules"]) == ("selective", repeated)
    assert set(repeated) <= set(found["recipe.recompute_modules"])
