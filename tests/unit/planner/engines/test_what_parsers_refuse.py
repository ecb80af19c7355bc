"""What engines' own parsers were found to refuse is a limit, or is written so that they take it."""

from __future__ import annotations

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from planner.engines.contract import write
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.plan import problem_of
from tests.unit.planner.engines.priced import priced

COPIES = ParallelLayout(dp=8, zero_stage=3, shard_degree=4)
TENSORS = ParallelLayout(tp=2, dp=4)


@pytest.mark.parametrize(
    ("engine", "limit", "layout", "broken"),
    [
        ("deepspeed", "groups-of-shards", COPIES, True),  # 0.19 has no MiCS
        ("deepspeed", "groups-of-shards", ParallelLayout(dp=8, zero_stage=3), False),
        ("accelerate", "copies-alone", TENSORS, True),  # ParallelismConfig
        ("accelerate", "copies-alone", ParallelLayout(tp=2, dp=4, zero_stage=3), False),
        ("accelerate", "copies-alone", ParallelLayout(dp=8), False),
    ],
)
def test_a_layout_that_a_parser_refuses_breaks_a_limit(
    engine: str, limit: str, layout: ParallelLayout, broken: bool
) -> None:
    """And the layout beside it does not."""
    problem, row = (
        problem_of(priced(layout, stack="pytorch").request, load_calibration()),
        LayoutTable.from_rows([layout]),
    )
    (judged,) = [one for one in CONTRACTS[engine].limits if one.name == limit]
    assert bool(judged.broken(problem, row)) is broken


@pytest.mark.parametrize(
    ("layout", "written"),
    [(ParallelLayout(dp=8, zero_stage=3), False), (ParallelLayout(pp=2, dp=4, zero_stage=2), True)],
)
def test_torchtitan_has_no_graphs_of_a_pipeline(layout: ParallelLayout, written: bool) -> None:
    """0.3 captures steps unless told otherwise, and stops where there are stages."""
    words = write(CONTRACTS["torchtitan"], facts_of(priced(layout, stack="torchtitan")))
    assert words.get("training.disable_cuda_graphs", False) is written


def test_megatron_bridge_is_told_one_exchange_and_the_data_the_length() -> None:
    """A list would want an entry of each layer; model and data must have sequences of one length."""
    layout = ParallelLayout(cp=2, dp=4, zero_stage=1)
    words = write(CONTRACTS["megatron-bridge"], facts_of(priced(layout, stack="megatron-bridge")))
    assert words["model.cp_comm_type"] == "p2p"
    assert words["dataset.seq_length"] == words["model.seq_length"] == 4096


@pytest.mark.parametrize(("name", "graphs"), [("llama-3.1-8b", False), ("qwen3-30b-a3b", True)])
def test_megatron_bridge_captures_steps_of_experts_with_all_that_it_takes(name: str, graphs: bool) -> None:
    """Room for the tokens of an expert, and the dispatcher that fills it; nothing of it in a dense model."""
    plan = priced(ParallelLayout(dp=8, zero_stage=1), name, stack="megatron-bridge-26.06")
    words = write(CONTRACTS["megatron-bridge"], facts_of(plan))
    assert ("model.moe_expert_rank_capacity_factor" in words) is graphs
    assert (words.get("model.moe_flex_dispatcher_backend") == "hybridep") is graphs


@pytest.mark.parametrize(
    ("gpu", "backend"), [("h100-sxm", "deepep"), ("b200-sxm", "deepep"), ("gb200", "hybridep")]
)
def test_the_dispatcher_is_one_that_the_gpu_has(gpu: str, backend: str) -> None:
    """DeepEP knows nothing of nodes that share memory."""
    plan = priced(ParallelLayout(dp=8, ep=8, zero_stage=1), "qwen3-30b-a3b", stack="megatron-bridge", gpu=gpu)
    assert write(CONTRACTS["megatron-bridge"], facts_of(plan))["model.moe_flex_dispatcher_backend"] == backend
