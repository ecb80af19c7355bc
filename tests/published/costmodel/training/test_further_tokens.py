"""Modules that predict further tokens against what is published of them: parameters, operations, a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.parameters import mtp_parameters, parameter_count
from costmodel.models.spec import ModelSpec
from costmodel.ops.layer import model_flop_per_step
from costmodel.pipeline.even_split import even_split
from costmodel.stack import stack
from costmodel.training.score import evaluate
from topology.builders import default_cluster

V3 = model("deepseek-v3")
CHECKPOINT = {"BF16": 3_918_786_560, "F8_E4M3": 680_571_043_840, "F32": 41_555_600}
"""Values by type in the safetensors of deepseek-ai/DeepSeek-V3, as its repository states them."""
ROUTER_BIASES = 59 * 256
"""Of its F32 values; the others are scales of eight-bit blocks."""


def test_the_module_is_what_the_checkpoint_of_deepseek_v3_has_beyond_its_main_model() -> None:
    """685 B published are 671 B, a module, and once more the embedding and the head, which it shares."""
    parameters = CHECKPOINT["BF16"] + CHECKPOINT["F8_E4M3"] + ROUTER_BIASES
    ends = 2 * V3.vocab_size * V3.hidden_size
    assert parameters == parameter_count(V3) + mtp_parameters(V3) + ends


def flop_by_hand(spec: ModelSpec, modules: int, tokens: int, router: bool) -> float:
    """Megatron-LM's ``num_floating_point_operations`` of a token, latent attention and experts; causal half.

    Written anew from its terms: layers and modules alike, two H × H a module, the head once more for each. It
    leaves the router out.
    """
    H, a = spec.hidden_size, spec.num_attention_heads
    query = spec.q_lora_rank * (H + a * (spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    values = H * (spec.kv_lora_rank + spec.qk_rope_head_dim)
    values += spec.kv_lora_rank * a * (spec.qk_nope_head_dim + spec.v_head_dim)
    core = a * (spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim) * tokens / 2
    attention = query + values + core + a * spec.v_head_dim * H
    expert = 3 * H * spec.moe_intermediate_size
    routed = (
        spec.num_experts_per_token * expert + 3 * H * spec.shared_expert_size + router * H * spec.num_experts
    )
    dense = 3 * H * spec.intermediate_size
    layers = spec.num_layers + modules
    blocks = spec.num_dense_layers * dense + (layers - spec.num_dense_layers) * routed
    return 6 * (layers * attention + blocks + modules * 2 * H**2 + (1 + modules) * H * spec.vocab_size)


@pytest.mark.parametrize("modules", [0, 1, 2])
def test_operations_are_those_of_megatrons_own_count(modules: int) -> None:
    """A module costs a layer, two H × H and the head again, forward and backward."""
    job = TrainingJob(sequence_length=4096, global_batch_size=1, mtp_layers=modules)
    by_hand = 4096 * flop_by_hand(V3, modules, 4096, router=True)
    assert model_flop_per_step(V3, job) == pytest.approx(by_hand, rel=1e-9)


RATES = [
    ("25.11", "gb200", 3139, 782, 0), ("25.11", "gb200", 4018, 1003, 0), ("25.11", "gb300", 4357, 1088, 0),
    ("25.11", "b200", 2139, 557, 1), ("26.02", "gb300", 4612, 1199, 1), ("26.02", "gb200", 3955, 1028, 1),
    ("26.02", "b300", 2983, 776, 1), ("26.02", "b200", 2689, 699, 1), ("25.09", "gb200", 3454, 899, 1),
    ("25.09", "gb200", 2835, 738, 1), ("25.09", "b200", 2265, 589, 1), ("25.09", "b200", 2159, 562, 1),
    ("25.09", "h100", 1297, 338, 1), ("25.05", "h100", 669.4, 174.02, 1), ("25.05", "h100", 629.7, 163.7, 1),
]  # fmt: skip
"""Megatron-Bridge, docs/performance-summary-archive.md: tokens and model TFLOP a second and GPU, DeepSeek-V3;
25.11 says "w/o MTP" and "w/ MTP", the other containers nothing: the operations of a token tell. 25.05 is
NeMo on 512 and 1,024 GPUs (dgxc-benchmarking v25.05.05, deepseek_v3_pretraining/README.md)."""


@pytest.mark.parametrize(("container", "gpu", "tokens_per_s", "tflop_per_s", "modules"), RATES)
def test_published_rates_tell_which_runs_trained_a_module(
    container: str, gpu: str, tokens_per_s: float, tflop_per_s: float, modules: int
) -> None:
    """Both are rounded, of not quite the same steps; a module adds 4 %, so one count fits, the other does not."""
    published = 1e12 * tflop_per_s / tokens_per_s
    rounding = 0.5 / tflop_per_s + 0.5 / tokens_per_s
    found = [flop_by_hand(V3, n, 4096, router=False) for n in (0, 1)]
    assert published == pytest.approx(found[modules], rel=rounding + 3e-3), (container, gpu)
    assert published != pytest.approx(found[1 - modules], rel=0.03)


def test_deepseek_v3_takes_as_long_as_published() -> None:
    """180,000 GPU hours for a trillion tokens on 2,048 H800, 15,360 sequences of 4,096 a step: 20.1 s."""
    layout = ParallelLayout(
        pp=16, virtual_stages=2, schedule="dualpipev", dp=128, ep=64, zero_stage=1, recompute="selective"
    )
    job = TrainingJob(sequence_length=4096, global_batch_size=15_360, precision="fp8")
    table, cluster = LayoutTable.from_rows([layout]), default_cluster("h800", 2048)
    without, trained = (
        float(
            evaluate(
                Case(
                    model=V3, cluster=cluster, job=replace(job, mtp_layers=n), stack=stack("hai-llm"), cal=CAL
                ),
                table,
            ).step_time_s[0]
        )
        for n in (0, 1)
    )
    assert abs(trained / 20.1 - 1) < abs(without / 20.1 - 1)
    assert trained == pytest.approx(20.1, rel=0.05)


CAL = load_calibration()
LAYOUTS = [
    (16, 1, (4,) * 15 + (1,)), (8, 1, (8,) * 7 + (5,)), (4, 4, (16, 16, 16, 13)), (8, 2, (8,) * 7 + (5,)),
    (8, 4, (7,) + (8,) * 6 + (6,)),
]  # fmt: skip
"""Megatron-Bridge 0.6.2, set_deepseek_v3_pipeline_model_parallel_layout; the last Et|(tt|)*30mL of its recipes."""


@pytest.mark.parametrize(("pp", "chunks", "layers"), LAYOUTS)
def test_an_even_split_beside_a_module_is_that_of_published_recipes(
    pp: int, chunks: int, layers: tuple[int, ...]
) -> None:
    """The last chunk, which has the module and two losses, is the short one."""
    schedule = "interleaved" if chunks > 1 else "1f1b"
    layout = ParallelLayout(pp=pp, virtual_stages=chunks, schedule=schedule)  # type: ignore[arg-type]
    assert tuple(sum(row) for row in even_split((61,), layout, modules=1).layers_of_stage) == layers
