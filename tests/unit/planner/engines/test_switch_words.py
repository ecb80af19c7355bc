"""Values of switches in the words of engines: written, read back as the same fields, and taken by the engine itself."""

from __future__ import annotations

import pytest

from costmodel.layout import ParallelLayout
from costmodel.stack import stack
from planner.engines.contract import read
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of, stack_facts
from planner.engines.formats import FORMATS, Files
from planner.launch.targets import engine_files
from planner.parsers.client import PACKAGES, answers, case_of, faults, interpreter
from planner.plan import Plan, stack_of
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError

DENSE, EXPERTS = "llama-3.1-8b", "mixtral-8x7b"
LAYOUTS = {
    "megatron": ParallelLayout(dp=8, zero_stage=1),
    "megatron-bridge": ParallelLayout(dp=8, zero_stage=1),
    "torchtitan": ParallelLayout(dp=8, zero_stage=3),
    "accelerate": ParallelLayout(dp=8, zero_stage=3),
}
TOLD: dict[str, tuple[tuple[str, str, str], ...]] = {
    "megatron": (
        *((DENSE, "attention_kernel", value) for value in ("native", "unfused", "fa2", "fa3", "cudnn", "fa4")),
        *((DENSE, "cuda_graph_scope", value) for value in ("none", "full_iteration", "attn", "mlp", "attn;mlp")),
        *((EXPERTS, "cuda_graph_scope", value) for value in ("attn", "attn;moe_router;moe_preprocess")),
        (EXPERTS, "grouped_experts", "te_grouped"),
        (DENSE, "loss", "whole"),
        (DENSE, "compile", "on"),
    ),
    "megatron-bridge": (
        *((DENSE, "attention_kernel", value) for value in ("native", "unfused", "fa2", "fa3")),
        *((DENSE, "cuda_graph_scope", value) for value in ("none", "full_iteration", "attn", "attn;mlp")),
        *((EXPERTS, "cuda_graph_scope", value) for value in ("attn", "moe_router;moe_preprocess")),
        (EXPERTS, "expert_counts", "device"),
        (EXPERTS, "grouped_experts", "te_grouped"),
        (DENSE, "loss", "fused_cross_entropy"),
    ),
    "torchtitan": (
        (DENSE, "attention_kernel", "sdpa"),
        *((DENSE, "cuda_graph_scope", value) for value in ("none", "full_iteration")),
        *((DENSE, "compile", value) for value in ("on", "off")),
        *((DENSE, "loss", value) for value in ("whole", "chunked:8", "chunked:16")),
        (EXPERTS, "grouped_experts", "grouped_mm"),
    ),
    "accelerate": (
        *((DENSE, "compile", value) for value in ("on", "off")),
        *((DENSE, "loss", value) for value in ("whole", "fused_linear")),
        *((DENSE, "attention_kernel", value) for value in ("sdpa", "unfused")),
    ),
}  # fmt: skip
"""Values that have words, or are the engine's own without one, by engine, with the model that they are told of."""
REFUSED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "megatron": (
        (DENSE, "attention_kernel", "sdpa"),
        (DENSE, "attention_kernel", "triton"),
        (DENSE, "cuda_graph_scope", "moe_router"),
        (EXPERTS, "cuda_graph_scope", "attn;mlp"),
        (EXPERTS, "cuda_graph_scope", "attn;moe"),
        (EXPERTS, "cuda_graph_scope", "moe_preprocess"),
        (EXPERTS, "cuda_graph_scope", "full_iteration"),
        (EXPERTS, "grouped_experts", "grouped_mm"),
        (EXPERTS, "expert_counts", "device"),
        (DENSE, "loss", "fused_cross_entropy"),
        (DENSE, "loss", "chunked:8"),
        (DENSE, "loss", "fused_linear"),
        (DENSE, "compile", "off"),
    ),
    "megatron-bridge": (
        (DENSE, "attention_kernel", "sdpa"),
        (EXPERTS, "cuda_graph_scope", "full_iteration"),
        (EXPERTS, "grouped_experts", "cutlass"),
        (DENSE, "loss", "chunked:8"),
    ),
    "torchtitan": (
        (DENSE, "attention_kernel", "fa2"),
        (DENSE, "attention_kernel", "unfused"),
        (DENSE, "cuda_graph_scope", "attn"),
        (DENSE, "loss", "fused_linear"),
        (EXPERTS, "grouped_experts", "loop"),
        (DENSE, "loss", "chunked:3"),
    ),
    "accelerate": (
        (DENSE, "loss", "fused_cross_entropy"),
        (DENSE, "loss", "chunked:8"),
        (DENSE, "attention_kernel", "fa2"),
        (DENSE, "cuda_graph_scope", "full_iteration"),
    ),
}  # fmt: skip
"""Values without words, and those that the engine cannot have of the model."""
CASES = [(engine, *told) for engine, several in TOLD.items() for told in several]


