"""A replica over two kinds of GPU, beside every split of its layers served out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.serving.deployment import ServingLayout
from planner.analysis.serving.fleets import find_fleet
from planner.audit.read import read_texts
from planner.audit.serving.server import Server, server_of
from planner.deployment.folder import folder
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.fleet import run_closed
from planner.serving.plan import serving_from_json, serving_to_json
from planner.serving.replica import Rejected, build_option
from planner.serving.space import deployment_of
from tests.counts import cases_of_run
from topology.base.errors import InputError

KINDS = ("rtx-5080", "rtx-5090")
NODE = """[[nodes]]
gpu = "{gpu}"
count = 1
gpus_per_node = 1
scaleup = "pcie"
scaleup_bandwidth_bytes_per_s = "64 GB/s"
host_bandwidth_bytes_per_s = "64 GB/s"
nics_per_node = 1
nic_bandwidth_bytes_per_s = "100 Gbit/s"
"""
CASES = [("qwen3-30b-a3b", "fp8", 24), ("qwen3-30b-a3b", "fp8", 4), ("qwen3-8b", "bf16", 64)]


def asked(tmp_path: Path, model: str, weights: str, concurrency: int) -> Asked:
    """A closed loop on a desk with a card of each kind."""
    desk = tmp_path / "desk.toml"
    desk.write_text(
        'name = "desk"\nrail_optimized = false\n' + "".join(NODE.format(gpu=gpu) for gpu in KINDS)
    )
    return understand_serving(
        ServeFlags(
            model=model,
            cluster=str(desk),
            weights=weights,
            concurrency=str(concurrency),
            kv_dtype="bf16",
            mode="aggregated",
            input_tokens="2000",
            output_tokens="200",
        )
    )


@pytest.mark.parametrize(("model", "weights", "concurrency"), cases_of_run(CASES, CASES[1:]))
def test_the_split_that_is_planned_answers_most_of_all(
    tmp_path: Path, model: str, weights: str, concurrency: int
) -> None:
    """Every split of the layers over both cards, with every size of a step."""
    question = asked(tmp_path, model, weights, concurrency)
    plan = find_fleet(question)
    (request, hierarchy), layers = question.requests[0], plan.request.model.num_layers
    served = []
    for first in range(1, layers):
        layout = ServingLayout(pp=2, layers=(first, layers - first), gpus=KINDS)
        option = build_option(
            load_calibration(), deployment_of(request, hierarchy, request.weights[0], layout), request.job
        )
        if not isinstance(option, Rejected):
            runs = (
                run_closed(replace(option, rules=rules), 1, concurrency, which=0)
                for rules in option.schedulers
            )
            served.append(max(run.request_rate_per_s for run in runs))
    assert plan.decode.layout.gpus == KINDS
    assert plan.estimate.served_per_s == pytest.approx(max(served), rel=0.01)
    assert plan.gpus_in_words == "1 × rtx-5080 + 1 × rtx-5090"


def test_the_split_is_written_and_read_back(tmp_path: Path) -> None:
    """Scripts have the variable on each node; no pod is told it; the document keeps it."""
    plan = find_fleet(asked(tmp_path, *CASES[0]))
    layers = plan.decode.layout.layers
    words = f"VLLM_PP_LAYER_PARTITION={layers[0]},{layers[1]}"
    files = folder(plan)
    assert [words in files[f"node{node}.sh"] for node in (0, 1)] == [True, True]
    assert "kubernetes.yaml" not in files
    with pytest.raises(InputError, match="cannot start this fleet"):
        folder(plan, forms=("scripts", "dynamo"))
    assert serving_from_json(serving_to_json(plan)).decode.layout == plan.decode.layout
    server = server_of(read_texts({"node0.sh": files["node0.sh"]}), model=None, gpu=",".join(KINDS))
    assert isinstance(server, Server)
    assert server.layout == plan.decode.layout
