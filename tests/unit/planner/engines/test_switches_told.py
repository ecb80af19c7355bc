"""A switch that is set reaches the engine in its own words, or the engine is refused; it is never left out."""

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.switches.switch import switches
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import layout_facts, model_facts, stack_facts
from planner.engines.setting import Given
from planner.plan import PlanRequest, Problem, problem_of
from topology.builders import default_cluster

LAYOUT = ParallelLayout(tp=2, dp=4, ep=4, zero_stage=1, sequence_parallel=True)
VALUES = [
    (name, value)
    for name, switch in switches().items()
    for value, record in switch.values.items()
    if record.is_priced
]


def problem(engine: str, switch: str, value: str) -> Problem:
    """A mixture of experts for an engine with one switch set."""
    request = PlanRequest(
        model=model("mixtral-8x7b"),
        cluster=default_cluster("b200-sxm", 8).spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=64),
        stack=CONTRACTS[engine].stacks[0],
        engine=engine,
        switches={switch: value},
    )
    return problem_of(request, load_calibration())


@pytest.mark.parametrize("engine", list(CONTRACTS))
@pytest.mark.parametrize(("switch", "value"), VALUES)
def test_an_engine_is_told_or_refused(engine: str, switch: str, value: str) -> None:
    """Where no limit is broken, every field that is set is one that is read back, and an export compares."""
    asked = problem(engine, switch, value)
    contract = CONTRACTS[engine]
    row = LayoutTable.from_rows([LAYOUT])
    if any(bool(limit.broken(asked, row)) for limit in contract.limits):
        return
    told = {field for setting in contract.settings for field in setting.fields}
    facts = {**layout_facts(LAYOUT), **model_facts(asked.model), **stack_facts(asked.stack)}
    usual = stack_facts(stack(contract.stacks[0]))
    changed = {name for name, now in stack_facts(asked.stack).items() if now != usual[name]}
    assert changed - told <= {"stack.moment_bytes"}  # of what is told as the optimizer's bytes
    words = {word.name: word for setting in contract.settings for word in setting.words}
    for setting in contract.settings:
        if setting.switch:  # which says some values and not others
            read = setting.read(Given(setting.write(facts), words))
            mine = changed.intersection(setting.fields)
            assert {name: read.get(name) for name in mine} == {name: facts[name] for name in mine}


def test_what_no_engine_is_told_says_which_switch() -> None:
    """By its name and value, why, and what to do."""
    asked = problem("megatron", "attention_kernel", "sdpa")
    (law,) = (limit for limit in CONTRACTS["megatron"].limits if limit.name == "switches")
    assert bool(law.broken(asked, LayoutTable.from_rows([LAYOUT])))
    assert law.says(asked, LAYOUT)[0] == (
        "Megatron-LM is not told here that attention_kernel sdpa; its attention is not torch's"
    )
    for value in ("native", "fa2", "unfused"):
        told = problem("megatron", "attention_kernel", value)
        assert not bool(law.broken(told, LayoutTable.from_rows([LAYOUT])))
    assert with_switches(stack("megatron-core"), {"attention_kernel": "native"}) == stack("megatron-core")
