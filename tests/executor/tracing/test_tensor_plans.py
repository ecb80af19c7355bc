"""The matrices that a trace divides over tensor ranks are those of the plans that transformers ships."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import meshplan
from executor.tracing.cuts import find_cuts
from executor.tracing.of_transformers import of_configuration
from executor.tracing.record import Record, record_forward
from executor.tracing.table import groups_of
from executor.tracing.trace import example_inputs, trace_module
from topology.base.errors import InputError, NoFeasiblePlanError

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "cohere": "CohereForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}


def recorded(family: str) -> Record:
    """A forward pass of two layers of the usual sizes of a family."""
    config = transformers.AutoConfig.for_model(family, num_hidden_layers=2)
    config.architectures = [FAMILIES[family]]
    with torch.device("meta"):
        module, _ = of_configuration(config)
    return record_forward(module.to(torch.bfloat16).train(), example_inputs("2x128:long"))


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_and_rows_are_those_of_the_library(family: str) -> None:
    """By name; what the library replicates, as norms of heads, is divided by neither."""
    record = recorded(family)
    cuts = find_cuts(record, groups_of(record))

    def names(steps: object) -> set[str]:
        read = {s for at in steps for s in record.steps[at].event.reads}  # type: ignore[attr-defined, union-attr]
        found = {record.parameters[s][0] for s in read & record.parameters.keys()}
        return {re.sub(r"^.*(layers)\.[0-9]+", r"\1.*", name).rpartition(".")[0] for name in found}

    plan = transformers.AutoConfig.for_model(family).base_model_tp_plan
    for kind, steps in (("colwise", cuts.columns), ("rowwise", cuts.rows)):
        expected = {name for name, how in plan.items() if how == kind and "*" in name}
        assert {name for name in names(steps) if "*" in name} == expected


class Norms(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A block whose norm runs over what the first product gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two products give."""
        return x + self.second(self.norm(self.first(x)))


def test_what_is_not_recognised_is_refused_by_name() -> None:
    """The block, and the operation that needs numbers of all ranks."""
    module = torch.nn.Sequential(*(Norms() for _ in range(3)))
    with pytest.raises(InputError) as caught:
        meshplan.plan_module(module, "4x16x8", gpus=4, set={"layout.tp": 2})
    assert caught.value.what == "a traced module is not split by tp"
    assert "native_layer_norm" in caught.value.cause


class Gated(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Two products side by side, then one over their product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(512)
        self.both, self.last = torch.nn.Linear(512, 4096, bias=False), torch.nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One half of the columns gates the other."""
        gate, up = self.both(self.norm(x)).chunk(2, dim=-1)
        return x + self.last(torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_module_of_ones_own_is_planned_on_tensor_ranks(sequence_parallel: bool) -> None:
    """A fused gate: half of both matrices a rank, all of what is added after the sums."""
    module = torch.nn.Sequential(*(Gated() for _ in range(4)))
    pins = {"layout.tp": 2, "layout.sequence_parallel": sequence_parallel}
    plan = meshplan.plan_module(module, "4x16x512", gpus=4, set=pins)
    assert plan.layout.tp == 2
    table = plan.request.model.module
    assert table is not None
    assert (table.units, table.tokens, table.uncut) == (2048, 16, "")
    [kind] = table.kinds
    assert (kind.parameters, kind.cut_parameters) == (3 * 512 * 2048 + 3 * 512, 3 * 512 * 2048)


@pytest.mark.parametrize(("tp", "rule"), [(3, "heads and channels"), (32, "sequence-split")])
def test_ranks_that_do_not_divide_a_trace_are_refused(tp: int, rule: str) -> None:
    """Three of 2,048 columns; thirty-two parts of sixteen tokens."""
    module = torch.nn.Sequential(*(Gated() for _ in range(4)))
    pins = {"layout.tp": tp, "layout.sequence_parallel": tp > 3}
    with pytest.raises(NoFeasiblePlanError, match=rule):
        meshplan.plan_module(module, "4x16x512", gpus=96, set=pins)


@pytest.mark.parametrize(
    "more",
    [
        {"units": 0}, {"uncut": "x\x1b[31m"}, {"whole": ("a" * 3000,)}, {"whole": ("a",) * 40},
        {"tokens": -1}, {"classes": -5},
    ],
)  # fmt: skip
def test_a_table_that_no_trace_wrote_is_refused(more: dict[str, object]) -> None:
    """Numbers out of bounds, and text that a terminal would obey."""
    module = torch.nn.Sequential(*(Gated() for _ in range(2)))
    table = trace_module(module, example_inputs("4x16x512"))
    with pytest.raises(InputError, match="not one of a trace"):
        replace(table, **more)


@pytest.mark.parametrize("more", [{"cut_parameters": 10**9}, {"cut_saved_bytes": 1e15}])
def test_more_than_there_is_cannot_be_divided(more: dict[str, object]) -> None:
    """Of a block's parameters, and of what it saves."""
    module = torch.nn.Sequential(*(Gated() for _ in range(2)))
    table = trace_module(module, example_inputs("4x16x512"))
    with pytest.raises(InputError, match="more of a block is divided than it has"):
        replace(table, kinds=(replace(table.kinds[0], **more), *table.kinds[1:]))
