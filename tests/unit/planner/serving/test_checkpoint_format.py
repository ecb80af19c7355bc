"""The precision a quantised checkpoint is served in: its own, unless another is asked for."""

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.models.sizes import WeightFormat
from planner.analysis.serving.fleets import find_fleet
from planner.deployment.vllm_sglang import served_checkpoint
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from topology.base.errors import InputError


def asked(stated: WeightFormat, **words: str) -> Asked:
    """What an 8B model whose config.json states a format serves on one GPU."""
    flags = ServeFlags(gpus="1", gpu="h100-sxm", **words)  # type: ignore[arg-type]  # words are texts
    return understand_serving(flags, model=replace(model("8b"), name="mine", source="", weight_format=stated))


@pytest.mark.parametrize("stated", ["fp8", "int8", "int4", "fp4"])
def test_the_format_of_the_checkpoint_is_the_default_and_a_note_says_so(stated: WeightFormat) -> None:
    """Nothing was said of weights, so they are what the file holds."""
    question = asked(stated)
    first, *narrower = [request.weights[0] for request, _ in question.requests]
    assert first == stated
    assert set(narrower) == question.shown_only == ({"int4"} if stated == "fp8" else set())
    assert f"weights are {stated}, as the checkpoint's config.json says (--weights)" in question.notes


def test_weights_that_are_named_win() -> None:
    """Also where the format of the checkpoint is not known."""
    for stated in ("fp8", "other"):
        question = asked(stated, weights="int4")  # type: ignore[arg-type]  # a format
        assert [request.weights for request, _ in question.requests] == [("int4",)]
        assert not any("config.json" in note for note in question.notes)


def test_a_format_that_is_not_known_is_refused() -> None:
    """Serving it as bf16 would count four times its bytes."""
    with pytest.raises(InputError, match="quantised in a way that is not known"):
        asked("other")


def test_a_quantised_checkpoint_is_served_as_it_is() -> None:
    """No placeholder for another checkpoint, and nothing quantised while it loads."""
    plan = find_fleet(asked("fp8"))
    assert served_checkpoint(plan) == "mine"
    assert not any("--quantization" in text for text in (plan.commands or {}).values())


def test_a_config_without_a_format_is_as_before() -> None:
    """bf16 and the narrower ones that the GPU runs, and no word of it."""
    question = asked("")
    assert [request.weights for request, _ in question.requests] == [("bf16",), ("fp8",), ("int4",)]
    assert not any("weights are" in note for note in question.notes)
