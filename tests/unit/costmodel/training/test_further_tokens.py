"""What a module that predicts a further token costs a step, a stage and a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.campaign.checkpoint import checkpoint_bytes
from costmodel.case import Case, Workload
from costmodel.estimate import PART_NAMES
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import MemoryPieces, memory_pieces
from costmodel.models.catalog import model
from costmodel.models.kinds import mtp_kind
from costmodel.models.parameters import mtp_parameters
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.op import ShardShape
from costmodel.runs.mtp import mtp_layers_of
from costmodel.stack import stack
from costmodel.training.constants import default_constants
from costmodel.training.estimate import estimate
from costmodel.training.priced import price_layouts
from costmodel.training.score import evaluate
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL, CORE, CLUSTER = load_calibration(), stack("megatron-core"), default_cluster("h100-sxm", 16)
SMALL = replace(model("deepseek-v3"), num_layers=7, num_dense_layers=1, num_experts=32)
DENSE = model("llama-3.1-8b")
JOB = TrainingJob(sequence_length=4096, global_batch_size=64)
LAYOUTS = [
    ParallelLayout(dp=16, ep=8, zero_stage=1), ParallelLayout(tp=2, dp=8, ep=4, sequence_parallel=True),
    ParallelLayout(pp=4, dp=4, ep=2, zero_stage=1, recompute="full"),
    ParallelLayout(pp=2, virtual_stages=2, schedule="interleaved", dp=8, ep=8, recompute="selective"),
    ParallelLayout(tp=2, cp=2, dp=4, zero_stage=3, sequence_parallel=True),
    ParallelLayout(pp=2, virtual_stages=2, schedule="dualpipev", dp=8, ep=8),
    ParallelLayout(pp=2, schedule="gpipe", dp=8),
]  # fmt: skip
PLAIN = LAYOUTS[0]


def trained(modules: int) -> TrainingJob:
    """The job with so many modules."""
    return replace(JOB, mtp_layers=modules)


def pieces_of(modules: int, layout: ParallelLayout, spec: ModelSpec = SMALL) -> MemoryPieces:
    """Memory of a rank, by piece."""
    return memory_pieces(Workload(model=spec, job=trained(modules), stack=CORE), layout)


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "llama-3.1-8b", "glm-4.5", "nemotron-3-super", "deepseek-v4-flash"]
)
def test_operations_hold_the_parameters_of_a_module(name: str) -> None:
    """The per-layer table and the count of parameters are of one module."""
    spec = model(name)
    module = ops_of_parts(
        Workload(model=spec, job=trained(1), stack=CORE), ShardShape(sequence_length=4096.0)
    )[-3]
    assert sum(float(op.parameters) for op in module) == mtp_parameters(spec)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_step_sum_to_it_and_every_path_gives_one_number(layout: ParallelLayout) -> None:
    """Score, estimate and its breakdown agree with one module and with two."""
    for modules in (1, 2):
        profile = stack("ideal")
        table = LayoutTable.from_rows([layout])
        found = estimate(
            Case(model=SMALL, cluster=CLUSTER, job=trained(modules), stack=profile, cal=CAL), layout
        )
        scored = evaluate(
            Case(model=SMALL, cluster=CLUSTER, job=trained(modules), stack=profile, cal=CAL),
            table,
            recomputed_share=np.array([float(layout.recompute == "full")]),
        )
        assert sum(getattr(found.time, name) for name in PART_NAMES) == pytest.approx(
            found.step_time_s, rel=1e-9
        )
        assert float(scored.step_time_s[0]) == pytest.approx(found.step_time_s, rel=1e-9)
        assert float(scored.peak_memory_bytes[0]) == pytest.approx(found.peak_memory_bytes, rel=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_a_module_is_a_layer_and_a_head_more_on_the_last_stage(layout: ParallelLayout) -> None:
    """A microbatch there takes a layer, the loss again, and no less than the products of two hidden states."""
    table = LayoutTable.from_rows([layout])
    without, one, two = (
        price_layouts(
            Case(model=SMALL, cluster=CLUSTER, job=trained(n), stack=CORE, cal=CAL),
            table,
            constants=default_constants(),
        ).costs
        for n in (0, 1, 2)
    )
    layer, head = float(without.layer_s[-1, 0]), float(without.last_s[0])
    added = float(one.last_s[0]) - head
    assert layer + head < added < 1.5 * (layer + head)
    assert float(two.last_s[0]) == pytest.approx(head + 2 * added)
    assert np.array_equal(one.layer_s, without.layer_s)
    assert np.array_equal(one.first_s, without.first_s)


def test_every_rank_but_the_last_is_as_without() -> None:
    """Costs of layers and of the first stage do not change, in memory neither."""
    layout = LAYOUTS[2]
    without, trains = pieces_of(0, layout), pieces_of(1, layout)
    for name in ("embedding", "working_bytes", "recompute_working_bytes", "buffer_bytes", "runtime_bytes"):
        assert repr(getattr(without, name)) == repr(getattr(trains, name))
    assert repr(without.layers) == repr(trains.layers)


@pytest.mark.parametrize(("layout", "copies"), [(PLAIN, 0), (LAYOUTS[2], 1), (LAYOUTS[5], 0)])
def test_the_last_stage_holds_the_module_and_an_embedding_of_its_own(
    layout: ParallelLayout, copies: int
) -> None:
    """Weights of a module, and of the embedding unless one rank has both ends of the model."""
    alone = replace(layout, ep=1)
    profile = replace(CORE, supports=stack("ideal").supports)
    without, trains = (
        memory_pieces(Workload(model=SMALL, job=trained(n), stack=profile), alone) for n in (0, 1)
    )
    added = trains.head.state.weights_bytes - without.head.state.weights_bytes
    held = mtp_parameters(SMALL) + copies * SMALL.vocab_size * SMALL.hidden_size
    assert float(np.ravel(added)[0]) == pytest.approx(CORE.memory.weight_bytes * held)


def test_a_tied_embedding_is_there_already() -> None:
    """A model whose head is its embedding holds it on both stages anyway."""
    tied = replace(SMALL, tie_word_embeddings=True)
    without, trains = (pieces_of(n, replace(LAYOUTS[2], ep=1), tied) for n in (0, 1))
    added = trains.head.state.weights_bytes - without.head.state.weights_bytes
    assert float(np.ravel(added)[0]) == pytest.approx(CORE.memory.weight_bytes * mtp_parameters(tied))


def test_logits_of_the_module_wait_while_the_loss_of_the_head_is_made() -> None:
    """Its softmax in fp32 stays beside what a layer keeps; GPipe holds those of every microbatch."""
    layout = ParallelLayout(pp=2, dp=8)
    table = LayoutTable.from_rows([layout])
    kept = 4 * JOB.sequence_length * DENSE.vocab_size
    one = _added(layout)
    layer = float(np.ravel(pieces_of(0, layout, DENSE).layers[0].saved_bytes)[0])
    assert kept + layer < one < kept + 1.6 * layer
    microbatches = JOB.global_batch_size // int(table.dp[0])
    assert microbatches * (kept + layer) < _added(replace(layout, schedule="gpipe")) <= microbatches * one


def _added(layout: ParallelLayout) -> float:
    """What the activations of a dense model's last stage grow by."""
    without, trains = (float(np.ravel(pieces_of(n, layout, DENSE).head.activation_bytes)[0]) for n in (0, 1))
    return trains - without


