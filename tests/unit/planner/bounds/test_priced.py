"""Costs and memory of many layouts are one table: its rows are those of the layouts."""

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from planner.bounds.priced import Priced, priced_columns
from planner.plan import PlanRequest, problem_of
from topology.base.columns import Columns
from topology.builders import default_cluster

LAYOUTS = [
    ParallelLayout(tp=tp, pp=2, dp=4 // tp, zero_stage=zero, ep=ep, recompute=recompute)
    for tp in (1, 2)
    for zero, ep, recompute in ((0, 1, "none"), (1, 2, "full"))
]


def columns_of(priced: Priced) -> tuple[Columns, ...]:
    """All that has one entry per layout; the rest of the features is shared by layouts."""
    return priced.table, priced.features.layout_numbers, priced.costs, priced.pieces


def leaves(value: object) -> list[object]:
    if isinstance(value, Columns):
        return [leaf for item in value.by_name().values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(("name", "layouts"), [("8b", LAYOUTS[::2]), ("deepseek-v2-lite", LAYOUTS)])
def test_every_array_of_priced_layouts_ends_in_the_layouts(name: str, layouts: list[ParallelLayout]) -> None:
    """Two and four layouts, as there are runs, policies and linear forms: no other axis may stand last."""
    job = TrainingJob(sequence_length=2048, global_batch_size=16)
    request = PlanRequest(model=model(name), cluster=default_cluster("h100-sxm", 8).spec, job=job)
    priced, rows = (
        priced_columns(problem_of(request, load_calibration()), LayoutTable.from_rows(layouts)),
        np.array([1, 0]),
    )
    assert len(priced) == len(priced.features) == len(layouts)
    again = priced_columns(
        problem_of(request, load_calibration()), LayoutTable.from_rows([layouts[1], layouts[0]])
    )
    for taken, expected in zip(leaves(columns_of(priced.take(rows))), leaves(columns_of(again)), strict=True):
        assert np.shape(taken) == np.shape(expected)
        assert taken == pytest.approx(expected, rel=1e-12)
