"""Which dimension of which parameter each axis splits, as one table of names.

Everything that must know how a parameter is cut reads this table: parallelize, weight loading, gradient
sums and norms, checkpoints of another layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

GradientSum = Literal["never", "with-sequence-parallel", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRule:
    """How parameters of one kind are cut.

    `tensor_dim` is split over tp (over expert_tp for experts), `expert_dim` over ep; None means a full
    copy. A full copy may still see only part of the work (a part of the sequence, or of the heads): its
    gradients are then summed over tp, always or only with sequence parallelism. Parameters that are never
    trained (`is_state` false) are whole on every rank in their own type, out of FSDP's sight.
    """

    tensor_dim: int | None = None
    expert_dim: int | None = None
    gradient_sum: GradientSum = "never"
    is_state: bool = True

    @property
    def is_expert(self) -> bool:
        """Whether the parameter belongs to routed experts, which are sharded over their own mesh."""
        return self.expert_dim is not None


COPIED = ShardingRule(gradient_sum="with-sequence-parallel")
PER_HEAD = ShardingRule(gradient_sum="always")
ROWS = ShardingRule(tensor_dim=0)
COLUMNS = ShardingRule(tensor_dim=1)

_TABLE: tuple[tuple[str, ShardingRule], ...] = (
    (r"mlp\.gate\.e_score_correction_bias$", ShardingRule(is_state=False)),
    (r"mlp\.experts\.(gate|up)_proj(_bias)?$", ShardingRule(tensor_dim=1, expert_dim=0)),
    (r"mlp\.experts\.down_proj$", ShardingRule(tensor_dim=2, expert_dim=0)),
    (r"mlp\.experts\.down_proj_bias$", ShardingRule(expert_dim=0)),
    (r"(embed_tokens|lm_head)\.weight$", ROWS),
    (r"(o_proj|down_proj)\.lora_A\.weight$", COLUMNS),
    (r"self_attn\.(q|k|v|q_b|kv_b)_proj\.lora_B\.weight$", ROWS),
    (r"mlp\.(shared_experts\.)?(gate|up)_proj\.lora_B\.weight$", ROWS),
    (r"\.lora_[AB]\.weight$", PER_HEAD),  # whole, of products that ranks have parts of
    (r"self_attn\.(q|k|v|q_b|kv_b)_proj\.(weight|bias)$", ROWS),
    (r"self_attn\.sinks$", ROWS),
    (r"mlp\.(shared_experts\.)?(gate|up)_proj\.(weight|bias)$", ROWS),
    (r"(o_proj|down_proj)\.weight$", COLUMNS),
    (r"self_attn\.(q_norm|k_norm|q_a_proj|q_a_layernorm|kv_a_proj_with_mqa|kv_a_layernorm)\.", PER_HEAD),
)


def rule(name: str) -> ShardingRule:
    """How the parameter of this name is cut; what is not in the table is copied.

    >>> rule("model.layers.3.mlp.down_proj.weight").tensor_dim, rule("model.norm.weight").gradient_sum
    (1, 'with-sequence-parallel')
    """
    return next((result for pattern, result in _TABLE if re.search(pattern, name)), COPIED)


def sums_gradient(name: str, *, sequence_parallel: bool) -> bool:
    """Whether gradients of this copied parameter differ over tp and must be summed.

    >>> sums_gradient("model.norm.weight", sequence_parallel=False)
    False
    """
    when = rule(name).gradient_sum
    return when == "always" or (when == "with-sequence-parallel" and sequence_parallel)
