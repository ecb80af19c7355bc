"""What scales a fleet in Kubernetes: objects that their schemas take, of metrics that the engines have."""

import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from planner.deployment.autoscale import (
    ADAPTER_FILE,
    HPA_FILE,
    IN_FLIGHT,
    KEDA_FILE,
    MONITOR_FILE,
    RATE,
    PoolScaling,
    Scaling,
    autoscale_files,
    quantity,
)
from planner.deployment.folder import folder
from planner.parsers.client import VARIABLE, interpreter
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, resized, varied
from tests.unit.planner.deployment.schemas import require_valid
from topology.base.errors import InputError

KEDA = {
    "scaleTargetRef": {"name": str, "apiVersion": str, "kind": str, "envSourceContainerName": str},
    "pollingInterval": int, "initialCooldownPeriod": int, "cooldownPeriod": int, "idleReplicaCount": int,
    "minReplicaCount": int, "maxReplicaCount": int, "fallback": dict,
    "advanced": {
        "horizontalPodAutoscalerConfig": {"behavior": dict, "name": str},
        "restoreToOriginalReplicaCount": bool, "scalingModifiers": dict,
    },
    "triggers": [{
        "type": str, "name": str, "useCachedMetrics": bool, "metricType": str, "authenticationRef": dict,
        "metadata": {
            "serverAddress": str, "query": str, "threshold": str, "activationThreshold": str, "namespace": str,
            "customHeaders": str, "ignoreNullValues": str, "queryParameters": str, "unsafeSsl": str,
            "timeout": str, "authModes": str,
        },
    }],
}  # fmt: skip
"""Fields of a ScaledObject and of its Prometheus scaler, whose values are all strings.

keda.sh/docs/2.22, ScaledObject specification and Scalers/Prometheus; apis/keda/v1alpha1/scaledobject_types.go.
"""


def scaling(plan: ServingPlan, rate: float = 9.87654) -> Scaling:
    """Thresholds of any size, for each pool of a plan."""
    pools = {
        role: PoolScaling(rate_per_s=rate, in_flight=2.5 * rate, fewest=1, most=pool.workers)
        for role, pool in plan.pools
    }
    return Scaling(pools=pools, start_up_s=240.0, cool_down_s=480.0)


@cache
def scalable() -> list[ServingPlan]:
    """Those of the sixty plans that Kubernetes can scale."""
    plans = [plan for plan in map(varied, SIXTY) if plan.request.engine != "trtllm"]
    return [plan for plan in plans if "kubernetes.yaml" in folder(plan)]


def strangers(value: Any, table: Any, where: str = "spec") -> list[str]:
    """Fields that a table does not have, or that hold something else."""
    if isinstance(table, dict) and isinstance(value, dict):
        found = [f"{where}.{key}" for key in value if key not in table]
        known = [key for key in value if key in table]
        return found + [one for key in known for one in strangers(value[key], table[key], f"{where}.{key}")]
    if isinstance(table, list) and isinstance(value, list):
        return [one for entry in value for one in strangers(entry, table[0], f"{where}[]")]
    return [] if isinstance(table, type) and isinstance(value, table) else [where]