def planned(engine: str, model: str, switch: str, value: str) -> Plan:
    """A plan of the engine's preset with one switch set."""
    preset = CONTRACTS[engine].stacks[0]
    return priced(LAYOUTS[engine], model, stack=preset, gpu="b200-sxm", switches={switch: value})


def told(engine: str, model: str, switch: str, value: str) -> tuple[Plan, Files]:
    """Such a plan, and the files that say it."""
    plan = planned(engine, model, switch, value)
    return plan, engine_files(plan, CONTRACTS[engine]).files


@pytest.mark.parametrize(("engine", "model", "switch", "value"), CASES)
def test_what_is_written_is_read_back(engine: str, model: str, switch: str, value: str) -> None:
    """Every field that the value changes, though no other test knows which those are."""
    contract = CONTRACTS[engine]
    plan, files = told(engine, model, switch, value)
    found = read(contract, FORMATS[engine].parse(files, contract), plan.layout.num_gpus)
    usual, now = stack_facts(stack(contract.stacks[0])), stack_facts(stack_of(plan.request))
    changed = {name for name in now if now[name] != usual[name]}
    assert {name: found.fields.get(name) for name in changed} == {name: now[name] for name in changed}
    assert not found.unknown
    assert not found.wrong


@pytest.mark.parametrize(("engine", "model", "switch", "value"), CASES)
def test_a_value_of_the_preset_needs_no_word(engine: str, model: str, switch: str, value: str) -> None:
    """Files differ from those of the preset where the switch does, and nowhere else."""
    plan, files = told(engine, model, switch, value)
    plain = priced(plan.layout, model, stack=plan.request.stack, gpu="b200-sxm")
    same = stack_of(plan.request) == stack_of(plain.request)
    assert (files == engine_files(plain, CONTRACTS[engine]).files) == same


@pytest.mark.parametrize(
    ("engine", "model", "switch", "value"),
    [(engine, *case) for engine, cases in REFUSED.items() for case in cases],
)
def test_a_value_without_words_is_refused(engine: str, model: str, switch: str, value: str) -> None:
    """Before anything is written."""
    plan = planned(engine, model, switch, value)
    with pytest.raises(InputError, match=r"cannot run this plan"):
        engine_files(plan, CONTRACTS[engine])


def test_counts_on_the_device_need_a_dispatcher_that_keeps_them_there() -> None:
    """Told of Megatron-LM beside HybridEP alone, whose words its own parser takes with those of the graph."""
    contract = CONTRACTS["megatron"]
    plan = priced(
        LAYOUTS["megatron"],
        EXPERTS,
        stack="megatron-bridge",
        gpu="b200-sxm",
        switches={"expert_counts": "device"},
    )
    files = engine_files(plan, contract).files
    found = read(contract, FORMATS["megatron"].parse(files, contract), plan.layout.num_gpus)
    assert found.fields["stack.static_experts_blackwell"]
    assert "stack.cuda_graphs" not in found.fields  # of which that is a part
    python = interpreter("megatron")
    if python is None:
        pytest.skip("megatron-core is not installed")
    said = facts_of(plan)
    (answer,) = answers("megatron", [case_of(contract, files, said, plan.problem.cluster.gpu)], python)
    assert faults(said, answer) == ()


@pytest.mark.parametrize("engine", [engine for engine in TOLD if engine in PACKAGES])
def test_the_engine_itself_takes_the_words(engine: str) -> None:
    """Its own parser, of all values at once; a plan of twice the GPUs is another to it."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"{PACKAGES[engine]} is not installed")
    plans = [told(engine, *case) for case in TOLD[engine]]
    facts = [facts_of(plan) for plan, _ in plans]
    cases = [
        case_of(CONTRACTS[engine], files, said, plan.problem.cluster.gpu)
        for (plan, files), said in zip(plans, facts, strict=True)
    ]
    given = answers(engine, cases, python, timeout_s=300)
    found = [
        (case, differs)
        for case, said, answer in zip(TOLD[engine], facts, given, strict=True)
        if (differs := faults(said, answer))
    ]
    assert found == []
