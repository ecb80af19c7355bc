"""Software stacks: names, what their flags allow, and which measured framework each describes."""

import pytest

from costmodel.layout import CP_KINDS, RECOMPUTES, SCHEDULES
from costmodel.stack import stack, stack_of_framework, stacks
from topology.errors import UnknownNameError


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("Megatron-LM", "megatron-lm-2021"),
        ("Megatron-LM (zero-bubble fork)", "megatron-lm-2021"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-LM 23e00ed (TE 2.11)", "megatron-core-noov"),
        ("NeMo 24.07 (Megatron-Core)", "megatron-core"),
        ("NeMo/Megatron-Core (MLPerf)", "megatron-core"),
        ("Megatron-Bridge 25.11", "megatron-bridge"),
        ("Megatron-Bridge 26.06", "megatron-bridge-26.06"),
        ("PyTorch FSDP", "pytorch"),
        ("Composer/llm-foundry", "pytorch-fsdp1"),
        ("torchtitan 820504e (FSDP2)", "torchtitan"),
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
        assert (profile.source != "", profile.as_of != "", profile.description != "") == (True, True, True)
        assert set(profile.schedules) <= set(SCHEDULES)
        assert set(profile.recomputes) <= set(RECOMPUTES)
        assert set(profile.cp_kinds) <= set(CP_KINDS)
        assert set(profile.zero_stages_with_pipeline) <= set(profile.zero_stages) <= {0, 1, 2, 3}


def test_an_unknown_stack_is_refused_with_suggestions() -> None:
    """A typo is answered with the names there are."""
    with pytest.raises(UnknownNameError) as error:
        stack("torchtitanic")
    assert "torchtitan" in error.value.suggestions
