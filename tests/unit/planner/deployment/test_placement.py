"""Every server has GPUs and ports of its own, and the router knows them all."""

import re
import shlex
from collections import Counter

import pytest

from planner.deployment.placement import nodes_of, servers_of
from planner.deployment.vllm_sglang import commands, option_files, router, server_commands
from tests.unit.planner.deployment.fleets import SIZES, resized


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
