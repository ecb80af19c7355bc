"""Kubernetes manifests start servers that can be reached, with every file they name, on every node."""

from typing import Any

import pytest
import yaml

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.deployment.vllm_sglang import commands
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()
ENGINES = ("vllm", "sglang", "trtllm")


def written(
    engine: str, pins: dict[str, int], *, gpus: int = 8, mode: str = "aggregated", gpu: str = "h200-sxm"
) -> dict[str, str]:
    """The commands of Llama 70B in fp8, in nodes of eight."""
    request = ServingRequest(
        model=model("70b"), job=ServingJob(input_tokens=1000, output_tokens=200, concurrency=16)
        if mode == "aggregated" else ServingJob(input_tokens=1000, output_tokens=200),
        gpu=gpu, num_gpus=gpus, engine=engine, weights=("fp8",), pins=pins, modes=(mode,),  # type: ignore[arg-type]  # its literals
    )  # fmt: skip
    plan = search_serving(CAL, request, default_cluster(gpu, gpus).hierarchy)
    assert isinstance(plan, ServingPlan), plan
    return dict(commands(plan))


def documents(manifest: str) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return list(yaml.safe_load_all(manifest))


def pods(manifest: str) -> list[dict[str, Any]]:
    """The pods of its Deployments and LeaderWorkerSets."""
    specs = [
        each["spec"] for each in documents(manifest) if each["kind"] in ("Deployment", "LeaderWorkerSet")
    ]
    return [
        (spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["workerTemplate"])["spec"]
        for spec in specs
    ]


def started(manifest: str) -> list[list[str]]:
    """The commands of the containers."""
    return [container["command"] for pod in pods(manifest) for container in pod["containers"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_servers_in_pods_listen_on_every_address(engine: str) -> None:
    """SGLang and trtllm-serve bind localhost by default, where no probe and no Service reaches them."""
    (words,) = started(written(engine, {"tp": 4})["kubernetes"])
    assert words[words.index("--host") + 1] == "0.0.0.0"  # noqa: S104  # inside a pod


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_pods_ask_for_the_gpus_of_their_maker_and_its_image(engine: str) -> None:
    """The device plugins of NVIDIA and AMD have resources of their own, and CUDA's image starts on no MI300X."""
    ours, theirs = (written(engine, {"tp": 4}, gpu=gpu)["kubernetes"] for gpu in ("h200-sxm", "mi300x"))
    assert ("nvidia.com/gpu: 4" in ours, "amd.com/gpu" in ours) == (True, False)
    assert ("amd.com/gpu: 4" in theirs, "nvidia.com/gpu" in theirs) == (True, False)
    images = [{pod["containers"][0]["image"] for pod in pods(each)} for each in (ours, theirs)]
    assert all(images)
    assert not images[0] & images[1]


def test_an_engine_without_software_for_the_gpu_is_refused() -> None:
    """TensorRT-LLM is CUDA's alone."""
    with pytest.raises(InputError, match="trtllm does not run on mi300x"):
        written("trtllm", {"tp": 4}, gpu="mi300x")


def test_the_options_file_of_a_container_is_mounted_where_its_command_looks() -> None:
    """The ConfigMap holds the text that is printed beside the command."""
    found = written("trtllm", {"tp": 4}, mode="disaggregated")
    words, _decode, router = started(found["kubernetes"])
    assert router[:2] == ["trtllm-serve", "disaggregated"]
    path = words[words.index("--extra_llm_api_options") + 1]
    directory, _, file = path.rpartition("/")
    (pod, *_), name = pods(found["kubernetes"]), "llama-3-1-70b-prefill-options"
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == directory]
    assert {"name": mount["name"], "configMap": {"name": name}} in pod["volumes"]
    maps = {each["metadata"]["name"]: each for each in documents(found["kubernetes"]) if "data" in each}
    assert maps[name]["data"][file].splitlines() == found[file].splitlines()
    block = found["kubernetes"].partition(f"  {file}: |\n")[2].partition("---")[0]
    assert [line.removeprefix("    ") for line in block.splitlines()] == found[file].splitlines()


def test_a_worker_over_two_nodes_of_sglang_is_told_its_rank_and_its_leader() -> None:
    """The variables of the LeaderWorkerSet controller; the Service selects the leaders."""
    manifest = written("sglang", {"tp": 8, "pp": 2}, gpus=16)["kubernetes"]
    (words,) = started(manifest)
    assert 'kind: "LeaderWorkerSet"' in manifest
    assert "size: 2" in manifest
    assert words[words.index("--nnodes") + 1] == "$(LWS_GROUP_SIZE)"
    assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert words[words.index("--dist-init-addr") + 1].startswith("$(LWS_LEADER_ADDRESS):")
    assert 'worker-index: "0"' in manifest.rpartition("---")[2]


def test_pods_of_a_worker_ask_for_its_gpus_and_no_more() -> None:
    """Twelve GPUs on two nodes of eight are two pods of six."""
    manifest = written("sglang", {"tp": 2, "pp": 6}, gpus=16)["kubernetes"]
    assert ("size: 2" in manifest, "nvidia.com/gpu: 6" in manifest) == (True, True)


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_a_worker_over_two_nodes_of_the_others_is_refused_in_three_lines(engine: str) -> None:
    """Their first node starts another command than the others: no manifest rather than a wrong one."""
    manifest = written(engine, {"tp": 8, "pp": 2}, gpus=16)["kubernetes"]
    assert len(manifest.splitlines()) == 3
    assert all(line.startswith("# ") for line in manifest.splitlines())
    assert "spans nodes of 8 GPUs" in manifest


def test_two_pools_name_the_router_that_they_need() -> None:
    """It is one of the commands, and a Deployment of the manifest."""
    found = written("sglang", {"tp": 4}, mode="disaggregated")
    assert found["router"].startswith("python -m sglang_router.launch_router ")
    *_, words = started(found["kubernetes"])
    assert "sglang_router.launch_router --pd-disaggregation" in words[-1]
