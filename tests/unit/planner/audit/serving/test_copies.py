"""Equal servers are counted: files of several nodes, a router's places, replicas of manifests and charts."""

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.copies import with_copies
from planner.audit.serving.server import Server, server_of

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
NODE = f"#!/bin/bash\n{SERVE} --port 8000\n"
LATER = f"#!/bin/bash\n{SERVE} --nnodes 2 --node-rank 1 --headless\n"
ROUTER = "#!/bin/bash\nvllm-router --port 80 --worker-urls http://a:8000 http://b:8000 \\\n  http://c:8000\n"
NGINX = """upstream vllm {
    least_conn;
    server vllm0:8000 max_fails=3;
    server vllm1:8000;
    server vllm2:8000;  # server vllm9:8000 is away
    server vllm3:8000 down;
}
server { listen 80; location / { proxy_pass http://vllm; } }
"""
POD = "containers:\n        - name: vllm\n          command: [{}]\n"
DEPLOYMENT = "kind: Deployment\nspec:\n  replicas: {}\n  template:\n    spec:\n      " + POD.format(
    ", ".join(f'"{word}"' for word in SERVE.split())
)
VALUES = """servingEngineSpec:
  modelSpec:
    - modelURL: meta-llama/Llama-3.1-8B-Instruct
      replicaCount: 4
      vllmConfig: {tensorParallelSize: 1}
routerSpec:
  replicaCount: 2
"""


def counted(texts: dict[str, str]) -> Server:
    """The server of texts with its copies."""
    server = server_of(read_texts(texts, {}), model=None, gpu="h100-sxm")
    assert isinstance(server, Server)
    return with_copies(server, texts, {})


@pytest.mark.parametrize(
    ("texts", "servers"),
    [
        ({"serve.sh": NODE}, 1),
        ({"node0.sh": NODE, "node1.sh": NODE}, 2),
        ({"node0.sh": NODE, "node1.sh": LATER}, 1),
        ({"serve.sh": f"#!/bin/bash\n{SERVE} --port 8001 &\n{SERVE} --port 8002 &\nwait\n"}, 2),
        ({"sweep.sh": f"#!/bin/bash\nfor c in 1 2 4; do\n{SERVE} --port 8001 &\nkill $!\ndone\n"}, 1),
        ({"serve.sh": NODE, "router.sh": ROUTER}, 3),
        ({"pod.yaml": DEPLOYMENT.format(1)}, 1),
        ({"pod.yaml": DEPLOYMENT.format(8)}, 8),
        ({"pod.yaml": DEPLOYMENT.format(4), "node0.sh": NODE}, 4),
        ({"values.yaml": VALUES}, 4),
        ({"serve.sh": NODE, "nginx.conf": NGINX}, 3),
    ],
)
def test_every_equal_server_is_counted_once(texts: dict[str, str], servers: int) -> None:
    """A later node of one server, and one that is started anew at its port, are no further servers."""
    server = counted(texts)
    assert server.replicas == servers
    assert any("equal servers" in text for text in server.assumed) == (servers > 1)


def test_servers_that_differ_are_not_added() -> None:
    """One is judged, and the answer says so."""
    server = counted({"serve.sh": f"#!/bin/bash\n{SERVE} &\n{SERVE} --port 8001 --max-num-seqs 8 &\n"})
    assert server.replicas == 1
    assert "2 servers are named that differ; one is judged, and the rate is its own" in server.assumed
