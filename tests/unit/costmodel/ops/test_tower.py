"""What a tower computes, keeps and holds: torch's own counts, and equations of its sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.hf.config import model_of_config
from costmodel.models.parameters import embedding_parameters, layer_parameters, parameter_count, without_tower
from costmodel.models.spec import decoder_of, layer_order, layer_runs
from costmodel.ops.layer import embedding_ops, forward_flop, layer_ops, model_flop_per_step
from costmodel.ops.op import ShardShape
from costmodel.stack import stack
from costmodel.updates.adapters import Adapter
from tests.unit.costmodel.models.small_towers import seeing

S = 8192
JOB = TrainingJob(sequence_length=S, global_batch_size=1)
MODEL = seeing(model("llama-3.1-8b"), 24, 1024)
IDEAL = stack("ideal")


def tower_flop(spec: Any, job: TrainingJob) -> float:
    """Forward FLOP of a tower's layers and ends on one sequence."""
    shard = ShardShape(sequence_length=float(job.sequence_length))
    run = layer_runs(spec)[0]
    return float(
        run.count * forward_flop(layer_ops(Workload(model=spec, job=job, stack=IDEAL), run.kind, shard))
        + forward_flop(embedding_ops(Workload(model=spec, job=job, stack=IDEAL), shard))
    )


def test_the_tower_comes_first() -> None:
    """Its layers are a run of their own, and the rest is the decoder."""
    assert [(run.kind.tower, run.count) for run in layer_runs(MODEL)] == [(True, 24), (False, 32)]
    assert layer_order(MODEL) == ((0, 24), (1, 32))
    assert replace(decoder_of(MODEL), name="llama-3.1-8b") == model("llama-3.1-8b")
    assert without_tower(model("llama-3.1-8b")) is model("llama-3.1-8b")


@pytest.mark.parametrize("degrees", [{}, {"tp": 4.0}, {"cp": 2.0}])
def test_a_rank_holds_the_tower_whole(degrees: dict[str, float]) -> None:
    """Parameters of its operations are those of its sizes, whatever else is cut."""
    shard = ShardShape(sequence_length=float(S), **degrees)
    run = layer_runs(MODEL)[0]
    held = sum(
        op.parameters for op in layer_ops(Workload(model=MODEL, job=JOB, stack=IDEAL), run.kind, shard)
    )
    assert held == layer_parameters(MODEL, run.kind)
    ends = sum(op.parameters for op in embedding_ops(Workload(model=MODEL, job=JOB, stack=IDEAL), shard))
    lookup = embedding_parameters(decoder_of(MODEL)) / degrees.get("tp", 1)
    assert ends - lookup == pytest.approx(
        embedding_parameters(MODEL) - embedding_parameters(decoder_of(MODEL))
    )


@pytest.mark.parametrize(("images", "microbatch", "cp", "seen"), [(1, 1, 1, 1), (5, 2, 4, 3), (1, 1, 4, 1)])
def test_images_are_dealt_whole(images: int, microbatch: int, cp: int, seen: int) -> None:
    """The busiest context rank has so many of them."""
    job = replace(JOB, images=images)
    shard = ShardShape(sequence_length=float(S), cp=float(cp), microbatch_size=float(microbatch))
    one = ShardShape(sequence_length=float(S))
    kind = layer_runs(MODEL)[0].kind
    of_rank = forward_flop(layer_ops(Workload(model=MODEL, job=job, stack=IDEAL), kind, shard))
    assert of_rank == seen * forward_flop(layer_ops(Workload(model=MODEL, job=JOB, stack=IDEAL), kind, one))


def test_flop_of_a_step_grow_with_what_is_seen() -> None:
    """Three times the forward of the tower; the decoder reads as many tokens as before."""
    more = model_flop_per_step(MODEL, replace(JOB, images=3)) - model_flop_per_step(MODEL, JOB)
    assert more == pytest.approx(3 * 2 * tower_flop(MODEL, JOB), rel=1e-12)
    alone = model_flop_per_step(decoder_of(MODEL), JOB)
    assert model_flop_per_step(MODEL, JOB) - alone == pytest.approx(3 * tower_flop(MODEL, JOB), rel=1e-9)


def test_a_recomputed_layer_keeps_its_patches() -> None:
    """2·P·h bytes, and of a decoder's layer 2·S·H."""
    pieces = memory_pieces(
        Workload(model=MODEL, job=replace(JOB, images=4), stack=stack("megatron-core")),
        ParallelLayout(recompute="full"),
    )
    full = [float(np.ravel(layer.saved_bytes_recomputed)[0]) for layer in pieces.layers]
    assert full == [2 * 4 * 4 * 64 * 1024, 2 * S * 4096]


