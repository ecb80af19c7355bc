"""Compressed attention and residual streams agree with counts by hand, and with what transformers multiplies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.memory.activations import saved_bytes
from costmodel.models.catalog import model
from costmodel.models.parameters import layer_parameters, parameter_count
from costmodel.models.spec import LayerKind, ModelSpec, layer_runs
from costmodel.ops.layer import ShardShape, embedding_ops, forward_flop, head_ops, layer_ops
from costmodel.ops.mixers.compressed_attention import seen_pairs
from costmodel.ops.op import LINEAR, Op
from costmodel.stack import stack
from topology.base.errors import InputError

S = 8192.0
JOB = TrainingJob(sequence_length=8192, global_batch_size=8)
FLASH = model("deepseek-v4-flash")
KINDS = {run.kind.attention: run.kind for run in layer_runs(FLASH)}
STREAMS, H, HEADS, HEAD, RANK, GROUPS, OUT = 4, 4096, 64, 512, 1024, 8, 1024


def ops_of(
    kind: LayerKind, spec: ModelSpec = FLASH, name: str = "megatron-core", **degrees: Any
) -> tuple[Op, ...]:
    """Operations of one layer."""
    return layer_ops(
        Workload(model=spec, job=JOB, stack=stack(name)), kind, ShardShape(sequence_length=S, **degrees)
    )


@pytest.mark.parametrize("reach", KINDS)
def test_operations_hold_the_parameters_of_the_layer(reach: str) -> None:
    """Whole on one rank; over four, all but what every rank holds whole is shared out."""
    kind = KINDS[reach]
    whole = sum(op.parameters for op in ops_of(kind))
    assert whole == layer_parameters(FLASH, kind)
    mixer = replace(kind, mlp="none")
    one, four = (sum(op.parameters for op in ops_of(mixer, tp=tp)) for tp in (1, 4))
    split = HEADS * HEAD * (RANK + OUT) + GROUPS * OUT * H + HEADS
    assert one - four == split * 3 / 4


def test_the_ends_hold_what_the_model_has_beside_its_layers() -> None:
    """Embedding, sum of the streams, final norm, output projection."""
    shard, megatron = ShardShape(sequence_length=S), stack("megatron-core")
    ends = (
        *embedding_ops(Workload(model=FLASH, job=JOB, stack=megatron), shard),
        *head_ops(FLASH, megatron, shard),
    )
    layers = sum(run.count * layer_parameters(FLASH, run.kind) for run in layer_runs(FLASH))
    assert sum(op.parameters for op in ends) == parameter_count(FLASH) - layers


@pytest.mark.parametrize(
    ("reach", "rate", "most"), [("window", 0, 0), ("heavy", 128, 64), ("sparse", 4, 512)]
)
def test_a_query_sees_the_window_and_the_entries_before_it(reach: Any, rate: int, most: int) -> None:
    """Counted query by query: the last 128 tokens, and of whole entries before it at most so many."""
    tokens = np.arange(1, int(S) + 1)
    seen = np.minimum(tokens, 128) + (np.minimum(tokens // rate, most) if rate else 0)
    assert seen_pairs(FLASH, reach, S) == pytest.approx(seen.sum(), rel=0.02)


@pytest.mark.parametrize("reach", KINDS)
def test_products_are_those_that_transformers_multiplies(reach: str) -> None:
    """One layer's attention and streams on the meta device: every product with weights, to the last one."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    names = {"window": "sliding_attention", "heavy": "heavily_compressed_attention"}
    sizes: dict[str, Any] = {
        "num_hidden_layers": 1, "layer_types": [names.get(reach, "compressed_sparse_attention")],
        "hidden_size": H, "num_attention_heads": HEADS, "q_lora_rank": RANK, "n_routed_experts": 8,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model("deepseek_v4", **sizes)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config).model
        layer, x = built.layers[0].self_attn, torch.empty(1, int(S), H)
        ids = torch.arange(int(S))[None]
        positions = {
            kind: built.rotary_emb(x, position_ids=ids, layer_type=kind) for kind in ("main", "compress")
        }
        with counter.FlopCounterMode(display=False) as counted:
            layer(x, positions, ids, None)
            built.layers[0].attn_hc(torch.empty(1, int(S), STREAMS, H))
    total = counted.get_flop_counts()["Global"]
    grouped = 2 * S * HEADS * HEAD * OUT  # a batched product of groups, beside those of scores and values
    ours = ops_of(replace(KINDS[reach], mlp="none"), name="ideal")
    products = sum(op.flop for op in ours if op.kind in LINEAR)
    assert total[torch.ops.aten.mm] + total.get(torch.ops.aten.addmm, 0) + grouped == products


def test_layers_pass_on_four_streams() -> None:
    """What a recomputed layer keeps, and what goes from stage to stage, is four times the hidden size."""
    shard = ShardShape(sequence_length=S)
    kept = saved_bytes(ops_of(KINDS["heavy"]), "full", shard, FLASH.residual_width)
    assert kept == 2 * S * STREAMS * H
    assert FLASH.residual_width == STREAMS * H
    by_name = {op.name: op for op in ops_of(KINDS["heavy"])}
    assert (
        by_name["attention_weights"].saved_bytes == by_name["mlp_weights"].saved_bytes == 2 * S * STREAMS * H
    )
    assert by_name["attention_mix"].bytes == 2 * S * H * (2 * STREAMS + 1)


def test_attention_to_few_entries_is_a_small_part_of_attention_to_all() -> None:
    """Of 8,192 tokens a sparse layer's queries see 128 and at most 512 entries, a heavy one's 128 and 64."""
    core = {
        reach: next(op.flop for op in ops_of(kind) if op.name == "attention") for reach, kind in KINDS.items()
    }
    everything = 2 * HEADS * 2 * HEAD * S * S / 2
    assert core["window"] < core["heavy"] < core["sparse"] < 0.2 * everything
    assert forward_flop(ops_of(KINDS["sparse"])) > core["sparse"]


@pytest.mark.parametrize(("reach", "rate"), [("window", 0), ("heavy", 128), ("sparse", 4)])
def test_attention_reads_one_key_of_each_token_and_of_each_entry(reach: str, rate: int) -> None:
    """Two bytes an element: queries in, results out, one key of all heads; queries, keys and sums are kept."""
    core = next(op for op in ops_of(KINDS[reach]) if op.name == "attention")  # type: ignore[index]
    queries, keys = 2 * S * HEADS * HEAD, 2 * (S + (S / rate if rate else 0)) * HEAD
    assert core.bytes == 2 * queries + keys
    assert core.saved_bytes == queries + keys + 4 * S * HEADS


def test_a_pattern_and_compression_belong_together() -> None:
    """Neither is a model without the other."""
    for change in ({"compression": None}, {"layer_pattern": "A"}):
        with pytest.raises(InputError, match="compressed attention"):
            replace(FLASH, **change)  # type: ignore[arg-type]
