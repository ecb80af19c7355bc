"""The answer to a serving question as data.

The fleet, what it does under the load, and how sure the search is.

Frozen dataclasses that round-trip through JSON; no solver is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from costmodel.job import ServingJob
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import KvDtype, ServingLayout, Weights
from costmodel.serving.held import HeldCache
from costmodel.serving.levels import ServingLevel
from costmodel.serving.simulation.load import Router
from planner.serving.trade_offs import FrontierPoint, LimitRelaxed
from topology.base.counts import counted
from topology.base.decode import SERVING_COMMAND, document_of, structure, unstructure
from topology.base.units import GIB
from topology.hardware.offers import Offer

SCHEMA_VERSION = 1
LEAST_GAP = 0.0005  # smaller gaps are rounding
SURE = 0.9  # chance to keep every limit that is asked of a proposal
ROUNDING = 1e-6  # of chances

Mode = Literal["aggregated", "disaggregated"]
ComparedMode = Literal["aggregated", "disaggregated", "mixed"]
"""Mixed: prompts and outputs on GPUs of two kinds."""
ServingObjective = Literal["gpus", "usd", "tokens-per-gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """What is asked: a model, the job, the GPUs that may be used, and what "best" means.

    `num_gpus` is the fleet to fill (None: find the smallest or cheapest one). `modes` says whether prompts
    and outputs may, or must, run on different GPUs. `pins` fixes tp, pp, attention_dp, ep or dcp. `level` is
    that of the user's own server (`plan calibrate`). `offer` is the machine that is rented as a whole, at the
    price of which `usd_per_gpu_hour` is the part of a GPU; without one GPUs are counted and priced one by
    one. A fleet of a given size is rented in any of `offers`. GPUs that are `owned` are all paid for. `spare`
    more workers of each pool are had, so that the limits hold with as many lost. A `router` of some policy
    has the caches that a trace's prompts meet counted, with `host_cache_bytes` of each replica's hosts; ""
    sends requests by turns, and every prompt is computed in full. `node_gpus` are the kinds of all GPUs, node
    by node, where a cluster has several; `gpu` is then the one that all are at least.
    """

    model: ModelSpec
    job: ServingJob
    gpu: str
    num_gpus: int | None = None
    engine: str = "vllm"
    weights: tuple[Weights, ...] = ("bf16",)
    modes: tuple[Mode, ...] = ("aggregated",)
    objective: ServingObjective = "gpus"
    pins: Mapping[str, int] | None = None
    usd_per_gpu_hour: float | None = None
    level: ServingLevel | None = None
    offer: Offer | None = None
    offers: tuple[Offer, ...] = ()
    owned: bool = False
    spare: int = 0
    router: Router = ""
    host_cache_bytes: float = 0.0
    node_gpus: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest request, with room for the one after it."""
        job = self.job
        return (job.input_tokens_p99 or job.input_tokens) + (job.output_tokens_p99 or job.output_tokens) + 1

    @property
    def length_limit(self) -> int | None:
        """The longest request that servers are told to take; None where that is what their cache holds.

        TensorRT-LLM sizes its buffers by it, and takes no word for what the cache holds.
        """
        return self.longest if self.engine == "trtllm" else None

    @property
    def machine_gpus(self) -> int:
        """GPUs that are had together: those of the machine that is rented, or one."""
        return self.offer.gpus if self.offer is not None else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """What is rented: whole machines of one kind, and their GPUs that no worker uses."""

    offer: Offer
    machines: int
    idle_gpus: int

    @property
    def usd_per_hour(self) -> float:
        """The bill of all machines for an hour."""
        return self.machines * self.offer.usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Equal workers: how many, and how each is split and scheduled.

    `balance_steps` are decode steps that prompts wait at most until every attention rank has one, and
    `gather_steps` those that they wait for others after that. `kv_capacity_tokens` are those of the
    question's requests that the cache of a worker holds. `cache_tokens` are those of requests of
    `longest_context` on an attention rank, as its log has them: longer requests share windows and states
    among more tokens.
    """

    layout: ServingLayout
    workers: int
    max_batch: int
    token_budget: int
    kv_capacity_tokens: int
    memory: MemoryBreakdown
    balance_steps: int = 0
    gather_steps: int = 0
    cache_tokens: int = 0
    longest_context: int = 0

    @property
    def num_gpus(self) -> int:
        """GPUs of the pool."""
        return self.workers * self.layout.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """A latency at three percentiles, seconds, with the calibrated band of the middle one."""

    p50_s: float
    p90_s: float
    p99_s: float
    lower_s: float
    upper_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCheck:
    """A latency limit beside what is predicted at the job's percentile.

    `upper_s` is the upper end of the calibrated band there, `chance` the probability that a measurement keeps
    the limit (`planner.serving.answer`).
    """

    limit_s: float
    predicted_s: float
    upper_s: float
    chance: float

    @property
    def in_band(self) -> bool:
        """Whether the limit lies inside the band, so that the prediction alone does not keep it."""
        return self.limit_s < self.upper_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The highest rate that a fleet was found to serve, requests a second, and what breaks above it.

    `broken` names limits (ttft, tpot, end_to_end) and "queue" where waiting grows without end, at the rate
    `failed_per_s`.
    """

    served_per_s: float
    failed_per_s: float
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrompts:
    """What caches had of a trace's prompts, by the router in front: shares of all prompt tokens.

    `on_hosts` is the part of `found` that was read back from host memory.
    """

    router: str
    found: float
    on_hosts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    """What the fleet does under its load.

    Rates are of the whole fleet, `utilisation` and queues of one replica. Of the `request_rate_per_s` that is
    sent `completed_per_s` gets through, all of it but where the queue grows without end.
    `capacity_requests_per_s` is the highest rate that was simulated within the limits: that of `headroom`,
    which a fleet of a given size has, or what a closed loop answers; None of a fleet sized for a rate, which
    may serve more. `limits` has the limits that were asked for, by ttft, tpot and end_to_end; `drawn_anew`,
    by the same names, the 95 % interval of the latency at the job's percentile over several loads, none of a
    trace or a closed loop.
    """

    request_rate_per_s: float
    completed_per_s: float
    capacity_requests_per_s: float | None
    output_tokens_per_s: float
    tokens_per_s_per_gpu: float
    ttft: Percentiles
    tpot: Percentiles
    end_to_end: Percentiles
    goodput_requests_per_s: float
    utilisation: float
    mean_queue: float
    mean_batch: float
    kv_used_share: float
    preemptions: int
    usd_per_hour: float | None
    usd_per_query: float | None
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    wh_per_query: float
    bound_by: str
    step_parts_s: Mapping[str, float]
    limits: Mapping[str, LimitCheck] = field(default_factory=dict)
    headroom: Headroom | None = None
    prompts_found: CachedPrompts | None = None
    drawn_anew: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def served_per_s(self) -> float:
        """Requests a second that it was seen to serve within the limits: its capacity where that is known."""
        known = self.capacity_requests_per_s
        return self.request_rate_per_s if known is None else known


