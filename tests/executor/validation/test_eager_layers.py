"""What a layer of transformers keeps for its backward, counted by autograd, beside what the profile `trl` says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.memory.activations import layer_share
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.op import ShardShape
from costmodel.stack import stack

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 256
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "vocab_size": 128,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 16, "moe_intermediate_size": 64}
CASES = [
    ("Qwen3", "qwen3-8b", {}, {}),
    ("Llama", "llama-3.1-8b", {}, {}),
    ("Qwen3Moe", "qwen3-30b-a3b", EXPERTS | {"num_experts_per_tok": 4, "norm_topk_prob": True},
     EXPERTS | {"num_experts_per_token": 4}),
]  # fmt: skip


def kept_by_autograd(family: str, sizes: dict[str, Any]) -> float:
    """Bytes of the distinct tensors that one layer saves, parameters and rotary angles aside."""
    config = getattr(transformers, f"{family}Config")(**SIZES, **sizes, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    built = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    places = torch.arange(TOKENS)[None]
    hidden = torch.randn(1, TOKENS, SIZES["hidden_size"], dtype=torch.bfloat16, requires_grad=True)
    angles = built.model.rotary_emb(hidden, places)
    not_counted = {tensor.untyped_storage().data_ptr() for tensor in (*built.parameters(), *angles)}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in not_counted:
            kept[storage.data_ptr()] = storage  # holds it, so that its address is not taken again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        built.model.layers[0](hidden, position_embeddings=angles, attention_mask=None, position_ids=places)
    return float(sum(storage.nbytes() for storage in kept.values()))


def kept_by_profile(spec: ModelSpec, profile: str) -> float:
    """The same by the per-layer table."""
    shard = ShardShape(sequence_length=float(TOKENS))
    job = TrainingJob(sequence_length=TOKENS, global_batch_size=1)
    ops = ops_of_parts(Workload(model=spec, job=job, stack=stack(profile)), shard)[0]
    return float(np.ravel(layer_share(ops, shard, spec.hidden_size).saved_bytes[0])[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("family", "name", "theirs", "ours"), CASES)
def test_a_layer_keeps_what_autograd_keeps(
    family: str, name: str, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """Within 1.5 %: norms' 1/rms and the indices of routed tokens are not counted."""
    spec = dataclasses.replace(model(name), num_layers=1, **SIZES, **ours)
    expected = kept_by_autograd(family, theirs)
    assert kept_by_profile(spec, "trl") == pytest.approx(expected, rel=0.015)
    assert kept_by_profile(spec, "torchtitan") < 0.8 * expected