def test_checkpoints_hold_the_modules() -> None:
    """Fourteen bytes a parameter of each."""
    assert checkpoint_bytes(Workload(model=SMALL, job=trained(2), stack=CORE)) - checkpoint_bytes(
        Workload(model=SMALL, job=JOB, stack=CORE)
    ) == 14 * 2 * mtp_parameters(SMALL)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.5", "qwen3-next", "mixtral-8x7b", "llama-3.1-8b"])
def test_a_module_has_the_kind_of_the_last_layer(name: str) -> None:
    """As Megatron takes the last layer's specification."""
    kinds = {"qwen3-next": ("full", "moe")}
    last = layer_runs(model(name))[-1].kind
    attention, mlp = kinds.get(name, (last.attention, last.mlp))
    assert (mtp_kind(model(name)).attention, mtp_kind(model(name)).mlp) == (attention, mlp)


def test_a_module_of_a_hybrid_has_attention_and_experts() -> None:
    """``*E`` of Nemotron 3, whose layers are one block each; DeepSeek-V4's sees a window alone."""
    nemotron, v4 = mtp_kind(model("nemotron-3-super")), mtp_kind(model("deepseek-v4-flash"))
    assert (nemotron.attention, nemotron.mlp) == ("full", "moe")
    assert (v4.attention, v4.mlp) == ("window", "moe")


@pytest.mark.parametrize("modules", [-1, 65])
def test_numbers_that_nobody_trains_are_refused(modules: int) -> None:
    """In three lines, as any other wrong size."""
    with pytest.raises(InputError, match="mtp_layers"):
        trained(modules)


@pytest.mark.parametrize(
    ("row", "modules"),
    [
        (
            {
                "framework": "Megatron-Bridge 25.11",
                "model": "DeepSeekV3",
                "note": "x; DeepSeekV3 (w/o MTP) [y]",
            },
            0,
        ),
        ({"framework": "Megatron-Bridge 25.11", "model": "DeepSeekV3", "note": "DeepSeekV3 (w/ MTP)"}, 1),
        ({"framework": "Megatron-Bridge 26.02", "model": "DeepSeekV3", "note": "dropless"}, 1),
        ({"framework": "Megatron-Bridge 26.02", "model": "Kimi-K2", "note": "dropless"}, 0),
        ({"framework": "NeMo/Megatron-Core", "model": "DeepSeek-V3", "note": ""}, 0),
        ({"framework": "NeMo/Megatron-Core", "model": "DeepSeek-V3", "mtp_layers": "2"}, 2),
    ],
)
def test_rows_of_measured_runs_say_it_or_their_recipe_does(row: dict[str, str], modules: int) -> None:
    """The column first, then a word of the note, then what recipes of that engine train."""
    assert mtp_layers_of(row) == modules