ServingStatus = Literal["proven", "best-under-cost-model", "best-found"]
"""What is known of the best; *proven* is said of a fleet that keeps its limits surely alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptimality:
    """The certificate: options enumerated, dismissed by reason, simulated for the proof.

    No fleet can beat `bound`; it and `value` are in the unit of the objective (GPUs, or requests a second).
    `gap` is the share by which the value could still be better. It is proven when capacities are told
    apart no finer than the gap; for a rate, when there is none. `scope` says among which fleets: workers that
    keep a limit only by sharing one queue may do with fewer GPUs.
    """

    status: ServingStatus
    bound: float
    value: float
    enumerated: int
    pruned: Mapping[str, int]
    simulated: int
    gap: float = 0.0
    scope: str = "fleets whose workers keep the limits by themselves"

    @property
    def certainty(self) -> str:
        """The status in words, with the gap where there is one.

        >>> ServingOptimality(
        ...     status="proven", bound=10.2, value=10.0, enumerated=2, pruned={}, simulated=1, gap=0.02
        ... ).certainty
        'proven to within 2.0 %'
        """
        words = "best under the cost model" if self.status == "best-under-cost-model" else self.status
        if self.gap < LEAST_GAP:
            return words
        if self.status == "best-found":
            return f"{words}, at most {100 * self.gap:.1f} % from the best"
        return f"{words} to within {100 * self.gap:.1f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAlternative:
    """A runner-up and why it lost; its capacity is an upper bound where `why` says "at least" or "bound"."""

    label: str
    num_gpus: int
    capacity_requests_per_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaringFleet:
    """A fleet beside a plan: the one that is best by the predictions alone, or one that is surer and dear.

    `chance` is that with which it keeps the tightest limit, and none of its `rows` measured runs has what is
    `not_measured`. `saved` is the share of the bill (of the GPUs where there is none) that it saves, or of a
    fleet of a given size the share of requests that it serves more; it is negative of a dearer fleet.
    """

    label: str
    gpu: str
    weights: Weights
    num_gpus: int
    usd_per_hour: float | None
    request_rate_per_s: float
    chance: float
    rows: int
    not_measured: tuple[str, ...]
    saved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEvidence:
    """Measured runs of the plan's mode, engine, GPU and attention, and its properties that no run has.

    `rows_of_model` of the `rows` are of its model, `rows_of_tp` have its tensor ranks; None in older files.
    `best_measured` is the best fleet without the axes that no run has, where the plan has them.
    """

    rows: int
    rows_of_model: int | None = None
    rows_of_tp: int | None = None
    not_measured: tuple[str, ...] = ()
    best_measured: ServingAlternative | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """The best fleet of one GPU kind, precision and mode; no GPUs and `why_not` without one.

    Latencies are at the job's percentile, seconds; dollars of a million tokens count input and output alike.
    `least_usd_per_hour` is what no fleet of this kind can cost less than: a comparison stops looking where
    that is more than another costs. `rows` measured runs are behind it, and none has what is `not_measured`.
    `chance` is that with which it keeps the limit that is least surely kept; None of questions without one.
    One that is not `proposed` needs a checkpoint, or a format of the cache, that the question did not name;
    `kv_dtype` is that format where it is another than the plan's, and `saved` the share of the bill that it
    saves, or of requests that it adds on GPUs that are given.
    """

    gpu: str
    weights: Weights
    label: str
    num_gpus: int
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    why_not: str = ""
    rental: Rental | None = None
    mode: ComparedMode = "aggregated"
    request_rate_per_s: float = 0.0
    usd_per_million_tokens: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    rows: int = 0
    not_measured: tuple[str, ...] = ()
    chance: float | None = None
    certainty: str = ""
    least_usd_per_hour: float | None = None
    proposed: bool = True
    kv_dtype: KvDtype | None = None
    saved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """One proposed fleet. `decode` is the only pool when prompts and outputs share GPUs.

    `sensitivity` has every limit that was relaxed, `frontier` the replicas of its GPU kind that none
    dominates, the fastest for a user first; None where it was not asked for. `surer` are fleets that keep
    the limits with a higher chance at more than a proposal is worth, the cheapest first.
    """

    request: ServingRequest
    mode: Mode
    weights: Weights
    kv_dtype: KvDtype
    decode: PoolPlan
    prefill: PoolPlan | None
    num_gpus: int
    idle_gpus: int
    gpus_per_node: int
    estimate: ServingEstimate
    alternatives: tuple[ServingAlternative, ...]
    other_fleets: tuple[FleetSummary, ...] = ()
    sensitivity: tuple[LimitRelaxed, ...] | None = None
    frontier: tuple[FrontierPoint, ...] | None = None
    optimality: ServingOptimality
    evidence: ServingEvidence = ServingEvidence(rows=0)
    daring: DaringFleet | None = None
    surer: tuple[DaringFleet, ...] = ()
    rental: Rental | None = None
    search_time_s: float
    commands: Mapping[str, str] | None = None
    assumptions: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def __repr__(self) -> str:
        """The fleet in one line: the model, the GPUs and how they are split."""
        gpus = self.gpus_in_words
        return f"ServingPlan({self.request.model.name} on {gpus}: {self.label}, {self.certainty})"

    @property
    def gpus_in_words(self) -> str:
        """How many GPUs of which kinds."""
        kinds = self.decode.layout.gpus
        if not kinds:
            return f"{self.num_gpus} × {self.request.gpu}"
        each = self.decode.workers * self.decode.layout.stage_gpus
        return " + ".join(f"{each * kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))

    def to_dict(self) -> dict[str, Any]:
        """The document that `plan serve --json` prints, as dicts, lists, texts and numbers."""
        document: dict[str, Any] = json.loads(serving_to_json(self))
        return document

    @property
    def chance(self) -> float:
        """Chance that the limit which is least surely kept is kept; 1 without limits."""
        return min((check.chance for check in self.estimate.limits.values()), default=1.0)

    @property
    def is_sure(self) -> bool:
        """Whether every limit is kept with the chance that is asked of a proposal."""
        return self.chance >= SURE - ROUNDING

    @property
    def certainty(self) -> str:
        """What is proven, in words: of a fleet that may well break a limit, of the cost model alone."""
        return self.optimality.certainty

    @property
    def measured(self) -> str:
        """Measured runs behind the latencies: of what, how many are like this fleet, and what none has."""
        known, pools = self.evidence, "" if self.prefill is None else "two pools of "
        words = counted(known.rows, "measured run") if known.rows else "no measured run"
        if known.rows:
            words = f"{words} of {pools}{self.request.engine} on {self.request.gpu}"
        if known.rows and known.rows_of_model is not None and known.rows_of_tp is not None:
            alike = known.rows_of_model or "none", known.rows_of_tp or "none"
            words = f"{words}, {alike[0]} of this model, {alike[1]} at tp {self.decode.layout.tp}"
        return "; ".join([words, *(f"{name}: not measured" for name in known.not_measured)])

    @property
    def pools(self) -> tuple[tuple[str, PoolPlan], ...]:
        """The pools with their role ("" when there is only one)."""
        return (
            (("", self.decode),)
            if self.prefill is None
            else (("prefill", self.prefill), ("decode", self.decode))
        )

    def nodes_of(self, pool: PoolPlan) -> int:
        """Nodes that one worker of a pool spans."""
        return -(-pool.layout.num_gpus // self.gpus_per_node)

    @property
    def label(self) -> str:
        """The fleet in a few words, such as 2 × tp4."""
        if self.prefill is None:
            return f"{self.decode.workers} × {self.decode.layout.label}"
        return (
            f"prefill {self.prefill.workers} × {self.prefill.layout.label}, "
            f"decode {self.decode.workers} × {self.decode.layout.label}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingInfeasible:
    """No fleet meets the limits.

    What stands in the way, the best that is achievable, and which limit to relax. Where memory does, `held`
    is what a GPU of the layout with the most room holds, and `starts` whether that takes a request as long
    as those asked for: then only the longest that are drawn are beyond its cache. A capacity that no fleet
    was seen to serve is a bound.
    """

    what: str
    cause: str
    fix: str
    best_ttft_s: float | None = None
    best_tpot_s: float | None = None
    capacity_requests_per_s: float | None = None
    capacity_is_served: bool = False
    held: HeldCache | None = None
    starts: bool = False


def keys_of_refusal(none: ServingInfeasible, held: HeldCache) -> dict[str, Any]:
    """What tools read of servers of which none has the memory that is asked: the one with the most room."""
    why = f"{none.what}: {none.cause}"
    return {
        "starts": none.starts,
        "why": why,
        **_memory_keys(held.weights_bytes, max(held.cache_tokens, 0), held.longest_tokens),
    }


def serving_to_json(plan: ServingPlan) -> str:
    """Write a plan as one JSON document."""
    document = {**unstructure(plan), **start_keys(plan)}
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


START_KEYS = (
    "starts", "why", "weights_gib_per_gpu", "kv_cache_tokens", "longest_context", "max_concurrency",
)  # fmt: skip
"""What tools read of a server that starts, in the words of its log; the same of plans and of audits."""


def start_keys(plan: ServingPlan) -> dict[str, Any]:
    """What a worker that decodes prints as it starts: its longest request is what its cache holds (auto)."""
    pool = plan.decode
    held = _memory_keys(pool.memory.weights_bytes, pool.cache_tokens, pool.longest_context)
    return {"starts": True, "why": "", **held}


def _memory_keys(weights_bytes: float, cache_tokens: int, longest: int) -> dict[str, float]:
    """The memory of one server under its keys."""
    concurrency = cache_tokens / max(longest, 1)
    return dict(zip(START_KEYS[2:], (weights_bytes / GIB, cache_tokens, longest, concurrency), strict=True))


def is_serving_plan(text: str) -> bool:
    """Whether a text is what `plan serve --json` writes."""
    return text.lstrip().startswith("{") and '"schema_version"' in text and '"decode"' in text


def serving_from_json(text: str, where: str = "serving plan") -> ServingPlan:
    """Read a plan back; unknown keys and other schema versions are refused with an InputError."""
    data = document_of(text, where, version=SCHEMA_VERSION, command=SERVING_COMMAND)
    if isinstance(pool := data.get("decode"), dict):  # older files say it of the decode pool here alone
        for name, key in (("cache_tokens", "kv_cache_tokens"), ("longest_context", "longest_context")):
            pool.setdefault(name, data.get(key) or 0)
    if isinstance(estimate := data.get("estimate"), dict):  # older files hold fleets that keep up alone
        estimate.setdefault("completed_per_s", estimate.get("request_rate_per_s"))
    data = {name: value for name, value in data.items() if name not in START_KEYS}
    return proven_where_sure(structure(data, ServingPlan, where))


def proven_where_sure(plan: ServingPlan) -> ServingPlan:
    """The plan, called proven only where it keeps its limits surely; older files may say more."""
    if plan.optimality.status != "proven" or plan.is_sure:
        return plan
    return replace(plan, optimality=replace(plan.optimality, status="best-under-cost-model"))