def layer_times(job: TrainingJob) -> tuple[Any, Any]:
    """Costs of the stages of one GPU, and what its memory is made of."""
    from costmodel.kernels.tables import load_calibration
    from costmodel.training.stages import stage_costs
    from topology.builders import default_cluster

    layout, profile = ParallelLayout(recompute="full"), stack("megatron-core")
    costs = stage_costs(
        Case(
            model=MODEL,
            cluster=default_cluster("h100-sxm", 8),
            job=job,
            stack=profile,
            cal=load_calibration(),
        ),
        layout,
    )
    return costs, memory_pieces(Workload(model=MODEL, job=job, stack=profile), layout)


@pytest.mark.parametrize(
    "job", [replace(JOB, frozen_tower=True), replace(JOB, adapter=Adapter(kind="lora", rank=8))]
)
def test_a_frozen_tower_runs_forward_alone(job: TrainingJob) -> None:
    """A third of its FLOP, no gradients, no state but its weights, nothing kept, nothing to run again."""
    shard = ShardShape(sequence_length=float(S))
    run = layer_runs(MODEL)[0]
    ops = layer_ops(Workload(model=MODEL, job=job, stack=stack("megatron-core")), run.kind, shard)
    assert sum(op.parameters + op.saved_bytes + op.working_bytes for op in ops) == 0
    assert sum(op.frozen_bytes for op in ops) == 2 * layer_parameters(MODEL, run.kind)
    many = 100  # images, so that kernels take longer than their launches
    trained, _ = layer_times(replace(JOB, images=many))
    frozen, pieces = layer_times(replace(job, images=many))
    assert frozen.recompute_s[0] == 0 < trained.recompute_s[0]
    assert 0.2 < frozen.layer_s[0] / trained.layer_s[0] < 0.4
    assert float(np.ravel(pieces.layers[0].saved_bytes_recomputed)[0]) == 0
    if job.adapter is None:
        assert frozen.layer_s[1] == trained.layer_s[1]
        ends = tower_flop(MODEL, JOB)
        spared = model_flop_per_step(MODEL, JOB) - model_flop_per_step(MODEL, job)
        assert 0.95 < spared / (2 * ends) < 1


def test_a_frozen_tower_has_no_optimizer_state() -> None:
    """Of 16 or 18 bytes a parameter two are left, but of what joins it."""
    profile = stack("megatron-core")

    def static(job: TrainingJob) -> float:
        (found,) = memory_by_stage(
            Workload(model=MODEL, job=job, stack=profile), ParallelLayout(), ((24, 32),), ((0, 0),)
        )
        return found.weights_bytes + found.gradients_bytes + found.optimizer_bytes

    assert MODEL.tower is not None
    still = 24 * layer_parameters(MODEL, layer_runs(MODEL)[0].kind) + MODEL.tower.stem_parameters
    spared = static(JOB) - static(replace(JOB, frozen_tower=True))
    assert spared == pytest.approx(16 * still, rel=1e-6)


SIGLIP = {"hidden_size": 144, "intermediate_size": 430, "num_hidden_layers": 3, "num_attention_heads": 4,
          "image_size": 224, "patch_size": 14, "vision_use_head": False, "model_type": "siglip_vision_model"}  # fmt: skip
QWEN = {"depth": 3, "hidden_size": 160, "intermediate_size": 420, "num_heads": 4, "out_hidden_size": 192,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [0, 1, 2]}  # fmt: skip
TEXT = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 1, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 900, "max_position_embeddings": 4096}  # fmt: skip


@pytest.mark.parametrize(("family", "vision", "tokens"), [("gemma3", SIGLIP, None), ("qwen2_5_vl", QWEN, 64)])
def test_flop_are_those_that_torch_counts(family: str, vision: dict[str, Any], tokens: int | None) -> None:
    """Of a forward over one image, tower and join, within 0.1 %."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    text = {**TEXT, "model_type": f"{family}_text", "pad_token_id": None}
    config = {"text_config": text, "vision_config": vision} | (
        {"mm_tokens_per_image": 64} if family == "gemma3" else {}
    )
    built = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(family, **config), attn_implementation="eager"
    )
    if family == "gemma3":
        given = {"pixel_values": torch.zeros(1, 3, 224, 224)}
    else:
        given = {
            "pixel_values": torch.zeros(256, 3 * 2 * 14 * 14),
            "image_grid_thw": torch.tensor([[1, 16, 16]]),
        }
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built.get_image_features(**given)
    spec = model_of_config({"model_type": family, **config}, name=family)
    assert tower_flop(spec, replace(JOB, image_tokens=tokens)) == pytest.approx(
        counter.get_total_flops(), rel=1e-3
    )
    assert parameter_count(spec) == sum(
        one.numel() for one in {id(p): p for p in built.parameters()}.values()
    )