def test_every_autoscaler_of_the_plans_is_valid_under_its_schema() -> None:
    """Kubernetes's own schema, strictly, of the HPA and of what KEDA hands on to one; KEDA's fields by a table."""
    plans = scalable()
    assert len(plans) >= 30
    for plan in plans:
        files = folder(plan, scaling(plan))
        hpas = list(yaml.safe_load_all(files[HPA_FILE]))
        for one in hpas:
            require_valid(one)
        for one, hpa in zip(yaml.safe_load_all(files[KEDA_FILE]), hpas, strict=True):
            assert (one["apiVersion"], one["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
            assert strangers(one["spec"], KEDA) == []
            assert one["spec"]["scaleTargetRef"] == hpa["spec"]["scaleTargetRef"]
            assert (
                one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
                == hpa["spec"]["behavior"]
            )
    assert strangers({"triggers": [{"metadata": {"threshold": 5}}], "replicas": 1}, KEDA) == [
        "spec.replicas", "spec.triggers[].metadata.threshold",
    ]  # fmt: skip


def test_what_is_scaled_is_in_the_manifest_and_says_no_number_itself() -> None:
    """An object applied again must not set back what the autoscaler chose; the monitor finds the pods' port."""
    for plan in scalable():
        files = folder(plan, scaling(plan))
        documents = list(yaml.safe_load_all(files["kubernetes.yaml"]))
        found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
        monitors = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(files[MONITOR_FILE])}
        for hpa in yaml.safe_load_all(files[HPA_FILE]):
            target = hpa["spec"]["scaleTargetRef"]
            one = found[target["kind"], target["name"]]
            assert one["apiVersion"] == target["apiVersion"]
            assert "replicas" not in one["spec"]
            spec = one["spec"]
            pod = (
                spec["leaderWorkerTemplate"]["workerTemplate"]
                if "leaderWorkerTemplate" in spec
                else spec["template"]
            )
            monitor = monitors[target["name"]]
            assert monitor["selector"]["matchLabels"] == pod["metadata"]["labels"]
            ports = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
            assert monitor["podMetricsEndpoints"][0]["port"] in ports
            assert ("--enable-metrics" in pod["spec"]["containers"][0]["command"]) == (
                plan.request.engine == "sglang"
            )
        assert len([line for line in files["README.md"].splitlines() if line]) <= 10
    assert all("replicas" in str(one) for one in map(folder, scalable()))


def test_metrics_of_the_adapter_are_those_that_the_autoscaler_asks_for() -> None:
    """By name; and KEDA's queries are of the same series."""
    for plan in scalable()[:4]:
        files = folder(plan, scaling(plan))
        rules = yaml.safe_load(files[ADAPTER_FILE])["rules"]["custom"]
        hpa = next(yaml.safe_load_all(files[HPA_FILE]))
        asked = [metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]]
        assert asked == [rule["name"]["as"] for rule in rules] == [RATE, IN_FLIGHT]
        triggers = next(yaml.safe_load_all(files[KEDA_FILE]))["spec"]["triggers"]
        for rule, trigger in zip(rules, triggers, strict=True):
            assert rule["seriesQuery"].partition("{")[0] in trigger["metadata"]["query"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_have_the_metrics(engine: str) -> None:
    """Every series is named in the source of the pinned version; Prometheus adds _total to a counter's name."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"no interpreter has {engine}: see {VARIABLE}")
    place = (
        "vllm/v1/metrics/loggers.py" if engine == "vllm" else "sglang/srt/observability/metrics_collector.py"
    )
    read = f"import sysconfig, pathlib; print(pathlib.Path(sysconfig.get_paths()['purelib'], {place!r}).read_text())"
    source = subprocess.run([str(python), "-c", read], capture_output=True, text=True, check=True).stdout
    rules = yaml.safe_load(
        autoscale_files(resized(engine, None, (2, 1)), scaling(resized(engine, None, (2, 1))))[ADAPTER_FILE]
    )
    queries = " ".join(rule["metricsQuery"] for rule in rules["rules"]["custom"])
    series = {word.partition("{")[0].rpartition("(")[2] for word in queries.split() if f"{engine}:" in word}
    assert len(series) == 3
    for name in series:
        assert f'"{name}"' in source or f'"{name.removesuffix("_total")}"' in source


@pytest.mark.parametrize("rate", [0.0123, 0.5, 3.333, 47.9, 1234.5])
def test_kubernetes_acts_before_a_worker_passes_what_it_serves(rate: float) -> None:
    """Its rule: no change while value/target is within a tenth of 1; above, one more worker at least."""
    plan = resized("vllm", None, (2, 1))
    hpa = yaml.safe_load(folder(plan, scaling(plan, rate))[HPA_FILE])
    for metric, most in zip(hpa["spec"]["metrics"], (rate, 2.5 * rate), strict=True):
        text = metric["pods"]["target"]["averageValue"]
        target = float(text.removesuffix("u")) * (1e-6 if text.endswith("u") else 1)
        assert most / 1.1 * 0.99 <= target <= most / 1.1
        assert quantity(target) == text or text.endswith("u")


def test_engines_and_fleets_that_cannot_be_scaled_are_refused() -> None:
    """In three lines that name what can."""
    for plan, words in (
        (resized("trtllm", None, (2, 1)), "--engine vllm or sglang"),
        (resized("vllm", None, (3, 16)), "--deploy dynamo"),
    ):
        with pytest.raises(InputError) as refused:
            folder(plan, scaling(plan))
        assert words in refused.value.fix
