"""What Megatron-LM stops at of experts, their router and their exchange, in its own words.

Read in `TransformerConfig.__post_init__` of megatron-core 0.19.2.
"""

from __future__ import annotations

import math

from planner.engines.megatron_lm.modules import spelled_modules
from planner.engines.megatron_lm.pairing import FLAG as PAIRS
from planner.engines.megatron_lm.stages import PP, chunks_of
from planner.engines.refusal import Stopped, WordLaw, needs_words, on
from planner.engines.setting import EngineSetting, Given, Word
from planner.law import stop

TP, EP, EXPERT_TP = (
    "--tensor-model-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
)

EXPERTS, WIDTH, UNBIASED = "--num-experts", "--moe-ffn-hidden-size", "--disable-bias-linear"
DISPATCHER, BACKEND, DEEPEP = (
    "--moe-token-dispatcher-type",
    "--moe-flex-dispatcher-backend",
    "--moe-enable-deepep",
)
SCORES, CHOSEN, BEFORE = "--moe-router-score-function", "--moe-router-topk", "--moe-router-pre-softmax"
BIAS, GROUPS, OF_GROUPS = (
    "--moe-router-enable-expert-bias", "--moe-router-num-groups", "--moe-router-group-topk"
)  # fmt: skip
BALANCE, PADDED, CAPACITY = (
    "--moe-router-load-balancing-type", "--moe-pad-expert-input-to-capacity", "--moe-expert-capacity-factor"
)  # fmt: skip
SHARED, SHARED_BESIDE = "--moe-shared-expert-intermediate-size", "--moe-shared-expert-overlap"
DELAYED, GRANULARITY, MODULES = "--delay-wgrad-compute", "--recompute-granularity", "--recompute-modules"
METHOD, COUNT, PREDICTED = "--recompute-method", "--recompute-num-layers", "--mtp-num-layers"
_CHUNKS = (
    "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage",
    "--pipeline-model-parallel-layout",
)  # fmt: skip


def _dense(given: Given) -> Stopped:
    if given[WIDTH] is None or on(given, EXPERTS):
        return None
    return f"{WIDTH} in a model without experts", f"add {EXPERTS}, or leave {WIDTH} out"


def _biased(given: Given) -> Stopped:
    if not on(given, EXPERTS) or on(given, UNBIASED):
        return None
    shared = given[EXPERT_TP] or given[TP]
    if shared == 1:
        return None
    usual = "" if given[EXPERT_TP] else f" (as {TP} has it)"
    return f"{shared} ranks{usual} share an expert with biases", f"add {UNBIASED}, or set {EXPERT_TP} 1"


def _sequences(given: Given) -> Stopped:
    """`MoELayer` raises while it trains."""
    if not on(given, EXPERTS) or given[TP] == 1 or on(given, "--sequence-parallel"):
        return None
    return f"experts at tp {given[TP]} without --sequence-parallel", "add --sequence-parallel"


def _dispatcher(given: Given) -> Stopped:
    kind, backend = given[DISPATCHER], given[BACKEND]
    if on(given, DEEPEP) and kind != "flex":
        return f"{DEEPEP} with {DISPATCHER} {kind}", f"set {DISPATCHER} flex"
    if on(given, DEEPEP) and backend == "hybridep":
        return f"{DEEPEP} beside {BACKEND} hybridep", f"leave {DEEPEP} out"
    if kind == "flex" and on(given, PADDED) and backend == "deepep":
        return f"{PADDED} with {BACKEND} deepep", f"leave {PADDED} out"
    if on(given, SHARED_BESIDE) and given[SHARED] and kind not in ("alltoall", "flex"):
        return f"{SHARED_BESIDE} with {DISPATCHER} {kind}", f"set {DISPATCHER} alltoall"
    return None


def _router(given: Given) -> Stopped:
    scores, chosen, experts = given[SCORES], given[CHOSEN], given[EXPERTS]
    if on(given, BIAS) and scores not in ("sigmoid", "sqrtsoftplus"):
        return f"{BIAS} with {SCORES} {scores}", f"set {SCORES} sigmoid"
    sinkhorn = str(given[BALANCE]).strip("[]'\"") == "sinkhorn"
    if chosen == 1 and scores == "softmax" and not on(given, BEFORE) and not sinkhorn:
        return f"{CHOSEN} 1 without {BEFORE}: the router would learn nothing", f"add {BEFORE}"
    groups, best = given[GROUPS], given[OF_GROUPS]
    if not best:
        return None
    if not groups:
        return f"{OF_GROUPS} without {GROUPS}", f"add {GROUPS}"
    if experts and experts % groups:
        message = f"{experts} experts do not divide by {groups} groups"
        return message, f"set {GROUPS} {math.gcd(experts, groups)}"
    if best > groups:
        return f"{best} of {groups} groups", f"set {OF_GROUPS} {groups}"
    return None


def _pairs(given: Given) -> Stopped:
    """Two microbatches at once."""
    if not on(given, PAIRS):
        return None
    asked = {
        f"{EP} above 1": given[EP] > 1,
        "virtual stages": given[PP] == 1 or chunks_of(given) > 1,
        "no full recomputation": given[GRANULARITY] != "full",
        f"no {METHOD}": given[METHOD] is None,
        f"no {COUNT}": given[COUNT] is None,
        f"no moe in {MODULES}": "moe" not in spelled_modules(given[MODULES] or ()),
        "alltoall or flex": given[DISPATCHER] in ("alltoall", "flex"),
        "--bf16 or --fp16": on(given, "--bf16") or on(given, "--fp16"),
        f"no {SHARED_BESIDE}": not on(given, SHARED_BESIDE),
        f"{PREDICTED} of at most 1": (given[PREDICTED] or 0) <= 1,
    }
    lacking = [what for what, there in asked.items() if not there]
    if not lacking:
        return None
    return f"{PAIRS} asks for {', '.join(lacking)}", f"change that, or leave {PAIRS} out"


EXPERT_REFUSALS: tuple[WordLaw, ...] = (
    stop(name="experts", reads=(WIDTH, EXPERTS), stops=_dense),
    stop(
        name="biased-experts",
        reads=(EXPERT_TP, TP, EXPERTS, UNBIASED),
        stops=_biased,
        says_of=("megatron-biased-experts",),
    ),
    stop(
        name="experts-sequence-parallel",
        reads=(TP, EXPERTS, "--sequence-parallel"),
        stops=_sequences,
        says_of=("megatron-sequence-parallel",),
    ),
    stop(
        name="dispatcher",
        reads=(DEEPEP, SHARED_BESIDE, PADDED, DISPATCHER, BACKEND, SHARED),
        stops=_dispatcher,
    ),
    stop(
        name="router",
        reads=(BIAS, CHOSEN, OF_GROUPS, GROUPS, SCORES, BEFORE, BALANCE, EXPERTS),
        stops=_router,
    ),
    needs_words("capacity", PADDED, CAPACITY),
    stop(
        name="expert-overlap",
        reads=(PAIRS, EP, PP, *_CHUNKS, GRANULARITY, METHOD, COUNT, MODULES, DISPATCHER, SHARED_BESIDE),
        stops=_pairs,
    ),
    needs_words("expert-overlap", DELAYED, PAIRS),
)

EXPERT_WORDS = EngineSetting(
    words=(
        Word(name=PADDED, kind="flag", default=False),
        Word(name=CAPACITY, kind="float"),
    ),
    fields=(),
    write=lambda _: {},
    read=lambda _: {},
)
"""Words that decide no field."""
