"""A contract and the profile that prices it say the same, and every limit is a rule."""

from __future__ import annotations

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from planner.engines.contract import read, typed, words_of_line
from planner.engines.contracts import CONTRACTS, engine_of_stack, recomputes_of
from planner.engines.formats import FORMATS
from planner.engines.setting import Word
from planner.plan import Problem
from planner.rules.check import RULES, rules_of
from topology.builders import default_cluster

MECHANISMS = (
    "flash_attention", "fused_elementwise", "vocab_parallel_loss", "gradient_overlap", "parameter_overlap",
    "fsdp_prefetch", "cp_overlap", "p2p_overlap", "early_stop_recompute", "accumulation_fused", "p2p_sharded",
    "cuda_graphs", "dispatches_once_per_node", "static_experts_blackwell", "tp_overlap_share",
    "expert_overlap_share", "pairs_expert_passes", "dispatches_weights", "gathers_before_latent", "pads_value_heads",
)  # fmt: skip
"""Fields of a profile's timing that make a step shorter by something an engine does, or longer."""


@pytest.mark.parametrize(
    ("engine", "profile"), [(name, profile) for name, one in CONTRACTS.items() for profile in one.stacks]
)
def test_what_is_priced_as_on_is_written_or_built_in(engine: str, profile: str) -> None:
    """No second is won by a mechanism that nobody switches on."""
    contract, timing = CONTRACTS[engine], stack(profile).timing
    written = {name for setting in contract.settings if setting.words for name in setting.fields}
    on = [name for name in MECHANISMS if getattr(timing, name)]
    nowhere = [name for name in on if f"stack.{name}" not in written and name not in contract.built_in]
    assert nowhere == []


@pytest.mark.parametrize("engine", CONTRACTS)
def test_every_limit_is_a_rule_of_the_search(engine: str) -> None:
    """Under the engine's name, after those of all plans; the free space has none."""
    named = [rule.name for rule in rules_of(engine)[len(RULES) :]]
    assert named == [f"{engine}-{limit.name}" for limit in CONTRACTS[engine].limits]
    assert rules_of("any") == RULES


@pytest.mark.parametrize("engine", CONTRACTS)
def test_every_word_is_spelled_once_and_reads_its_own_default(engine: str) -> None:
    """Two settings of one spelling would read each other's values."""
    contract = CONTRACTS[engine]
    spelled = [
        name for setting in contract.settings for word in setting.words for name in (word.name, *word.aliases)
    ]
    assert sorted(spelled) == sorted(set(spelled))
    words = [word for setting in contract.settings for word in setting.words]
    assert [word.name for word in words if typed(word, word.default) != word.default] == []


@pytest.mark.parametrize("engine", CONTRACTS)
def test_what_is_read_and_not_priced_is_named_by_its_effect(engine: str) -> None:
    """Never written for a plan, and said of a file that has it; one that switches it off says nothing."""
    contract = CONTRACTS[engine]
    for name, effect in contract.unpriced.items():
        found = read(contract, {name: True})
        assert found.unpriced == (f"{name} {effect}: not priced",)
        assert read(contract, {name: False}).unpriced == ()
    assert bool(contract.unpriced) == engine.startswith("megatron")


def test_experts_beside_another_microbatch_leave_shared_ones_alone() -> None:
    """Megatron-LM stops at both switches together."""
    contract = CONTRACTS["megatron"]
    line = "--num-experts 8 --overlap-moe-expert-parallel-comm --moe-shared-expert-overlap --expert-model-parallel-size 8"
    both = read(contract, words_of_line(contract, line.split()))
    assert "expert-overlap" in [one.violation.rule for one in both.refused]


def test_torchtitan_reads_four_bits_and_plans_none() -> None:
    """A file with the converter is no file of sixteen bits; the precision is a rule of the search."""
    contract = CONTRACTS["torchtitan"]
    assert read(contract, {"model.converters": ["NVFP4LinearConverter"]}).fields["job.precision"] == "nvfp4"
    problem = Problem(
        case=Case(
            model=model("llama-3.1-8b"),
            cluster=default_cluster("b200-sxm", 8),
            job=TrainingJob(sequence_length=4096, global_batch_size=8, precision="nvfp4"),
            stack=stack("torchtitan"),
            cal=load_calibration(),
        ),
        engine="torchtitan",
    )
    (limit,) = [one for one in contract.limits if one.name == "precision"]
    assert limit.broken(problem, LayoutTable.from_rows([ParallelLayout(dp=8)])) is True


def test_every_engine_has_files_and_is_that_of_a_profile() -> None:
    """The engine of a profile is the one that it prices first of all."""
    assert list(FORMATS) == list(CONTRACTS) or set(FORMATS) == set(CONTRACTS)
    first = ("megatron-core", "megatron-bridge", "torchtitan", "pytorch", "meshplan", "internevo")
    assert [engine_of_stack(name) for name in first] == [
        "megatron", "megatron-bridge", "torchtitan", "accelerate", "meshplan", "any",
    ]  # fmt: skip
    assert (recomputes_of("any"), recomputes_of("megatron")) == ("per-rank", "per-chunk")


def test_a_value_of_another_kind_is_none() -> None:
    """A count is no yes or no, and no fraction."""
    for value in (True, 1.5, "many", "9" * 40):
        with pytest.raises((TypeError, ValueError)):
            typed(Word(name="x", kind="int"), value)


def test_torchtitan_is_told_no_schedule_that_it_has_no_word_for() -> None:
    """What it would run instead then differs from the plan, and is refused with both."""
    facts = {"layout.pp": 2, "split.layers": [1, 1], "layout.schedule": "v-half"}
    told = [
        setting.write(facts)
        for setting in CONTRACTS["torchtitan"].settings
        if "layout.schedule" in setting.fields
    ]
    assert told
    assert not [word for words in told for word in words if word.endswith("pipeline_parallel_schedule")]
