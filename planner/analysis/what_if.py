"""The neighbourhood of a plan: other sizes, other GPUs, what each fact is worth; all of it planned anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from costmodel.campaign.record import Band, Campaign
from costmodel.layout import layout_words
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, PlanRequest
from topology.base.errors import InputError
from topology.builders import build, default_cluster
from topology.catalog import price
from topology.spec import ClusterSpec

Planner = Callable[[PlanRequest], Plan | None]
"""Plans one request; None when nothing is feasible."""

CHANGE = 0.2
MOST_STEPS_OUT = 2
"""Doublings to each side of the value at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """The best plan at one value of what is varied."""

    value: int
    step_time_s: float
    lower_s: float
    upper_s: float
    tokens_per_s: float
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """One way to buy the job: kind and number of GPUs, time of a step, price of a billion tokens.

    `days` and `usd` are those of the whole run, failures included; None where no tokens are asked.
    """

    gpu: str
    num_gpus: int
    step_time_s: float
    usd_per_billion_tokens: float
    layout: str
    days: Band | None = None
    usd: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Relative change of the outcome when one fact is lowered and raised; None where there is no plan."""

    name: str
    lowered: float | None
    raised: float | None

    @property
    def reach(self) -> float:
        """The larger of both effects."""
        return max(abs(self.lowered or 0.0), abs(self.raised or 0.0))

    @property
    def is_none(self) -> bool:
        """Whether there are plans on both sides, and none differs."""
        return self.lowered == self.raised == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One quantity that can be varied: its name, its value in a request, and a request with another value."""

    name: str
    value: Callable[[PlanRequest], int]
    varied: Callable[[PlanRequest, int], PlanRequest]


def _with_gpus(request: PlanRequest, count: int) -> PlanRequest:
    return replace(request, cluster=resized_cluster(request.cluster, count), pins=without_sizes(request.pins))


def _with_length(request: PlanRequest, length: int) -> PlanRequest:
    return replace(request, job=replace(request.job, sequence_length=length))


def _with_batch(request: PlanRequest, batch: int) -> PlanRequest:
    return replace(request, job=replace(request.job, global_batch_size=batch))


VARIATIONS: tuple[Variation, ...] = (
    Variation(name="GPUs", value=lambda request: request.cluster.num_gpus, varied=_with_gpus),
    Variation(name="sequence length", value=lambda request: request.job.sequence_length, varied=_with_length),
    Variation(
        name="global batch size", value=lambda request: request.job.global_batch_size, varied=_with_batch
    ),
)


def without_sizes(pins: Mapping[str, object]) -> dict[str, object]:
    """Pins that can be kept when the number of GPUs changes: a pinned dp would forbid every other size."""
    return {name: value for name, value in pins.items() if name not in ("dp", "shard_degree")}


