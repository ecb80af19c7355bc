"""Manifests of sixty plans: every document is what Kubernetes's own schema says, and two pools meet in a router."""

import re
from typing import Any

import pytest
import yaml

from planner.deployment.folder import folder
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, resized, varied

BUILT_IN = {
    "ConfigMap",
    "Deployment",
    "PersistentVolumeClaim",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
}
OTHERS = {"LeaderWorkerSet"}


def documents(plan: ServingPlan) -> list[dict[str, Any]]:
    """What the folder's manifest holds, nothing where it has none."""
    return list(yaml.safe_load_all(folder(plan).get("kubernetes.yaml", "")))


def test_every_document_of_sixty_plans_is_valid_under_its_schema() -> None:
    """Strictly: a field that the schema does not have is a mistake; the pod of a LeaderWorkerSet is held as one."""
    validator = pytest.importorskip("kubernetes_validate")
    kinds: set[str] = set()
    for plan in map(varied, SIXTY):
        for one in documents(plan):
            kinds.add(one["kind"])
            if one["kind"] == "LeaderWorkerSet":
                template = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
                one = {  # noqa: PLW2901  # its pods, as a Deployment would hold them
                    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": one["metadata"],
                    "spec": {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template},
                }  # fmt: skip
            validator.validate(one, "1.37", strict=True)
    assert kinds == BUILT_IN | OTHERS


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_clients_reach_a_router_that_finds_both_pools(engine: str) -> None:
    """The Service selects the router, whose words or file name the labels or Services of both pools."""
    found = documents(resized(engine, (2, 1), (1, 2)))
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in found}
    app = "llama-3-1-8b"
    assert by_name["Service", app]["spec"]["selector"] == {"app": app, "pool": "router"}
    router = by_name["Deployment", f"{app}-router"]["spec"]["template"]
    assert router["metadata"]["labels"] == {"app": app, "pool": "router"}
    if engine == "trtllm":
        addresses = by_name["ConfigMap", f"{app}-router"]["data"]["router.yaml"]
        told = re.findall(r'- "(.*):8000"', addresses)
        selected = [by_name["Service", name]["spec"]["selector"]["pool"] for name in told]
    else:
        words = router["spec"]["containers"][0]["command"][-1]
        selected = re.findall(rf"app={app} pool=(\w+)", words)
        assert by_name["Role", f"{app}-router"]["rules"][0]["verbs"] == ["get", "list", "watch"]
    assert selected == ["prefill", "decode"]
    for role in selected:
        assert (
            by_name["Deployment", f"{app}-{role}"]["spec"]["template"]["metadata"]["labels"]["pool"] == role
        )


def test_pods_that_move_caches_are_given_what_that_takes() -> None:
    """An address that others reach, RDMA, pinned memory; one pool asks for none of it."""
    two, one = documents(resized("vllm", (2, 1), (1, 2))), documents(resized("vllm", None, (3, 2)))
    names = {"VLLM_NIXL_SIDE_CHANNEL_HOST"}
    for found, wanted in ((two, True), (one, False)):
        pods = [
            each["spec"]["template"]["spec"]["containers"][0] for each in found
            if each["kind"] == "Deployment" and not each["metadata"]["name"].endswith("-router")
        ]  # fmt: skip
        assert len(pods) == 1 + wanted
        for pod in pods:
            assert (names <= {entry["name"] for entry in pod["env"]}) == wanted
            assert any(key.startswith("rdma/") for key in pod["resources"]["limits"]) == wanted
            assert ("IPC_LOCK" in str(pod.get("securityContext"))) == wanted


def test_images_are_of_versions_and_weights_are_kept() -> None:
    """Tomorrow's pull is today's server; gated weights are read by a secret, once for all pods."""
    token = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    servers = 0
    for plan in map(varied, SIXTY):
        for one in documents(plan):
            template = one.get("spec", {}).get("template")
            if one["kind"] == "LeaderWorkerSet":
                template = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            for pod in template["spec"]["containers"] if template else ():
                assert re.search(r":v?\d+\.\d+", pod["image"]), pod["image"]
                if pod["name"] in ("vllm", "sglang", "trtllm"):
                    servers += 1
                    assert {"name": "HF_TOKEN", "valueFrom": token} in pod["env"]
                    assert "claimName" in str(template["spec"]["volumes"])
    assert servers >= len(SIXTY) / 2
