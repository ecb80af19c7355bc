"""Software stacks: names, what their flags allow, and which measured framework each describes."""

import re
from dataclasses import fields

import pytest

from costmodel.accuracy.constants_table import heirs
from costmodel.layout import CP_KINDS, RECOMPUTES, SCHEDULES
from costmodel.stack import (
    StackMemory,
    StackOrigin,
    StackSupport,
    StackTiming,
    resolve_bases,
    stack,
    stack_of_framework,
    stacks,
)
from topology.base.errors import InputError, UnknownNameError

GROUPS = (StackTiming, StackMemory, StackSupport, StackOrigin)


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("Megatron-LM", "megatron-lm-2021"),
        ("Megatron-LM (zero-bubble fork)", "megatron-lm-2022"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-LM 23e00ed (TE 2.11)", "megatron-core-noov"),
        ("Megatron-LM (Megatron-Core)", "megatron-core-noov"),
        ("NeMo 24.07 (Megatron-Core)", "megatron-core"),
        ("NeMo/Megatron-Core (MLPerf)", "megatron-core"),
        ("Megatron-Bridge 25.11", "megatron-bridge"),
        ("Megatron-Bridge 26.06", "megatron-bridge-26.06"),
        ("PyTorch FSDP", "pytorch"),
        ("Composer/llm-foundry", "pytorch-fsdp1"),
        ("torchtitan 820504e (FSDP2)", "torchtitan-2025"),
        ("torchtitan 0.3.0", "torchtitan"),
        ("InternEvo", "internevo"),
        ("something nobody has heard of", "megatron-core"),
    ],
)
def test_a_framework_column_finds_its_profile(framework: str, name: str) -> None:
    """The longest known part of the name decides; an unknown engine is taken for the default one."""
    assert stack_of_framework(framework).name == name


def test_every_profile_states_its_source_and_known_options() -> None:
    """A profile allows only schedules, policies and exchanges that exist."""
    for profile in stacks().values():
        assert (profile.origin.source != "", profile.origin.as_of != "", profile.description != "") == (
            True,
            True,
            True,
        )
        assert set(profile.supports.schedules) <= set(SCHEDULES)
        assert set(profile.supports.recomputes) <= set(RECOMPUTES)
        assert set(profile.supports.cp_kinds) <= set(CP_KINDS)
        assert (
            set(profile.supports.zero_stages_with_pipeline)
            <= set(profile.supports.zero_stages)
            <= {0, 1, 2, 3}
        )


def test_an_unknown_stack_is_refused_with_suggestions() -> None:
    """A typo is answered with the names there are."""
    with pytest.raises(UnknownNameError) as error:
        stack("torchtitanic")
    assert "torchtitan" in error.value.suggestions


def test_a_profile_with_a_base_states_only_what_differs() -> None:
    """Its own entries win over those of its base, and the base's over those of the base's base."""
    table = {
        "old": {"memory": {"weight_bytes": 2}, "timing": {"cuda_graphs": False}},
        "new": {"base": "old", "timing": {"cuda_graphs": True}},
        "newest": {"base": "new", "memory": {"gradient_bytes": 2}},
    }
    memory = {"weight_bytes": 2, "gradient_bytes": 2}
    assert resolve_bases(table)["newest"] == {"memory": memory, "timing": {"cuda_graphs": True}}


def test_no_two_groups_of_a_stack_have_a_field_of_one_name() -> None:
    """Constants are listed as profile.field, and a page names a field alone."""
    names = [field.name for group in GROUPS for field in fields(group)]
    assert len(names) == len(set(names)) > 70


def test_every_field_of_a_stack_is_described_once() -> None:
    """Constants carry their meaning, the rest are attributes of their group."""
    for group in GROUPS:
        listed = re.findall(r"^        (\w+): ", str(group.__doc__), flags=re.MULTILINE)
        assert listed == [field.name for field in fields(group) if "meaning" not in field.metadata]


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        ({"a": {"base": "b"}}, "a is based on b, which is missing"),
        ({"a": {"base": "b"}, "b": {"base": "a"}}, "a is based on b is based on a, which comes back"),
    ],
)
def test_a_base_that_leads_nowhere_is_refused(table: dict[str, dict[str, str]], cause: str) -> None:
    """Neither an unknown base nor one that comes back to the profile itself."""
    with pytest.raises(InputError) as error:
        resolve_bases(table)
    assert error.value.cause == cause


def test_copies_of_an_engine_share_what_they_do_not_state() -> None:
    """Seven profiles of Megatron-Core overlap tensor-parallel transfers alike, the one without overlap not."""
    overlaps = {
        name: stack(name).timing.tp_overlap_share for name in heirs("megatron-core", "tp_overlap_share")
    }
    names = ["megatron-core", "megatron-bridge", "megatron-bridge-26.06", "megatron-bridge-modules", "megatron-bridge-overlap",
             "hai-llm", "megatron-core-bf16-state"]  # fmt: skip
    assert list(overlaps) == names
    assert len(set(overlaps.values())) == 1
    assert stack("megatron-core-noov").timing.tp_overlap_share == 0


def test_a_copy_kept_in_its_own_repository_has_its_launch_settings() -> None:
    """BigScience's scripts set CUDA_LAUNCH_BLOCKING; Megatron-DeepSpeed run by others does not."""
    named = "Megatron-DeepSpeed"
    assert not stack_of_framework(
        named, "https://github.com/microsoft/Megatron-DeepSpeed"
    ).timing.launch_blocking
    assert stack_of_framework(
        named, "https://github.com/bigscience-workshop/bigscience"
    ).timing.launch_blocking
    assert not stack_of_framework(
        "NeMo", "https://github.com/bigscience-workshop/bigscience"
    ).timing.launch_blocking
