"""Servers of Ray Serve: a configuration of its own, or one as a text in a RayService."""

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.copies import with_copies
from planner.audit.serving.server import Server, server_of

APPLICATIONS = """applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: my-model, model_source: Qwen/Qwen2.5-32B-Instruct}
      accelerator_type: L40S
      engine_kwargs: {tensor_parallel_size: 8, max_model_len: 8192}
"""
SERVICE = "apiVersion: ray.io/v1\nkind: RayService\nspec:\n  serveConfigV2: |\n" + "".join(
    f"    {line}\n" for line in APPLICATIONS.splitlines()
)


@pytest.mark.parametrize("text", [APPLICATIONS, SERVICE])
def test_llm_configs_are_a_server_of_vllm(text: str) -> None:
    """Its checkpoint is the source; the id is what clients call it."""
    reading = read_texts({"serve.yaml": text})
    server = server_of(reading, model=None, gpu=None)
    assert isinstance(server, Server)
    assert (server.engine, server.model.name, server.gpu) == ("vllm", "qwen2.5-32b", "l40s")
    assert (server.layout.tp, server.longest) == (8, 8192)


GROUPS = """  rayClusterConfig:
    workerGroupSpecs:
    - groupName: gpus
      replicas: 2
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "8"}}}]}}
"""


@pytest.mark.parametrize(
    ("extra", "copies"), [("", 1), ("          deployment_config: {num_replicas: 3}\n", 3)]
)
def test_hosts_of_a_ray_cluster_are_no_copies(extra: str, copies: int) -> None:
    """A group's replicas are hosts on which one server lies; copies are the deployment's own."""
    text = SERVICE.replace("          engine_kwargs", f"{extra}          engine_kwargs") + GROUPS
    server = server_of(read_texts({"serve.yaml": text}), model=None, gpu=None)
    assert isinstance(server, Server)
    assert with_copies(server, {"serve.yaml": text}, {}).replicas == copies


def test_a_line_of_an_inner_configuration_is_that_of_the_file() -> None:
    fact = read_texts({"serve.yaml": SERVICE}).facts.by_field["layout.tp"]
    assert "tensor_parallel_size: 8" in SERVICE.splitlines()[fact.line - 1]
