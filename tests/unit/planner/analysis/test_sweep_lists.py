"""What may be listed in a sweep: models, stacks, precisions and optimizers, beside GPUs, lengths and batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.sweep import sweep_answer
from app.reports.answer import Lines, Table
from costmodel.memory.fit import fit_of
from planner.analysis.sweep import points_of, run_points
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.units import format_seconds


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


def test_two_swept_fields_make_a_map() -> None:
    """Rows and columns are the values of each; a cell is the step, with its word if tight, or the broken rule."""
    flags = Flags(model="70b", gpus="32", settings=("layout.tp=3,8", "layout.pp=1,4"), top="1")
    points = tuple(run_points([understand(point).request for point in points_of(flags)], search))
    table, rows, why = sweep_answer(points).sections
    assert isinstance(table, Table)
    assert isinstance(rows, Table)
    assert isinstance(why, Lines)
    assert table.columns == ("", "pp 1", "pp 4")
    [refused, planned] = table.rows
    assert refused == ("tp 3", "attention-heads", "attention-heads")
    assert planned[0] == "tp 8"
    for cell, point in zip(planned[1:], points[2:], strict=True):
        assert point.plan is not None
        estimate = point.plan.estimate
        assert cell.startswith(format_seconds(estimate.step_time_s))
        assert cell.endswith(")") == (fit_of(estimate.out_of_memory_chance) != "fits")
    assert rows.columns[:2] == ("tp", "pp")
    assert why.lines[0].startswith("attention-heads: num_attention_heads % tp = 64 % 3 = 1")
    assert [(row["pinned_tp"], row["pinned_pp"]) for row in (each.row() for each in points)] == [
        (3, 1), (3, 4), (8, 1), (8, 4),
    ]  # fmt: skip
