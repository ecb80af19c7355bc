"""Rotary positions go on beyond a release's; a table of learned ones ends. Every surface says the same of both."""

from dataclasses import replace

import pytest

from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model, models
from costmodel.training.estimate import beyond_positions
from executor.model.hf_config import published_config
from meshplan import plan
from planner.engines.contract import read, write
from planner.engines.fields import facts_of
from planner.engines.megatron_lm.contract import MEGATRON
from planner.rules.check import check
from tests.unit.planner.audit.test_other_peoples_files import audit
from tests.unit.planner.rules.test_rules import problem

LONG = 16_384
TORCHTITAN = f"""\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = {LONG}
[activation_checkpoint]
mode = "full"
[parallelism]
tensor_parallel_degree = 8
"""


@pytest.mark.parametrize("name", models())
def test_a_sequence_ends_where_a_table_of_positions_does(name: str) -> None:
    """Twice the release's positions are refused of a table, and of nothing else."""
    spec = model(name)
    job = TrainingJob(sequence_length=2 * spec.max_sequence_length, global_batch_size=64)
    layout = ParallelLayout(dp=8)
    found = {v.rule: v for v in check(problem(8, model=spec, job=job), layout)}
    assert ("sequence-limit" in found) == bool(spec.learned_positions)
    if spec.learned_positions:
        limit = found["sequence-limit"]
        assert (limit.ground, limit.have, limit.need) == (
            "impossible", 2 * spec.max_sequence_length, spec.max_sequence_length,
        )  # fmt: skip
        wider = replace(spec, max_sequence_length=limit.have, learned_positions=limit.have)
        assert f"model.learned_positions={limit.have}" in limit.hint
        assert "sequence-limit" not in {v.rule for v in check(problem(8, model=wider, job=job), layout)}


@pytest.mark.parametrize("engine", ["any", "megatron", "megatron-bridge", "torchtitan", "deepspeed"])
def test_a_plan_beyond_a_release_is_priced_and_says_so(engine: str) -> None:
    """Each engine takes the length from the job; what is taken for granted stands in the plan."""
    asked = {"model": "llama-3-8b", "gpus": 8, "batch": 64, "engine": engine}
    found = plan(**asked, seq=LONG)
    words = beyond_positions(found.request.model, LONG)
    assert words in found.assumptions
    assert words not in plan(**asked, seq=8192).assumptions
    assert facts_of(found)["model.max_sequence_length"] == LONG


def test_an_export_is_told_the_positions_of_its_sequences() -> None:
    """Megatron-LM stops where its own word says fewer; transformers and vLLM read a checkpoint's."""
    facts = facts_of(plan(model="llama-3-8b", gpus=8, batch=64, seq=LONG, engine="megatron"))
    words = write(MEGATRON, facts)
    assert words["--max-position-embeddings"] == words["--seq-length"] == LONG
    again = read(MEGATRON, words, 8)
    assert (again.wrong, again.fields["model.max_sequence_length"]) == ((), LONG)
    assert (
        published_config(model("llama-3-8b").with_positions(LONG)).config["max_position_embeddings"] == LONG
    )


def test_an_audit_says_what_the_plan_says() -> None:
    """A file that trains beyond its model's release is judged, with the plan's own words."""
    found = audit(TORCHTITAN, "job.toml", model="llama-3-8b", gpus="64", gpu="h100-sxm")
    assert "illegal" not in {finding.kind for finding in found.findings}
    assert beyond_positions(model("llama-3-8b"), LONG) in found.doubts
    assert found.predicted is not None