def resized_cluster(spec: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """The same nodes, more or fewer of them, or a part of one."""
    from topology.cluster_file import resized

    return resized(spec, num_gpus)


def scale_values(request: PlanRequest, variation: Variation) -> tuple[int, ...]:
    """Halves and doubles of one quantity, as far as they are whole and the model goes."""
    value = variation.value(request)
    halves = [value // 2**n for n in range(MOST_STEPS_OUT, 0, -1) if value % 2**n == 0]
    doubles = [value * 2**n for n in range(MOST_STEPS_OUT + 1)]
    most = request.model.max_sequence_length if variation.name == "sequence length" else None
    return tuple(other for other in (*halves, *doubles) if other >= 1 and (most is None or other <= most))


def scale_points(request: PlanRequest, variation: Variation, planner: Planner) -> Iterator[ScalePoint]:
    """Plans at halves and doubles of one quantity; values without a plan are left out."""
    for value in scale_values(request, variation):
        plan = _planned(partial(variation.varied, request, value), planner)
        if plan is not None:
            yield scale_point(plan, value)


def _planned(build_request: Callable[[], PlanRequest], planner: Planner) -> Plan | None:
    """Plan a varied request; a variation that cannot exist has no plan."""
    try:
        return planner(build_request())
    except InputError:
        return None


def scale_point(plan: Plan, value: int) -> ScalePoint:
    """One plan as a point of a curve."""
    estimate = plan.estimate
    return ScalePoint(
        value=value,
        step_time_s=estimate.step_time_s,
        lower_s=estimate.lower_s,
        upper_s=estimate.upper_s,
        tokens_per_s=plan.request.job.tokens_per_step / estimate.step_time_s,
        layout=layout_words(plan.layout),
    )


def offers(
    request: PlanRequest, gpus: Sequence[str], counts: Sequence[int], planner: Planner
) -> Iterator[Purchase]:
    """Plans of the same job on numbers of its own GPUs, as they are described, and of other kinds.

    What has no price is left out. The offer of the request's own kind and number is the request's plan.
    """
    present = request.cluster.nodes[0].gpu
    for gpu in dict.fromkeys((present, *gpus)):
        for count in counts:
            plan = _planned(partial(bought, request, gpu, count), planner)
            offer = None if plan is None else purchase_of(plan, gpu, campaign_or_none(plan))
            if offer is not None:
                yield offer


def purchase_of(plan: Plan, gpu: str, run: Campaign | None) -> Purchase | None:
    """A plan as an offer, with its run to the last token where it has one; None without a price."""
    usd = plan.estimate.usd_per_billion_tokens
    if usd is None:
        return None
    return Purchase(
        gpu=gpu,
        num_gpus=plan.request.cluster.num_gpus,
        step_time_s=plan.estimate.step_time_s,
        usd_per_billion_tokens=usd,
        layout=layout_words(plan.layout),
        days=None if run is None else run.days,
        usd=None if run is None else run.usd,
    )


def bought(request: PlanRequest, gpu: str, count: int) -> PlanRequest:
    """The same job on `count` GPUs of a kind: more or fewer of the cluster's own nodes, or usual ones."""
    if count == request.cluster.num_gpus and gpu == request.cluster.nodes[0].gpu:
        return request
    if gpu == request.cluster.nodes[0].gpu:
        return _with_gpus(request, count)
    if price(gpu) is None:
        raise InputError(what=f"{gpu} has no price", cause="none is known", fix="give one")
    spec = default_cluster(gpu, count).spec
    return replace(request, cluster=spec, pins=without_sizes(request.pins))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something the outcome may depend on, and the request in which it is `factor` times as large.

    Facts are given; what is chosen, such as the batch, is varied in `VARIATIONS`, at values that divide: a
    fifth more of it tells how many factors a number has, not what it is worth.
    """

    name: str
    scaled: Callable[[Plan, float], PlanRequest]


def _scaled_nodes(plan: Plan, factor: float, *, field: str) -> PlanRequest:
    """Every node's `field` times `factor`."""
    request = plan.request
    nodes = tuple(replace(node, **{field: getattr(node, field) * factor}) for node in request.cluster.nodes)
    return replace(request, cluster=replace(request.cluster, nodes=nodes))


def _scaled_gpu(plan: Plan, factor: float, *, field: str) -> PlanRequest:
    """The GPU's `field` times `factor`."""
    request = plan.request
    gpu = build(request.cluster).gpu
    value = getattr(gpu, field)
    scaled = {k: v * factor for k, v in value.items()} if isinstance(value, Mapping) else value * factor
    changed: dict[str, Any] = {field: scaled}
    others = tuple(other for other in request.cluster.gpus if other.name != gpu.name)
    return replace(request, cluster=replace(request.cluster, gpus=(*others, replace(gpu, **changed))))


def _scaled_price(plan: Plan, factor: float) -> PlanRequest:
    """The price of a GPU-hour of every node times `factor`."""
    spec = plan.request.cluster

    def scaled(rate: float | None) -> float | None:
        return None if rate is None else rate * factor

    changed = replace(
        spec,
        nodes=tuple(replace(node, usd_per_gpu_hour=scaled(node.usd_per_gpu_hour)) for node in spec.nodes),
        usd_per_gpu_hour=scaled(spec.usd_per_gpu_hour),
        idle_usd_per_hour=spec.idle_usd_per_hour * factor,
    )
    return replace(plan.request, cluster=changed)


FACTS: tuple[Fact, ...] = (
    Fact(name="GPU memory size", scaled=partial(_scaled_gpu, field="memory_bytes")),
    Fact(name="GPU memory bandwidth", scaled=partial(_scaled_gpu, field="memory_bandwidth_bytes_per_s")),
    Fact(name="scale-up bandwidth", scaled=partial(_scaled_nodes, field="scaleup_bandwidth_bytes_per_s")),
    Fact(name="network bandwidth", scaled=partial(_scaled_nodes, field="nic_bandwidth_bytes_per_s")),
    Fact(name="price of a GPU-hour", scaled=_scaled_price),
)


def sensitivities(
    plan: Plan, outcome: Callable[[Plan], float | None], planner: Planner, by: float = CHANGE
) -> Iterator[Sensitivity]:
    """How the outcome changes when each fact is `by` lower and higher and the job is planned anew."""
    base = outcome(plan)
    yield Sensitivity(name="kernel efficiency", **_of_efficiency(plan, by))
    for fact in FACTS:
        lowered, raised = (_outcome(plan, fact, 1 + sign * by, outcome, planner) for sign in (-1, 1))
        yield Sensitivity(name=fact.name, lowered=_relative(lowered, base), raised=_relative(raised, base))


def _of_efficiency(plan: Plan, by: float) -> dict[str, float]:
    """How the step changes when its kernels run `by` slower and faster, under the same layout.

    Kernel times are measured, not derived from a peak, so they are scaled and not planned anew: compute,
    recompute and the bubble they leave.
    """
    time = plan.estimate.time
    share = (time.compute_s + time.recompute_s + time.bubble_s) / plan.estimate.step_time_s
    return {"lowered": share * (1 / (1 - by) - 1), "raised": share * (1 / (1 + by) - 1)}


def _outcome(
    plan: Plan, fact: Fact, factor: float, outcome: Callable[[Plan], float | None], planner: Planner
) -> float | None:
    """The outcome with one fact changed; None without a plan."""
    changed = _planned(partial(fact.scaled, plan, factor), planner)
    return None if changed is None else outcome(changed)


def _relative(value: float | None, base: float | None) -> float | None:
    """Value over base, minus one."""
    return None if value is None or not base else value / base - 1


def step_per_token(plan: Plan) -> float:
    """Seconds per token: the outcome that stays comparable when the batch changes."""
    return plan.estimate.step_time_s / plan.request.job.tokens_per_step


def usual_counts(request: PlanRequest) -> tuple[int, ...]:
    """GPU counts worth comparing: half, the same and twice."""
    count = request.cluster.num_gpus
    return tuple(sorted({max(8, count // 2), count, count * 2}))
