"""Bytes of gradients and optimizer state: in Megatron's words both ways, refused where it has no such state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.stack import stack
from planner.engines.contract import read, words_of_line
from planner.engines.contracts import CONTRACTS
from planner.engines.formats import FORMATS
from planner.engines.megatron_lm.state import STATE_PRECISION
from planner.launch.targets import export_plan
from planner.plan import problem_of
from tests.unit.planner.engines.priced import priced
from topology.base.errors import NoFeasiblePlanError

PROFILE = stack("megatron-core-bf16-state")
LAYOUT = ParallelLayout(dp=8, zero_stage=1)


@pytest.mark.parametrize(
    ("line", "state", "gradients"),
    [
        ("--bf16", 12, 4),
        ("--bf16 --grad-reduce-in-bf16", 12, 2),
        ("--fp16", 12, 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 12, 4),
        ("--bf16 --use-precision-aware-optimizer", 2 + 4 + 4, 4),
        ("--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 2 + 2 + 2, 4),
        ("--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", 2 + 1 + 2, 4),
        (
            "--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 --main-params-dtype fp16",
            2 + 4 + 4,
            2,
        ),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --use-precision-aware-optimizer", 4 + 4 + 4, 4),
        ("--bf16 --fp8-format hybrid --use-precision-aware-optimizer", 2 + 4 + 4, 4),
        ("--fp16 --use-precision-aware-optimizer", 4 + 4 + 4, 2),
    ],
)
def test_bytes_are_read(line: str, state: float, gradients: float) -> None:
    """Master weights beside bf16 weights are their other half where the optimizer's kernel holds them."""
    contract = CONTRACTS["megatron"]
    found = read(contract, words_of_line(contract, f"--use-distributed-optimizer {line}".split()))
    assert (found.wrong, found.unknown) == ((), ())
    assert found.fields["stack.optimizer_bytes"] == state
    assert found.fields["stack.gradient_bytes"] == found.fields["stack.gradient_reduce_bytes"] == gradients


@pytest.mark.parametrize(
    ("line", "lacking"),
    [
        ("--bf16 --exp-avg-dtype bf16", "--use-precision-aware-optimizer"),
        ("--bf16 --use-precision-aware-optimizer", "--use-distributed-optimizer"),
    ],
)
def test_what_megatron_would_stop_at_is_refused(line: str, lacking: str) -> None:
    """As `OptimizerConfig` asserts."""
    contract = CONTRACTS["megatron"]
    (refused,) = read(contract, words_of_line(contract, line.split())).refused
    assert refused.violation.hint == f"add {lacking}"


def test_a_dtype_that_is_none_is_wrong() -> None:
    """It is no value of the word."""
    contract = CONTRACTS["megatron"]
    line = "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype int4"
    assert "is none of" in read(contract, words_of_line(contract, line.split())).wrong[0]


def test_an_export_is_the_plan() -> None:
    """What is read back has the plan's memory to 1e-9; both gradients and state are half of the usual."""
    plan = priced(LAYOUT, stack=PROFILE.name)
    text = export_plan(plan, "megatron").text
    assert "--use-precision-aware-optimizer" in text
    assert "--exp-avg-sq-dtype bf16" in text
    usual = priced(LAYOUT, stack="megatron-core").estimate.memory_by_stage[0]
    lean = plan.estimate.memory_by_stage[0]
    assert lean.optimizer_bytes == pytest.approx(usual.optimizer_bytes / 2)
    assert lean.gradients_bytes == pytest.approx(usual.gradients_bytes / 2)


def test_bridge_keeps_whole_master_weights() -> None:
    """Its configuration names a recipe in sixteen bits too, so Megatron-Core holds them; dtypes are torch's."""
    state = "".join(f"cfg.optimizer.exp_avg{of}_dtype = torch.bfloat16\n" for of in ("", "_sq"))
    text = f"cfg.ddp.use_distributed_optimizer = True\ncfg.optimizer.use_precision_aware_optimizer = True\n{state}"
    words = FORMATS["megatron-bridge"].parse({"bridge_plan.py": text}, CONTRACTS["megatron-bridge"])
    found = read(CONTRACTS["megatron-bridge"], words)
    assert (found.wrong, found.unknown, found.fields["stack.optimizer_bytes"]) == ((), (), 4 + 2 + 2)
    plan = priced(LAYOUT, stack=PROFILE.name)
    with pytest.raises(NoFeasiblePlanError, match=r"stack\.optimizer_bytes"):
        export_plan(plan, "megatron-bridge")


@pytest.mark.parametrize(
    ("layout", "job", "broken"),
    [
        (LAYOUT, {}, False),
        (replace(LAYOUT, zero_stage=0), {}, True),
        (LAYOUT, {"precision": "fp8"}, False),
        (LAYOUT, {"precision": "fp16"}, True),
    ],
)
def test_the_state_is_of_the_distributed_optimizer(
    layout: ParallelLayout, job: dict[str, str], broken: bool
) -> None:
    """Without it, or where master weights stay whole, no words make six bytes."""
    plan = priced(LAYOUT, stack=PROFILE.name)
    request = replace(plan.request, job=replace(plan.request.job, **job))  # type: ignore[arg-type]
    plan = replace(plan, request=request, layout=layout)
    if not broken:
        assert not STATE_PRECISION.broken(
            problem_of(request, load_calibration()), LayoutTable.from_rows([layout])
        ).any()
        return
    with pytest.raises(NoFeasiblePlanError, match="megatron-state-precision"):
        export_plan(plan, "megatron")
