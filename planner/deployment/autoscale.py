"""What scales the pools of a manifest in Kubernetes: by requests a second and requests in flight.

Two metrics, of which Kubernetes and KEDA follow the one that asks for more. Requests a second grow with the
load alone, so a pool shrinks by them and does not swing; but a server that is overrun finishes no more of
them, so a pool also grows by the requests in flight. Thresholds are what one worker has at the highest rate
that it serves within the question's limits, by simulation, over the tenth that the controller tolerates.

Fields: autoscaling/v2 (kubernetes.io, HorizontalPodAutoscaler v2), keda.sh/v1alpha1 (keda.sh, ScaledObject
specification and its Prometheus scaler), monitoring.coreos.com/v1 (prometheus-operator.dev, PodMonitor),
rules of prometheus-adapter (its docs/config.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Final

from planner.deployment.kubernetes import DOOR, app_of, pool_name
from planner.engines.quoting import yaml
from planner.serving.plan import ServingPlan
from topology.base.errors import InputError

TOLERANCE: Final = 0.1
"""Share by which a metric may pass its target unnoticed: --horizontal-pod-autoscaler-tolerance's default."""
RATE, IN_FLIGHT = "requests_per_second", "requests_in_flight"
_MEAN_OVER: Final = "2m"
"""Four scrapes of half a minute: a rate of fewer is missing when one is lost."""
_LONGEST_WINDOW_S, _LONGEST_PERIOD_S = 3600, 1800
"""The most that autoscaling/v2 takes of a window and of a policy's period."""
PROMETHEUS: Final = "http://prometheus-operated.monitoring.svc:9090"
"""Where the operator's own Service puts it, in the namespace of its own example."""
_FINISHED: Final[Mapping[str, str]] = {
    "vllm": "vllm:request_success_total",
    "sglang": "sglang:num_requests_total",
}
_PRESENT: Final[Mapping[str, tuple[str, str]]] = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
}
HPA_FILE, KEDA_FILE, ADAPTER_FILE, MONITOR_FILE = (
    "autoscale-hpa.yaml", "autoscale-keda.yaml", "prometheus-adapter.yaml", "podmonitor.yaml",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScaling:
    """What one worker of a pool carries within the limits, and between how many of them a pool is scaled.

    `rate_per_s` is requests a second at the highest rate kept, `in_flight` the mean of requests that it then
    has, waiting or running.
    """

    rate_per_s: float
    in_flight: float
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How pools are scaled, by role; seconds until a worker serves, and until an idle one is given up."""

    pools: Mapping[str, PoolScaling]
    start_up_s: float
    cool_down_s: float


def autoscale_files(plan: ServingPlan, scaling: Scaling) -> dict[str, str]:
    """The files by name: what Prometheus reads, and what scales by that, either Kubernetes itself or KEDA."""
    check_scalable(plan)
    return {
        MONITOR_FILE: _monitors(plan),
        ADAPTER_FILE: _rules(plan),
        HPA_FILE: "---\n".join(_hpa(plan, role, scaling) for role in scaling.pools),
        KEDA_FILE: "---\n".join(_keda(plan, role, scaling) for role in scaling.pools),
    }


def check_scalable(plan: ServingPlan) -> None:
    """Refuse an engine that does not count its requests in flight for Prometheus."""
    engine = plan.request.engine
    if engine not in _PRESENT:
        raise InputError(
            what=f"no file can scale servers of {engine}",
            cause="trtllm-serve tells Prometheus what it finished, and nothing of what waits",
            fix="use --engine vllm or sglang, or leave out --autoscale",
        )


def _query(engine: str, metric: str, labels: str, by: str = "") -> str:
    """The metric as PromQL: the sum of the series with these labels, in all or `by` labels."""
    if metric == RATE:
        return f"sum(rate({_FINISHED[engine]}{{{labels}}}[{_MEAN_OVER}])){by}"
    return " + ".join(f"sum({series}{{{labels}}}){by}" for series in _PRESENT[engine])


def _targets(pool: PoolScaling) -> dict[str, float]:
    """The target of each metric a worker, so that it is passed by the tolerance where a limit breaks."""
    most = {RATE: pool.rate_per_s, IN_FLIGHT: pool.in_flight}
    return {metric: value / (1 + TOLERANCE) for metric, value in most.items()}


def quantity(value: float) -> str:
    """A Kubernetes quantity of three digits, rounded down, so that a limit is not passed by rounding.

    >>> quantity(18.1818), quantity(0.04567), quantity(2719.0)
    ('18.1', '45600u', '2710')
    """
    cut = _rounded_down(value)
    return f"{cut:.6g}" if cut >= 1 else f"{round(cut * 1e6)}u"


def _rounded_down(value: float) -> float:
    """A positive number cut to three digits."""
    digits = 2 - floor(log10(value))
    return floor(value * 10.0**digits * (1 + 1e-12)) / 10.0**digits


def _behavior(scaling: Scaling) -> dict[str, object]:
    """How fast: doubling once a start-up, since what was asked for is not there before; slowly down."""
    period = min(max(round(scaling.start_up_s), 1), _LONGEST_PERIOD_S)
    window = min(round(scaling.cool_down_s), _LONGEST_WINDOW_S)
    up = {"type": "Percent", "value": 100, "periodSeconds": period}
    down = {"type": "Pods", "value": 1, "periodSeconds": 60}
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [up]},
        "scaleDown": {"stabilizationWindowSeconds": window, "policies": [down]},
    }


def _target(plan: ServingPlan, role: str) -> dict[str, str]:
    """What is scaled: the Deployment of a pool, or its LeaderWorkerSet."""
    wide = plan.nodes_of(dict(plan.pools)[role]) > 1
    version, kind = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet") if wide else ("apps/v1", "Deployment")
    return {"apiVersion": version, "kind": kind, "name": pool_name(plan, role)}


def _head(plan: ServingPlan, role: str, scaling: Scaling) -> str:
    """What the thresholds are."""
    pool, job = scaling.pools[role], plan.request.job
    limited = any(limit is not None for limit in (job.ttft_s, job.tpot_s, job.end_to_end_s))
    what = f"p{job.percentile:g} of the limits kept" if limited else "the queue does not grow"
    return (
        f"# simulated: a worker serves {pool.rate_per_s:.3g} requests/s with {what}, and has "
        f"{pool.in_flight:.3g} in flight then\n"
        f"# targets are those / {1 + TOLERANCE:g} (the controller's tolerance); a worker takes "
        f"{scaling.start_up_s:g} s until it serves\n"
    )


def _hpa(plan: ServingPlan, role: str, scaling: Scaling) -> str:
    """The HorizontalPodAutoscaler of a pool."""
    pool = scaling.pools[role]
    metrics = [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": metric},
                "target": {"type": "AverageValue", "averageValue": quantity(value)},
            },
        }
        for metric, value in _targets(pool).items()
    ]
    spec = {
        "scaleTargetRef": _target(plan, role), "minReplicas": pool.fewest, "maxReplicas": pool.most,
        "metrics": metrics, "behavior": _behavior(scaling),
    }  # fmt: skip
    return _head(plan, role, scaling) + _document(
        "autoscaling/v2", "HorizontalPodAutoscaler", pool_name(plan, role), spec
    )


def _keda(plan: ServingPlan, role: str, scaling: Scaling) -> str:
    """The ScaledObject of a pool."""
    pool, labels = scaling.pools[role], f'app="{app_of(plan)}",pool="{role or "all"}"'
    triggers = [
        {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": PROMETHEUS,
                "query": _query(plan.request.engine, metric, labels),
                "threshold": f"{_rounded_down(value):.6g}",
            },
        }
        for metric, value in _targets(pool).items()
    ]
    spec = {
        "scaleTargetRef": _target(plan, role), "minReplicaCount": pool.fewest, "maxReplicaCount": pool.most,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}}, "triggers": triggers,
    }  # fmt: skip
    return _head(plan, role, scaling) + _document(
        "keda.sh/v1alpha1", "ScaledObject", pool_name(plan, role), spec
    )


def _monitors(plan: ServingPlan) -> str:
    """What Prometheus reads: the servers' own pages, with the labels of their pods."""
    return "---\n".join(
        _document(
            "monitoring.coreos.com/v1", "PodMonitor", pool_name(plan, role),
            {
                "selector": {"matchLabels": {"app": app_of(plan), "pool": role or "all"}},
                "podTargetLabels": ["app", "pool"],
                "podMetricsEndpoints": [{"port": DOOR, "path": "/metrics", "interval": "30s"}],
            },
        )
        for role, _ in plan.pools
    )  # fmt: skip


def _rules(plan: ServingPlan) -> str:
    """Values of prometheus-adapter's chart: the metrics of a pod under the names that the HPA asks for."""
    engine = plan.request.engine
    resources = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}
    rules = [
        {
            "seriesQuery": f'{series}{{namespace!="",pod!=""}}',
            "resources": resources,
            "name": {"as": metric},
            "metricsQuery": _query(engine, metric, "<<.LabelMatchers>>", " by (<<.GroupBy>>)"),
        }
        for metric, series in ((RATE, _FINISHED[engine]), (IN_FLIGHT, _PRESENT[engine][0]))
    ]
    return (
        "# helm upgrade --install prometheus-adapter prometheus-community/prometheus-adapter "
        f"-f {ADAPTER_FILE}\n" + yaml({"prometheus": {"url": PROMETHEUS.rpartition(":")[0], "port": 9090},
                                          "rules": {"default": False, "custom": rules}})
    )  # fmt: skip


def _document(version: str, kind: str, name: str, spec: Mapping[str, object]) -> str:
    """One Kubernetes object as YAML."""
    return yaml({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
