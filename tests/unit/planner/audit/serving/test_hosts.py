"""A server lies on the hosts that its files say, and what slows them down is named first."""

from pathlib import Path

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags

CAL = load_calibration()
SGLANG = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.3-70B-Instruct --tp 8"
VLLM = "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 8 --max-model-len 8192"
ALONE = ServedLoad(
    source="flags",
    flags=ServeFlags(concurrency="1", input_tokens="512", output_tokens="64"),
    compares=False,
)


def audit(words: str, *loads: ServedLoad, cluster: str | None = None) -> ServingAudit:
    """What is said of a command on H100s."""
    reading = read_texts({"serve.sh": words})
    gpu = None if cluster else "h100-sxm"
    server = server_of(reading, model=None, gpu=gpu, cluster=cluster)
    assert isinstance(server, Server)
    return audited_server(CAL, reading, server, loads)


def token_s(found: ServingAudit) -> float:
    """The mean time per token."""
    assert found.loads[0].running is not None
    return found.loads[0].running.tpot_s


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (4, 2), (8, 1)])
def test_ranks_of_a_layer_over_hosts_are_priced_and_named(nodes: int, each: int) -> None:
    """An engine starts them evenly; more hosts are no faster than one."""
    found = audit(f"{SGLANG} --nnodes {nodes} --node-rank 0", ALONE)
    assert found.server is not None
    assert (found.server.host_gpus, found.num_gpus) == (each, 8)
    assert token_s(found) > token_s(audit(SGLANG, ALONE))
    text = dict(server_answer(found).sections[0].pairs)["slow"]  # type: ignore[union-attr]  # it is of pairs
    assert f"tp 8 spans {nodes} hosts of {each} GPU" in text


RAY = f"ray start --head --num-gpus=4\n{VLLM} --distributed-executor-backend ray"
POD = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: vllm
            command: [sh, -c, "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 8"]
            resources: {limits: {nvidia.com/gpu: "4"}}
            volumeMounts: [{mountPath: /dev/shm, name: dshm}]
"""


@pytest.mark.parametrize(("name", "text"), [("serve.sh", RAY), ("lws.yaml", POD)])
def test_hosts_of_ray_and_of_pods_are_the_servers(name: str, text: str) -> None:
    """A pod's GPUs are those of a host."""
    found = audited_server_texts({name: text}, ServeFlags(), {}, gpu="h100-sxm")
    assert found is not None
    assert found.server is not None
    assert found.server.host_gpus == 4
    assert any("tp 8 spans 2 hosts of 4 GPUs" in what for what, _ in found.slowing)


@pytest.mark.parametrize("words", [SGLANG, VLLM, f"{SGLANG} --pp 2 --nnodes 2 --node-rank 0"])
def test_ranks_within_a_host_are_not_named(words: str) -> None:
    """Stages over hosts are what is advised."""
    assert audit(words).slowing == ()


@pytest.mark.parametrize(
    ("line", "words", "is_named"),
    [
        ("export NCCL_P2P_DISABLE=1", VLLM, True),
        ("export NCCL_P2P_DISABLE=1", VLLM.replace("-size 8", "-size 1"), False),
        ("export NCCL_IB_DISABLE=1", VLLM, False),
        ("export NCCL_IB_DISABLE=1", f"{SGLANG} --nnodes 4 --node-rank 0", True),
    ],
)
def test_a_variable_is_named_where_it_slows_down(line: str, words: str, is_named: bool) -> None:
    """By the same table as a training job's."""
    named = [what for what, _ in audit(f"{line}\n{words}").slowing if what.startswith("NCCL")]
    assert bool(named) is is_named


def test_a_described_cluster_is_the_servers(tmp_path: Path) -> None:
    """Hosts of two with 10 Gbit/s between them are slower than those of the catalogue."""
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "hosts of two"\nfabric = "ethernet"\n[[nodes]]\ngpu = "h100-sxm"\ncount = 4\ngpus_per_node = 2\n'
        'nics_per_node = 1\nnic_bandwidth_bytes_per_s = "10 Gbit/s"\nnic_latency_s = "20 us"\n'
    )
    found = audit(SGLANG, ALONE, cluster=str(path))
    assert found.server is not None
    assert found.server.gpu == "h100-sxm"
    assert token_s(found) > 2 * token_s(audit(f"{SGLANG} --nnodes 4 --node-rank 0", ALONE))
