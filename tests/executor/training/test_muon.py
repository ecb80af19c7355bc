"""Muon: torch's own update of one matrix, and of a split one the same, saved and resumed in any layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from app.actions.runs.training_run import require_trained_as_planned
from costmodel.layout import ParallelLayout
from costmodel.updates.adapters import parse_adapter
from executor.training.muon import blended, is_matrix, newton_schulz, step_of
from executor.validation.reference import ReferenceJob, outcome_difference, run_layout, run_reference
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.conftest import TINY
from tests.executor.parallel.test_parity import DENSE, MOE, SETTINGS, TIED, TOLERANCE, layout, shallow
from tests.executor.training.test_training import copy_of, losses, run_here, settings_in
from topology.base.errors import NoFeasiblePlanError

CASES = {
    "tp2-sequence-parallel": ReferenceJob(spec=DENSE, layout=layout(tp=2)),
    "dp3-zero3-uneven": ReferenceJob(spec=DENSE, layout=layout(dp=3, zero_stage=3)),
    "tp2-hsdp-2x2": ReferenceJob(spec=DENSE, layout=layout(tp=2, dp=4, zero_stage=3, shard_degree=2)),
    "cp2-zero1": ReferenceJob(spec=DENSE, layout=layout(cp=2, zero_stage=1)),
    "pp2-dp2-zbv": ReferenceJob(
        spec=TIED, layout=layout(pp=2, dp=2, zero_stage=1, virtual_stages=2, schedule="zbv")
    ),
    "ep2-expert-tp2-dp2": ReferenceJob(spec=MOE, layout=layout(ep=2, expert_tp=2, tp=2, dp=2, zero_stage=2)),
    "ep2-zero3": ReferenceJob(spec=MOE, layout=layout(ep=2, dp=4, zero_stage=3)),
}


@pytest.mark.parametrize(
    "name", cases_of_run(CASES, ("ep2-expert-tp2-dp2", "tp2-hsdp-2x2", "dp3-zero3-uneven"))
)
def test_layout_updates_what_one_process_updates(name: str) -> None:
    """Loss of four steps within 1e-5 relative: the last has seen three updates by whole matrices."""
    case = dataclasses.replace(shallow(CASES[name]), steps=4, optimizer="muon")
    difference = outcome_difference(run_reference(case, SETTINGS), run_layout(case, SETTINGS))
    assert (difference.loss <= TOLERANCE, difference.gradient <= TOLERANCE) == (True, True), difference


def test_muon_is_not_adamw() -> None:
    """The parity above would not see a plan whose optimizer is ignored by both."""
    case = dataclasses.replace(shallow(CASES["cp2-zero1"]), steps=3, layout=ParallelLayout())
    muon = run_reference(dataclasses.replace(case, optimizer="muon"), SETTINGS).losses
    assert abs(muon[2] - run_reference(case, SETTINGS).losses[2]) > 100 * TOLERANCE


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_one_matrix_is_updated_as_torch_does(shape: tuple[int, int]) -> None:
    """`torch.optim.Muon` with Moonlight's factor, four steps in its bf16, to the last bit."""
    torch.manual_seed(0)
    mine, theirs = torch.randn(shape), torch.nn.Parameter(torch.empty(shape))
    theirs.data.copy_(mine)
    oracle = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    momentum = torch.zeros(shape)
    for _ in range(4):
        gradient = torch.randn(shape)
        theirs.grad = gradient.clone()
        oracle.step()
        update = newton_schulz(blended(gradient, momentum), torch.bfloat16)
        mine.mul_(1 - 0.01 * 0.1).sub_(update, alpha=step_of(mine.shape, 0.01))
    assert torch.equal(mine, theirs.detach())


def test_orthogonal_matrices_come_out_and_each_expert_by_itself() -> None:
    """Singular values end where the iteration's authors say, and a stack is its matrices one by one."""
    stack = torch.randn(3, 20, 12, generator=torch.Generator().manual_seed(1))
    found = newton_schulz(stack, torch.float32)
    values = torch.linalg.svdvals(found)
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.25
    for one, whole in zip(stack, found, strict=True):
        assert torch.allclose(newton_schulz(one, torch.float32), whole, atol=1e-5)


def test_tables_norms_and_biases_are_adamws() -> None:
    """As in Jordan et al.: hidden matrices alone."""
    names = {
        "model.embed_tokens.weight": 2, "lm_head.weight": 2, "model.layers.0.input_layernorm.weight": 1,
        "model.layers.0.self_attn.q_proj.bias": 1, "model.layers.1.mlp.experts.down_proj_bias": 2,
        "model.layers.1.mlp.experts.gate_proj_bias": 2,
    }  # fmt: skip
    assert not [name for name, dimensions in names.items() if is_matrix(name, dimensions)]
    assert is_matrix("model.layers.1.mlp.experts.down_proj", 3)
    assert is_matrix("model.layers.1.mlp.gate.weight", 2)


def test_a_run_resumes_its_momentum_in_another_layout(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """From the checkpoint after step 3, resharded, losses are those of the run that went on."""

    def muon(of: ParallelLayout) -> Plan:
        plan = plan_of(of, spec=dataclasses.replace(TINY, num_layers=1))
        job = dataclasses.replace(plan.request.job, optimizer="muon")
        return dataclasses.replace(plan, request=dataclasses.replace(plan.request, job=job))

    first = tmp_path / "first"
    run_here(settings_in(first, steps=5), muon(ParallelLayout(dp=2, zero_stage=1)))
    folder = copy_of(first, tmp_path / "again", last_step=3)
    run_here(settings_in(folder, steps=5), muon(ParallelLayout(tp=2, sequence_parallel=True)))
    expected = {step: loss for step, loss in losses(first).items() if step > 3}
    assert losses(folder) == pytest.approx(expected, rel=1e-5)


def test_an_adapter_is_not_trained_with_muon(plan_of: Callable[..., Plan]) -> None:
    """Refused with what would do: its matrices have AdamW."""
    plan = plan_of(ParallelLayout(dp=2))
    job = dataclasses.replace(plan.request.job, optimizer="muon", adapter=parse_adapter("lora:r=4"))
    both = dataclasses.replace(plan, request=dataclasses.replace(plan.request, job=job))
    with pytest.raises(NoFeasiblePlanError, match="an adapter with muon"):
        require_trained_as_planned(both)
