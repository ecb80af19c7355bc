"""A switch that a job has none of is refused, not priced as if it changed nothing."""

import pytest

from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.errors import InputError


def stated(model: str, setting: str, precision: str | None = None) -> dict[str, str]:
    """Switches of a question with one setting."""
    flags = Flags(model=model, gpus="8", precision=precision, settings=(setting,))
    return dict(understand(flags).request.switches)


@pytest.mark.parametrize("setting", ["expert_counts=device", "dispatcher=deepep", "routing=forced"])
def test_a_switch_of_experts_is_of_no_dense_model(setting: str) -> None:
    """The same setting is read of a mixture of experts, where it is priced."""
    with pytest.raises(InputError, match="has no experts"):
        stated("8b", f"switch.{setting}")
    if not setting.startswith("routing"):
        name, _, value = setting.partition("=")
        assert stated("qwen3-30b-a3b", f"switch.{setting}") == {name: value}


@pytest.mark.parametrize("setting", ["weight_dtype=fp8", "fp8_scaling=rowwise"])
def test_a_switch_of_narrow_products_is_of_no_job_in_sixteen_bits(setting: str) -> None:
    """Weights that are kept in eight bits alone are multiplied in eight."""
    name, _, value = setting.partition("=")
    with pytest.raises(InputError, match="eight or four bits"):
        stated("8b", f"switch.{setting}")
    assert stated("8b", f"switch.{setting}", "fp8") == {name: value}
