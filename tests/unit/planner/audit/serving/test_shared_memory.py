"""Ranks of a container need more shared memory than the usual 64 MB."""

import pytest

from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags

POD = """apiVersion: v1
kind: Pod
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.11.0
      args: ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--tensor-parallel-size", "{tp}"]
      {mount}
"""
MOUNT = "volumeMounts: [{mountPath: /dev/shm, name: dshm}]"
RUN = "docker run --gpus all {flag} vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct {tp}"


@pytest.mark.parametrize(
    ("name", "text", "starts"),
    [
        ("pod.yaml", POD.format(tp=4, mount=""), None),
        ("pod.yaml", POD.format(tp=1, mount=""), True),
        ("pod.yaml", POD.format(tp=4, mount=MOUNT), True),
        ("run.sh", RUN.format(flag="", tp="--tensor-parallel-size 2"), None),
        ("run.sh", RUN.format(flag="--ipc=host", tp="--tensor-parallel-size 2"), True),
        ("run.sh", RUN.format(flag="--shm-size 16g", tp="--tensor-parallel-size 2"), True),
        ("run.sh", "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2", True),
    ],
)
def test_ranks_in_a_container_need_shared_memory(name: str, text: str, starts: bool | None) -> None:
    """It depends on the runtime, so it is no sure verdict, and is said first."""
    found = audited_server_texts({name: text}, ServeFlags(), {}, gpu="h100-sxm")
    assert found is not None
    assert found.start is not None
    assert found.start.starts is starts
    assert ("/dev/shm" in found.start.why) is (starts is None)
