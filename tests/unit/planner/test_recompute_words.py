"""Modules that are computed again, as written."""

import pytest

from planner.plan import stack_of
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.errors import InputError


def flags(**said: str) -> Flags:
    """Words about a model on 32 GPUs."""
    return Flags(**{"model": "70b", "gpus": "32", **said})  # type: ignore[arg-type]


def test_modules_are_what_selective_repeats() -> None:
    """The policy is pinned, the modules are those of the priced stack, and memory answers to them."""
    request = understand(flags(recompute_modules="mlp, core_attn")).request
    assert request.pins["recompute"] == "selective"
    assert stack_of(request).timing.recomputed_modules == ("mlp", "core_attn")
    plan = search(request)
    assert plan.layout.recompute == "selective"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            {"recompute_modules": "mlp", "stack": "torchtitan"},
            "torchtitan is not told which modules to recompute",
        ),
        (
            {"recompute_modules": "mlp", "engine": "accelerate"},
            "Accelerate is not told which modules to recompute",
        ),
        ({"recompute_modules": " "}, "--recompute-modules names no module"),
        (
            {"recompute_modules": "mlp", "settings": ("layout.recompute=full",)},
            "--recompute-modules and layout.recompute contradict each other",
        ),
    ],
)
def test_modules_that_cannot_be_are_refused(said: dict[str, str], what: str) -> None:
    """In three lines, before any search."""
    with pytest.raises(InputError) as refused:
        understand(flags(**said))
    assert refused.value.what == what
