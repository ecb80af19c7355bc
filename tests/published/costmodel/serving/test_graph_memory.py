"""What logs print of captured graphs, beside what is computed; and where engines count none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import at_version, serving_stack
from costmodel.serving.graph_memory import captured_sizes, graphs_bytes
from costmodel.serving.memory import cache_left_bytes
from topology.base.units import GIB
from topology.builders import default_cluster


def deployed(name: str, gpu: str, version: str, *, tp: int = 1, graph_batch: int | None = None) -> Deployment:
    """A model on GPUs of a kind, by a release of vLLM."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster(gpu, 8).hierarchy,
        layout=ServingLayout(tp=tp),
        stack=replace(at_version(serving_stack("vllm"), version), graph_batch=graph_batch),
    )


@pytest.mark.parametrize(
    ("name", "gpu", "tp", "version", "batch", "graph_batch", "printed_gib"),
    [
        ("qwen2.5-72b", "l40s", 4, "0.20", 256, None, 2.73),
        ("qwen3.8-27b", "gb10", 1, "0.27.1", 256, None, 1.56),
        ("qwen3.8-27b", "l40s", 1, "0.26.0", 256, None, 1.11),
        ("qwen3.5-35b-a3b", "gb10", 1, "0.20.0", 1024, 1, 0.43),
        ("qwen3.5-35b-a3b", "rtx-5090", 1, "0.20.0", 4, 4, 0.45),
        ("qwen3-8b", "rtx-4090", 1, "0.21.0", 256, None, 0.52),
        ("llama-3.1-8b", "a100-sxm-80gb", 1, "0.31.0", 256, None, 0.23),
    ],
)
def test_graphs_take_about_what_logs_print(
    name: str, gpu: str, tp: int, version: str, batch: int, graph_batch: int | None, printed_gib: float
) -> None:
    """Within two fifths: one number of a layer and graph stands for kernels of all models."""
    held = graphs_bytes(deployed(name, gpu, version, tp=tp, graph_batch=graph_batch), batch)
    assert held / GIB == pytest.approx(printed_gib, rel=0.4)


@pytest.mark.parametrize(
    ("name", "version", "graph_batch", "counts"),
    [
        ("qwen3-8b", "0.19.1", None, False), ("qwen3-8b", "0.21.0", None, True),
        ("qwen3-8b", "0.21.0", 0, False), ("qwen3-8b", "0.26.0", None, False),
        ("qwen3.5-35b-a3b", "0.26.0", None, True), ("qwen3.8-27b", "0.26.0", None, True),
        ("qwen3-8b", "0.29.0", None, True), ("qwen3-8b", "", None, True),
    ],
)  # fmt: skip
def test_a_release_counts_graphs_by_its_runner(
    name: str, version: str, graph_batch: int | None, counts: bool
) -> None:
    """None before v0.20, of eager servers, and of the second runner until v0.29, which plain models had first."""
    assert (graphs_bytes(deployed(name, "h100-sxm", version, graph_batch=graph_batch), 256) > 0) is counts


def test_fewer_requests_leave_more_cache() -> None:
    """By graphs alone: a Qwen3.8-27B on an L40S had 0.93 GiB more with 16 requests than with 256 (a report)."""
    few, many = (
        cache_left_bytes(deployed("qwen3.8-27b", "l40s", "0.26.0"), token_budget=2048, max_batch=batch)
        for batch in (16, 256)
    )
    assert (few - many) / GIB == pytest.approx(0.93, abs=0.15)


def test_sizes_are_those_that_logs_list() -> None:
    """The sizes of a vLLM v0.26 whose log prints them, up to 512."""
    sizes = captured_sizes(512)
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-3:] == (480, 496, 512)
    assert {248, 256, 272} <= {*sizes}
