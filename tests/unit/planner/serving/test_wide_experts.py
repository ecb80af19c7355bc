"""Experts over a whole rack of 72 GPUs: some are held twice, which memory, time and both engines are told."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import weights_bytes
from costmodel.serving.ops import experts_s
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.space import serving_layouts
from topology.builders import default_cluster

CAL = load_calibration()
R1 = model("deepseek-r1")


def deployed(ranks: int) -> Deployment:
    """R1 in fp8 on a rack of GB200, whole attention on every GPU."""
    return Deployment(
        model=R1, hierarchy=default_cluster("gb200", 72).hierarchy, stack=serving_stack("sglang"),
        layout=ServingLayout(attention_dp=ranks, ep=ranks), weights="fp8",
    )  # fmt: skip


def test_a_rack_holds_288_experts_of_256() -> None:
    """Four on each GPU, as 64 GPUs have four of 256: as many bytes, on every GPU."""
    rack, even = deployed(72), deployed(64)
    assert (rack.expert_copies, even.expert_copies) == (32, 0)
    assert weights_bytes(rack) == pytest.approx(weights_bytes(even))
    assert weights_bytes(deployed(32)) > weights_bytes(even)


def test_a_step_reads_as_much_and_computes_for_as_many() -> None:
    """With as many tokens a rank, experts of 72 ranks take about as long as those of 64."""
    m = np.array([8.0, 64.0, 256.0])
    rack, even = (experts_s(CAL, deployed(ranks), m) for ranks in (72, 64))
    assert rack == pytest.approx(even, rel=0.05)


def test_only_a_whole_domain_is_filled_with_copies() -> None:
    """Of engines that hold experts twice; a rack, and nothing between powers of two."""
    rack = {"most_gpus": 72, "domain_gpus": 72, "host_gpus": 4}
    plain = {one.ep for one in serving_layouts(R1, **rack) if one.attention_dp > 1}
    copied = {one.ep for one in serving_layouts(R1, **rack, copies_experts=True) if one.attention_dp > 1}
    assert copied - plain == {72}
    hosts = {"most_gpus": 64, "domain_gpus": 8, "host_gpus": 8, "copies_experts": True}
    assert all(R1.num_experts % one.ep == 0 for one in serving_layouts(R1, **hosts))
    few = model("mixtral-8x22b")  # of eight experts a rack would hold 64 twice
    assert all(few.num_experts % one.ep == 0 for one in serving_layouts(few, **rack, copies_experts=True))


def test_replicas_of_a_rack_are_laid_out_on_a_rack() -> None:
    """Kinds of smaller domains on eight hosts, as they were."""
    asked = understand_serving(ServeFlags(model="deepseek-r1", gpu="gb200,h200-sxm", rate="40/s"))
    sizes = {request.gpu: fabric.num_gpus for request, fabric in asked.requests if fabric.num_gpus > 8}
    assert sizes == {"gb200": 72, "h200-sxm": 64}
