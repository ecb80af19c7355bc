"""What stands in front of the servers of a plan and spreads requests evenly, as the plan was simulated.

vLLM: `vllm-router` (github.com/vllm-project/router). SGLang: `sglang_router.launch_router` (docs.sglang.io,
PD Disaggregation). TensorRT-LLM: `trtllm-serve disaggregated` with its file (nvidia.github.io/TensorRT-LLM,
Disaggregated Serving) before two pools; before equal servers it has none, and nginx does it.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.deployment.kubernetes import PORT
from planner.deployment.placement import PlacedWorker, address

OPTIONS_FILE = "router.yaml"
NGINX_FILE = "router.conf"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # clients and other nodes reach it
_POLICIES = {
    "": "round_robin",
    "round-robin": "round_robin",
    "least-loaded": "power_of_two",
    "prefix-aware": "cache_aware",
}
"""Policies of both routers by ours; power_of_two takes the less loaded of two."""


def router_words(engine: str, servers: Sequence[PlacedWorker], *, nodes: int, policy: str = "") -> list[str]:
    """The words that start the router, by turns unless a policy is named; none before a single server."""
    if len(servers) == 1:
        return []
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[engine](servers, nodes, _POLICIES[policy])


def router_files(engine: str, servers: Sequence[PlacedWorker], *, nodes: int) -> dict[str, str]:
    """The file that the router reads, by its name, where it reads one."""
    if engine != "trtllm" or len(servers) == 1:
        return {}
    return {OPTIONS_FILE: _pools(servers, nodes)} if servers[0].role else {NGINX_FILE: _nginx(servers, nodes)}


def authority(server: PlacedWorker, nodes: int) -> str:
    """Host and port of a server's API; of several nodes its first."""
    return f"{address(server.nodes[0]) if nodes > 1 else '127.0.0.1'}:{server.port}"


def _vllm(servers: Sequence[PlacedWorker], nodes: int, policy: str) -> list[str]:
    """`vllm-router`."""
    words = ["vllm-router", "--host", EVERYWHERE, "--port", str(PORT), "--policy", policy]
    if not servers[0].role:
        return [*words, "--worker-urls", *(f"http://{authority(server, nodes)}" for server in servers)]
    urls = [word for server in servers for word in (f"--{server.role}", f"http://{authority(server, nodes)}")]
    return [*words, "--vllm-pd-disaggregation", *urls]


def _sglang(servers: Sequence[PlacedWorker], nodes: int, policy: str) -> list[str]:
    """`sglang_router.launch_router`; of a prefill server it is told the bootstrap port too."""
    words = ["python", "-m", "sglang_router.launch_router", "--host", EVERYWHERE, "--port", str(PORT)]
    words += ["--policy", policy]
    if not servers[0].role:
        return [*words, "--worker-urls", *(f"http://{authority(server, nodes)}" for server in servers)]
    urls: list[str] = []
    for server in servers:
        bootstrap = [str(server.bootstrap_port)] if server.role == "prefill" else []
        urls += [f"--{server.role}", f"http://{authority(server, nodes)}", *bootstrap]
    return [*words, "--pd-disaggregation", *urls]


def _trtllm(servers: Sequence[PlacedWorker], _nodes: int, _policy: str) -> list[str]:
    """`trtllm-serve disaggregated`, or nginx."""
    if servers[0].role:
        return ["trtllm-serve", "disaggregated", "-c", OPTIONS_FILE]
    return ["nginx", "-p", ".", "-c", NGINX_FILE, "-g", "daemon off;"]


def _pools(servers: Sequence[PlacedWorker], nodes: int) -> str:
    """The YAML of both pools."""
    lines = [f"hostname: {EVERYWHERE}", f"port: {PORT}", "backend: pytorch"]
    for role, key in (("prefill", "context_servers"), ("decode", "generation_servers")):
        urls = [authority(server, nodes) for server in servers if server.role == role]
        lines += [f"{key}:", f"  num_instances: {len(urls)}", "  urls:", *(f'  - "{url}"' for url in urls)]
    return "\n".join(lines)


def _nginx(servers: Sequence[PlacedWorker], nodes: int) -> str:
    """The configuration of nginx: round robin is its default; answers are passed on token by token."""
    workers = "".join(f"    server {authority(server, nodes)};\n" for server in servers)
    return (
        "pid router.pid;\nerror_log stderr;\nevents { worker_connections 16384; }\n"
        "http {\n  access_log off;\n"
        f"  upstream workers {{\n{workers}  }}\n  server {{\n    listen {PORT};\n    location / {{\n"
        "      proxy_pass http://workers;\n      proxy_http_version 1.1;\n      proxy_buffering off;\n"
        "      proxy_read_timeout 1h;\n    }\n  }\n}"
    )
