"""Every server has GPUs and ports of its own, and the router knows them all."""

import re
import shlex
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from planner.deployment.placement import nodes_of, servers_of
from planner.deployment.vllm_sglang import commands, option_files, router, server_commands
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.builders import default_cluster


@cache
def planned(engine: str) -> ServingPlan:
    """Two pools on eight GPUs."""
    job = ServingJob(input_tokens=1000, output_tokens=200)
    request = ServingRequest(
        model=model("8b"), job=job, gpu="h100-sxm", num_gpus=8, engine=engine, modes=("disaggregated",),
        pins={"tp": 2, "pp": 1},
    )  # fmt: skip
    found = search_serving(load_calibration(), request, default_cluster("h100-sxm", 8).hierarchy)
    assert isinstance(found, ServingPlan)
    return found


def resized(engine: str, prefill: tuple[int, int] | None, decode: tuple[int, int]) -> ServingPlan:
    """That plan with other pools: workers and their tensor-parallel degree."""
    plan = planned(engine)
    pool = plan.decode

    def of(size: tuple[int, int] | None) -> object:
        return size and replace(pool, workers=size[0], layout=ServingLayout(tp=size[1]))

    return replace(plan, prefill=of(prefill), decode=of(decode))  # type: ignore[arg-type]  # no pool is None


SIZES = [
    (None, (1, 8)), (None, (3, 2)), (None, (20, 2)), (None, (3, 16)), ((1, 4), (1, 4)), ((3, 2), (2, 8)),
    ((5, 3), (3, 4)), ((2, 1), (1, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("prefill", "decode"), SIZES)
def test_servers_share_no_gpu_and_no_port(prefill: tuple[int, int] | None, decode: tuple[int, int]) -> None:
    """Every GPU of a node has one server at most, and so has each of a node's ports."""
    plan = resized("sglang", prefill, decode)
    servers = servers_of(plan)
    assert len(servers) == sum(pool.workers for _, pool in plan.pools)
    taken = Counter((node, gpu) for one in servers for node in one.nodes for gpu in one.gpus)
    assert set(taken.values()) == {1}
    assert len(taken) == sum(pool.num_gpus for _, pool in plan.pools)
    assert {gpu for _, gpu in taken} <= set(range(plan.gpus_per_node))
    ports = Counter(
        (node, port)
        for one in servers
        for node in one.nodes
        for port in (one.port, one.side_channel_port, one.bootstrap_port)
    )
    assert set(ports.values()) == {1}
    assert [one.port == 8000 for one in servers] == [len(servers) == 1] * len(servers)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("prefill", "decode"), SIZES)
def test_the_router_asks_every_server_where_it_listens(
    engine: str, prefill: tuple[int, int] | None, decode: tuple[int, int]
) -> None:
    """Hosts and ports in the router's words or file are those in the servers' commands; one needs none."""
    plan = resized(engine, prefill, decode)
    servers = servers_of(plan)
    told = " ".join([*router(plan), *option_files(plan).values()])
    found = re.findall(r"(127\.0\.0\.1|<address of node \d+>):(8[1-9]\d\d)", told)
    several = nodes_of(servers) > 1
    expected = []
    for one in servers:
        words = next(iter(server_commands(plan, one).values()))
        port = words[words.index("--port") + 1]
        expected.append((f"<address of node {one.nodes[0]}>" if several else "127.0.0.1", port))
    assert sorted(found) == (sorted(expected) if len(servers) > 1 else [])


def test_every_process_sees_its_gpus_and_vllm_says_where_caches_are_fetched() -> None:
    """Two servers on one node of eight: four GPUs each, and a side channel each."""
    found = commands(resized("vllm", (1, 4), (1, 4)))
    said = [dict(w.split("=") for w in shlex.split(found[f"serve ({role})"]) if re.match(r"[A-Z_]+=", w))
            for role in ("prefill", "decode")]  # fmt: skip
    host = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
    assert said == [
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600", **host},
        {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5604", **host},
    ]
    assert shlex.split(found["router"])[-4:] == [
        "--prefill", "http://127.0.0.1:8100", "--decode", "http://127.0.0.1:8500",
    ]  # fmt: skip


def test_sglang_meets_at_the_bootstrap_port_that_the_router_knows() -> None:
    """The flag of a prefill server is the number after its URL."""
    found = commands(resized("sglang", (2, 2), (1, 4)))
    words = shlex.split(found["router"])
    for number in (0, 1):
        server = shlex.split(found[f"serve (prefill {number})"])
        port = server[server.index("--disaggregation-bootstrap-port") + 1]
        at = words.index(f"http://127.0.0.1:{server[server.index('--port') + 1]}")
        assert words[at - 1 : at + 2 : 2] == ["--prefill", port]


def test_of_a_large_fleet_the_first_workers_are_shown() -> None:
    """Sixteen commands at most beside each other; the folder has all."""
    found = commands(resized("vllm", (20, 2), (10, 4)))
    assert [name for name in found if name.startswith("serve")] == [
        "serve (prefill 0, node 5)", "serve (decode 0, node 0)",
    ]  # fmt: skip
    assert "30 servers: --save-dir DIR writes a script for every node" in found["notes"]
