"""Why a layout is refused: nobody can run it, this software stops, or nothing here prices it."""

from dataclasses import MISSING, fields, replace
from inspect import signature
from typing import get_args

import pytest

from costmodel.accuracy.training_runs import read_run
from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model, model_names
from costmodel.runs.cells import UnsupportedRunError
from costmodel.stack import stack
from planner.engines.contracts import CONTRACTS
from planner.engines.limit import limit
from planner.law import REFUSED, Ground, Law, Violation
from planner.plan import FREE, Problem
from planner.rules.check import RULES, check, rules_of
from planner.rules.verdict import illegal
from tests.unit.costmodel.accuracy.test_training_runs import ROW
from topology.builders import default_cluster

CLUSTER = default_cluster("h100-sxm", 64)
EVERY = {rule.name: rule for engine in (*CONTRACTS, FREE) for rule in rules_of(engine)}


def broken(name: str, *, stack_name: str = "megatron-core", **degrees: int) -> dict[str, Violation]:
    """Violations of a layout of a model, by rule."""
    spec = model(name)
    length = min(4096, spec.max_sequence_length)
    job = TrainingJob(sequence_length=length, global_batch_size=64)
    layout = ParallelLayout(**degrees)
    return {
        found.rule: found
        for found in check(
            Problem(
                case=Case(
                    model=spec, cluster=CLUSTER, job=job, stack=stack(stack_name), cal=load_calibration()
                )
            ),
            layout,
        )
    }


def test_no_rule_and_no_limit_is_made_without_a_ground() -> None:
    """A rule states it; a limit is of its engine unless it says that nothing prices it."""
    assert next(field for field in fields(Law) if field.name == "ground").default is MISSING
    assert {rule.ground for rule in EVERY.values() if not callable(rule.ground)} <= {*get_args(Ground)}
    assert signature(limit).parameters["ground"].default == "engine"


@pytest.mark.parametrize("engine", CONTRACTS)
def test_what_an_engine_runs_is_never_called_impossible(engine: str) -> None:
    """Whatever a contract says that its engine runs is refused for want of a price."""
    for name in CONTRACTS[engine].runs:
        assert name in EVERY
        assert callable(EVERY[name].ground) or EVERY[name].ground != "impossible"


@pytest.mark.parametrize("ground", get_args(Ground))
def test_the_words_of_a_refusal_are_those_of_its_ground(ground: Ground) -> None:
    """The words "not possible" stand where no program can run it, and nowhere else."""
    found = Violation(rule="x", message="m", have=1, need=0, unit="", hint="h", ground=ground)
    text = illegal((found,)).what
    assert text == f"{REFUSED[ground]}: rule x"
    assert ("not possible" in text) == (ground == "impossible")
    assert ("not priced" in text) == (ground == "unpriced")


def test_the_strongest_ground_is_said_first() -> None:
    """A layout that breaks several rules is refused for what nothing can change."""
    weak = Violation(rule="weak", message="m", have=1, need=0, unit="", hint="h", ground="unpriced")
    strong = replace(weak, rule="strong", ground="impossible")
    assert illegal((weak, strong)).what == "this layout is not possible: rule strong (and 1 more: weak)"


GROUPED = [
    name
    for name in model_names()
    if model(name).attention.shares_keys and 1 < model(name).attention.whole_heads <= 8
]


@pytest.mark.parametrize("name", GROUPED)
def test_more_ranks_than_heads_of_keys_run_where_the_engine_gathers_them(name: str) -> None:
    """Megatron-Core takes a multiple of the heads; others name it. An uneven cut is what engines stop at."""
    heads = model(name).attention.whole_heads
    degrees = {"tp": 2 * heads, "dp": 64 // (2 * heads)}
    assert "kv-heads" not in broken(name, **degrees)
    found = broken(name, stack_name="torchtitan", **degrees).get("kv-heads")
    assert found is not None
    assert found.ground == "unpriced"
    assert CONTRACTS["megatron"].title in found.message
    other = broken(name, tp=heads + 1).get("kv-heads")
    assert other is not None
    assert other.ground == "engine"


HYBRID = [name for name in model_names() if model(name).recurrence]


@pytest.mark.parametrize("name", HYBRID)
def test_context_ranks_take_heads_of_a_recurrence_where_the_engine_swaps_them(name: str) -> None:
    """Megatron-Core does for Mamba-2 and Gated DeltaNet, as long as tp·cp divides the heads; nothing else does."""
    recurrence = model(name).recurrence
    assert recurrence is not None
    assert broken(name, stack_name="torchtitan", cp=2, dp=32)["recurrence-context"].ground == "unpriced"
    found = broken(name, cp=2, dp=32).get("recurrence-context")
    if not recurrence.context_cuts:
        assert found is not None
        assert found.ground == "unpriced"
        return
    assert found is None
    heads = min(cut.size for cut in recurrence.context_cuts)
    uneven = broken(name, tp=2, cp=3 * heads)["recurrence-context"]
    assert uneven.ground == "engine"
    assert f"% (tp·cp) = {heads} % (2·{3 * heads})" in uneven.message


@pytest.mark.parametrize("engine", sorted({contract.stacks[0] for contract in CONTRACTS.values()}))
def test_what_the_engine_of_a_profile_runs_is_unpriced_under_it(engine: str) -> None:
    """The ground follows the contract, where a rule does not look at the layout itself (as key heads do)."""
    looks = {rule.name for rule in RULES if callable(rule.ground)}
    runs = {name for contract in CONTRACTS.values() if engine in contract.stacks for name in contract.runs}
    for degrees in ({"tp": 16, "dp": 4}, {"cp": 3}, {"pp": 8, "dp": 8, "microbatch_size": 8}, {"tp": 3}):
        for rule, found in broken("qwen3-next-80b-a3b", stack_name=engine, **degrees).items():
            if rule in runs - looks and found.ground != "impossible":
                assert found.ground == "unpriced", rule


def test_there_are_rules_of_every_ground() -> None:
    """So the tests above are of something."""
    stated = {rule.ground for rule in RULES if not callable(rule.ground)}
    assert stated == {"impossible", "engine", "unpriced"}
    assert len(GROUPED) > 10
    assert HYBRID


def test_rows_whose_weights_are_quantised_or_elsewhere_can_have_run() -> None:
    """A 70B model in 4 bits fits on one GPU, in host memory on any; in 16 bits it is refused as before."""
    sizes = {"model": "llama-3.1-70b", "num_layers": "80", "hidden_size": "8192", "intermediate_size": "28672",
             "num_attention_heads": "64", "num_key_value_heads": "8", "vocab_size": "128256"}  # fmt: skip
    one = {**ROW, **sizes, "num_gpus": "1", "gpus_per_node": "1", "dp": "1", "tp": "1", "pp": "1", "cp": "1",
           "global_batch_size": "1", "microbatch_size": "1", "step_time_s": "1000", "zero_stage": "3"}  # fmt: skip
    with pytest.raises(UnsupportedRunError, match="cannot have run"):
        read_run(one)
    assert read_run({**one, "adapter": "qlora:r=16"}).job.adapter
    assert read_run({**one, "offload": "parameters"}).job.offload
