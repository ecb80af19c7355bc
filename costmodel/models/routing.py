"""How tokens of a mixture of experts choose, in the words of a Hugging Face ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScoringFunction = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """From a router's logits to the chosen experts and their weights.

    Every expert is scored over all experts; with `n_group` > 1 only experts of the `topk_group` best groups
    are eligible, a group being worth its best expert's score, or the sum of its best two with a bias that
    selects (DeepSeek-V2 §2.1.2, DeepSeek-V3 §2.1.2). The best ``num_experts_per_token`` are taken.

    Attributes:
        scoring_func: Scores of logits.
        norm_topk_prob: Whether the scores of the chosen experts are divided by their sum. (A softmax over the
            chosen logits alone, as gpt-oss writes it, is a softmax over all that is then normalised.)
        routed_scaling_factor: What the weights are multiplied by in the end.
        n_group: Groups that experts are in.
        topk_group: Groups of which a token may choose experts.
        bias_selects: Whether the router's bias is added to scores for choosing only
            (``e_score_correction_bias``), instead of to logits.
    """

    scoring_func: ScoringFunction = "softmax"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    bias_selects: bool = False
