"""How tokens of a mixture of experts choose, in the words of a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

ScoringFunction = Literal["softmax", "sigmoid"]
Places: TypeAlias = NDArray[np.int64] | NDArray[np.float64] | float  # whole numbers


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


def places_reached(routing: Routing, experts_per_token: int, places: Places) -> NDArray[np.float64]:
    """Expected number of `places`, equal parts of the experts, that hold some of a token's K experts.

    d(x) = x·(1 − (1 − 1/x)^K)

    Of n groups a token may choose from G. Parts as small as a group or smaller: those of G groups, d(G·x/n).
    Of larger ones, each of q = n/x groups, a part with j of the G groups is left out by (1 − j/G)^K of the
    tokens. Between the x that divide n it is interpolated.

    Args:
        routing: How a token chooses.
        experts_per_token: K.
        places: x, at least 1.

    Source: DeepSeek-V3 (arXiv 2412.19437) section 2.1.2, at most four nodes to a token.
    """
    x = np.asarray(places, dtype=np.intp)
    most = 1 << int(x.max(initial=1) - 1).bit_length()
    return _by_places(routing.n_group, routing.topk_group, experts_per_token, most)[x]


@functools.cache
def _by_places(n: int, G: int, K: int, most: int) -> NDArray[np.float64]:
    """Places reached by their number, up to `most`."""
    x = np.arange(most + 1, dtype=float)
    small = np.maximum(x * G / n, 1.0)
    reached = small * (1 - (1 - 1 / small) ** K)
    return reached if n == G else np.where(x < n, np.interp(x, *_larger_than_groups(n, G, K)), reached)


@functools.cache
def _larger_than_groups(n: int, G: int, K: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Places that n groups divide into, and how many of them a token reaches."""
    places = tuple(x for x in range(1, n + 1) if n % x == 0)
    return places, tuple(x * _share_reached(n, n // x, G, K) for x in places)


def _share_reached(n: int, q: int, G: int, K: int) -> float:
    """Share of tokens that reach a place of q of the n groups."""
    ways = math.comb(n, G)
    chosen = ((j, math.comb(q, j) * math.comb(n - q, G - j) / ways) for j in range(min(q, G) + 1))
    return sum(share * (1 - (1 - j / G) ** K) for j, share in chosen)
