"""What may be listed in a sweep: models, stacks, precisions and optimizers, beside GPUs, lengths and batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.analysis.sweep import points_of
from planner.questions.flags import Flags
from planner.questions.training import understand


def test_every_combination_is_a_point() -> None:
    """Two of each of four make sixteen, the last varying fastest."""
    flags = Flags(
        model="8b,llama-2-13b",
        stack="torchtitan, megatron-core",
        precision="bf16,fp8",
        gpus="8",
        settings=("layout.zero_stage=1", "job.optimizer=adamw,muon"),
    )
    found = [
        (one.model, one.stack, one.precision, one.settings[-1], one.settings[0]) for one in points_of(flags)
    ]
    assert len(found) == len(set(found)) == 16
    assert found[:2] == [
        ("8b", "torchtitan", "bf16", "job.optimizer=adamw", "layout.zero_stage=1"),
        ("8b", "torchtitan", "bf16", "job.optimizer=muon", "layout.zero_stage=1"),
    ]


def test_points_are_asked_as_one_question_each() -> None:
    """What is listed reaches the request."""
    flags = Flags(model="8b", gpus="8", precision="bf16,fp8", settings=("job.optimizer=adamw,muon",))
    requests = [understand(point).request for point in points_of(flags)]
    assert [(one.job.precision, one.job.optimizer) for one in requests] == [
        ("bf16", "adamw"), ("bf16", "muon"), ("fp8", "adamw"), ("fp8", "muon"),
    ]  # fmt: skip


def test_a_file_with_a_comma_in_its_name_is_one_model(tmp_path: Path) -> None:
    """A path that exists is not split."""
    file = tmp_path / "a,b.json"
    file.write_text("{}", encoding="utf-8")
    [point] = points_of(Flags(model=str(file), gpus="8"))
    assert point.model == str(file)


@pytest.mark.parametrize("settings", [(), ("layout.tp=2",), ("job.optimizer=muon",)])
def test_what_is_not_listed_stays_as_it_was(settings: tuple[str, ...]) -> None:
    """One point with the same settings."""
    [point] = points_of(Flags(model="8b", gpus="8", settings=settings))
    assert point.settings == settings
